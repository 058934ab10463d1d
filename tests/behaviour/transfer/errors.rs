//! Moves that must not be made.

use duly::{Duly, Error};

use crate::transfer::stores::*;

async fn refused(old: &Duly, new: &Duly) -> Error {
    old.transfer_to(new).run().await.expect_err("refused")
}

/// A move from one store to another that was killed between putting its first batch there and deleting it here.
async fn broken_off(old: &Duly, new: &Duly) {
    fill(old, "default", 40).await;
    old.transfer_to(new).kill_after(12).run().await.expect_err("killed");
    assert!(!all(old).await.is_empty() && !all(new).await.is_empty());
}

pub async fn transfer_to_the_same_store_is_rejected(pair: Pair) {
    let url = pair.url(0);
    let (one, other) = (open(&url).await, open(&url.replace("lease=600ms", "lease=700ms")).await);
    one.push(job("one")).await.expect("pushes");
    for other in [&one, &other] {
        let error = refused(&one, other).await;
        assert!(error.code() == "invalid" && error.to_string().contains("already"), "{error}");
    }
    assert_eq!(one.counts().await.expect("counts")[0].moving, None);
    assert_eq!(all(&one).await.len(), 1);
}

pub async fn unknown_queue_is_rejected(pair: Pair) {
    let (old, new) = pair.open().await;
    let error = old.transfer_to(&new).queue("none").run().await.expect_err("refused");
    assert_eq!(error.code(), "not_found");
    let error = old.transfer_to(&new).queue("a b").run().await.expect_err("refused");
    assert_eq!(error.code(), "invalid");
}

pub async fn interrupted_transfer_only_continues_to_its_target(pair: Pair) {
    let (old, new) = pair.open().await;
    let third = pair.open_one(1).await;
    broken_off(&old, &new).await;
    let error = refused(&old, &third).await;
    assert!(error.code() == "conflict" && error.to_string().contains("was moving to"), "{error}");
    old.transfer_to(&new).run().await.expect("goes on");
    assert_eq!(all(&new).await.len(), 160);
    new.transfer_to(&third).run().await.expect("moves");
    assert_eq!(all(&third).await.len(), 160);
}

pub async fn moving_queue_rejects_transfers_into_it(pair: Pair) {
    let (old, new) = pair.open().await;
    let third = pair.open_one(0).await;
    third.push(job("one")).await.expect("pushes");
    broken_off(&old, &new).await;
    let error = refused(&third, &old).await;
    assert!(error.code() == "conflict" && error.to_string().contains("to move to"), "{error}");
    third.transfer_to(&new).run().await.expect("the other end of that move is free");
    old.transfer_to(&new).run().await.expect("goes on");
    assert_eq!(all(&new).await.len(), 161);
}

pub async fn transfer_can_be_abandoned(pair: Pair) {
    let (old, new) = pair.open().await;
    broken_off(&old, &new).await;
    let hand = Hand::join(&old, "default").await;
    assert!(hand.claim(1).await.is_empty());
    let id = all(&old).await[0].job.id;
    assert_eq!(old.remove(id).await.expect_err("refused").code(), "conflict");
    assert!(old.abandon_transfer("default").await.expect("abandons"));
    assert!(!old.abandon_transfer("default").await.expect("answers"), "it was not moving any more");
    assert!(!hand.claim(1).await.is_empty());
}
