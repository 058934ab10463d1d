//! Transfers that are rejected.

use duly::{Duly, Error};

use crate::transfer::stores::*;

async fn transfer_error(old: &Duly, new: &Duly) -> Error {
    old.transfer_to(new).run().await.expect_err("refused")
}

/// Starts a transfer that is killed after it has written its first batch and before it deletes it.
async fn interrupt_transfer(old: &Duly, new: &Duly) {
    fill(old, "default", 40).await;
    old.transfer_to(new).kill_after(14).run().await.expect_err("killed");
    assert!(!all(old).await.is_empty() && !all(new).await.is_empty());
}

pub async fn transfer_to_the_same_store_is_rejected(pair: StorePair) {
    let url = pair.url(0);
    let (one, other) = (open(&url).await, open(&url.replace("lease=600ms", "lease=700ms")).await);
    one.push(job("one")).await.expect("pushes");
    for other in [&one, &other] {
        let error = transfer_error(&one, other).await;
        assert!(error.code() == "invalid" && error.to_string().contains("name another store"), "{error}");
    }
    assert_eq!(one.queues().counts().await.expect("counts")[0].moving, None);
    assert_eq!(all(&one).await.len(), 1);
}

pub async fn unknown_queue_is_rejected(pair: StorePair) {
    let (old, new) = pair.open().await;
    let error = old.transfer_to(&new).queue("none").run().await.expect_err("refused");
    assert_eq!(error.code(), "not_found");
    let error = old.transfer_to(&new).queue("a b").run().await.expect_err("refused");
    assert_eq!(error.code(), "invalid");
}

pub async fn interrupted_transfer_only_continues_to_its_target(pair: StorePair) {
    let (old, new) = pair.open().await;
    let third = pair.open_one(1).await;
    interrupt_transfer(&old, &new).await;
    let error = transfer_error(&old, &third).await;
    assert!(error.code() == "conflict" && error.to_string().contains("was moving to"), "{error}");
    old.transfer_to(&new).run().await.expect("goes on");
    assert_eq!(all(&new).await.len(), 160);
    new.transfer_to(&third).run().await.expect("transfers");
    assert_eq!(all(&third).await.len(), 160);
}

pub async fn moving_queue_rejects_transfers_into_it(pair: StorePair) {
    let (old, new) = pair.open().await;
    let third = pair.open_one(0).await;
    third.push(job("one")).await.expect("pushes");
    interrupt_transfer(&old, &new).await;
    let error = transfer_error(&third, &old).await;
    assert!(error.code() == "conflict" && error.to_string().contains("to move to"), "{error}");
    third.transfer_to(&new).run().await.expect("the target accepts other transfers");
    old.transfer_to(&new).run().await.expect("goes on");
    assert_eq!(all(&new).await.len(), 161);
}

pub async fn transfer_can_be_abandoned(pair: StorePair) {
    let (old, new) = pair.open().await;
    interrupt_transfer(&old, &new).await;
    let worker = ManualNode::join(&old, "default").await;
    assert!(worker.claim(1).await.is_empty());
    let id = all(&old).await[0].job.id;
    assert_eq!(old.jobs().remove(id).await.expect_err("refused").code(), "conflict");
    assert!(old.abandon_transfer("default").await.expect("abandons"));
    assert!(!old.abandon_transfer("default").await.expect("replies"), "it was not moving any more");
    assert!(!worker.claim(1).await.is_empty());
}
