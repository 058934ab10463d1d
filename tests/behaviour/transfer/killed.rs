//! Movers that are killed, and two at a time. What arrives is worked off at once and forgotten: a second arrival would show.

use duly::{Duly, JobId};

use crate::transfer::stores::*;

/// More than any move here asks of its stores.
const CALLS_MAX: u64 = 200;

/// Moves until killed; answers whether it came to its end, and what was worked off in the other store then.
async fn run_until_killed(old: &Duly, new: &Duly, calls: u64) -> (bool, Vec<JobId>) {
    let moved = old.transfer_to(new).kill_after(calls).run().await;
    if let Err(error) = &moved {
        assert!(error.to_string().contains("killed"), "{error}");
    }
    let hand = Hand::join(new, "default").await;
    let done = hand.work_off().await;
    hand.leave().await;
    (moved.is_ok(), done)
}

async fn left_in(duly: &Duly) -> Vec<JobId> {
    all(duly).await.into_iter().map(|record| record.job.id).collect()
}

pub async fn transfer_killed_at_every_step_continues(pair: Pair) {
    let mut ended = false;
    for calls in 0..CALLS_MAX {
        let (old, new) = pair.open().await;
        let ids = fill(&old, "default", 40).await;
        let (first, mut done) = run_until_killed(&old, &new, calls).await;
        ended = first;
        done.extend(run_until_killed(&old, &new, CALLS_MAX).await.1);
        done.extend(left_in(&new).await);
        each_once(done, &ids);
        is_left(&old).await;
        if ended {
            break;
        }
    }
    assert!(ended, "every step has been the last");
}

pub async fn transfer_killed_twice_continues(pair: Pair) {
    for _ in 0..12 {
        let (old, new) = pair.open().await;
        let ids = fill(&old, "default", 40).await;
        let mut done = Vec::new();
        for _ in 0..3 {
            done.extend(run_until_killed(&old, &new, fastrand::u64(4..20)).await.1);
        }
        done.extend(run_until_killed(&old, &new, CALLS_MAX).await.1);
        done.extend(left_in(&new).await);
        each_once(done, &ids);
        is_left(&old).await;
    }
}

pub async fn transfer_killed_at_every_step_can_be_reversed(pair: Pair) {
    for calls in 0..CALLS_MAX {
        let (old, new) = pair.open().await;
        let ids = fill(&old, "default", 40).await;
        let (ended, mut done) = run_until_killed(&old, &new, calls).await;
        new.transfer_to(&old).run().await.expect("moves back");
        is_left(&new).await;
        assert_eq!(old.counts().await.expect("counts")[0].moving, None);
        let hand = Hand::join(&old, "default").await;
        done.extend(hand.work_off().await);
        done.extend(left_in(&old).await);
        each_once(done, &ids);
        if ended {
            return;
        }
    }
    panic!("it never ended");
}

pub async fn two_concurrent_transfers_move_each_job_once(pair: Pair) {
    let (old, new) = pair.open().await;
    let ids = fill(&old, "default", 150).await;
    let (worker, hand) = (new.clone(), Hand::join(&new, "default").await);
    let first = tokio::spawn(old.transfer_to(&new).run());
    let second = tokio::spawn(old.transfer_to(&worker).run());
    let mut done = Vec::new();
    while !first.is_finished() || !second.is_finished() {
        done.extend(hand.work_off().await);
        tokio::task::yield_now().await;
    }
    for moved in [first, second] {
        if let Err(error) = moved.await.expect("no panic") {
            assert!(error.code() == "conflict" && error.to_string().contains("taken queue"), "{error}");
        }
    }
    old.transfer_to(&new).run().await.expect("moves the rest");
    done.extend(hand.work_off().await);
    done.extend(left_in(&new).await);
    each_once(done, &ids);
    is_left(&old).await;
}
