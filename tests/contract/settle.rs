//! Settle: the effect of each outcome, and which node may record it.

use std::time::Duration;

use duly::bounds::{ERROR_BYTES_MAX, FAILURES_MAX};
use duly::job::HeldJob;
use duly::store::{AttemptEnd, JobStore};
use duly::{JobId, Outcome, State};

use crate::test_store::*;

pub async fn settle_after_lost_lease_is_rejected(store: TestStore) {
    let id = store.push(job("one")).await.id();
    store.node("b").await;
    let a = store.claim_one("a").await;
    store.silence("a");
    store.advance(past_the_lease() + SECOND).await; // a sends no heartbeats
    let b = store.claim_from("b", "a", 1).await.jobs.pop().expect("taken back");

    assert_eq!(store.settle("a", &a, Outcome::Ack).await, [id], "the outcome is rejected");
    assert_eq!(store.state(id).await, Some(State::Running), "and nothing is recorded");
    assert_eq!(store.settle("b", &b, Outcome::Ack).await, nothing_lost());
    assert_eq!(store.state(id).await, Some(State::Done));
}

pub async fn repeated_ack_counts_once(store: TestStore) {
    let id = store.push(job("one")).await.id();
    let held = store.claim_one("a").await;
    assert_eq!(store.settle("a", &held, Outcome::Ack).await, nothing_lost());
    assert_eq!(store.settle("a", &held, Outcome::bury("no")).await, [id]);
    assert_eq!(store.state(id).await, Some(State::Done));
}

pub async fn settle_by_another_node_is_rejected(store: TestStore) {
    let id = store.push(job("one")).await.id();
    let held = store.claim_one("a").await;
    assert_eq!(store.settle("b", &held, Outcome::Ack).await, [id]);
    assert_eq!(store.settle("a", &held, Outcome::Ack).await, nothing_lost());
}

pub async fn settle_with_old_fence_of_same_node_is_rejected(store: TestStore) {
    let id = store.push(job("one")).await.id();
    let old = store.claim_one("a").await;
    store.settle("a", &old, release()).await;
    let new = store.claim_one("a").await;
    assert_eq!(store.settle("a", &old, Outcome::Ack).await, [id], "a repeated settle cannot hit the next attempt");
    assert_eq!(store.settle("a", &new, Outcome::Ack).await, nothing_lost());
}

pub async fn retry_counts_an_attempt_and_keeps_the_error(store: TestStore) {
    let id = store.push(job("one")).await.id();
    let held = store.claim_one("a").await;
    store.settle("a", &held, Outcome::retry(SECOND, "no disk")).await;

    let record = store.get(id).await.expect("is there");
    assert_eq!((record.state, record.attempts), (State::Scheduled, 1));
    assert_eq!(record.failures.len(), 1);
    assert_eq!((record.failures[0].attempt, record.failures[0].error.as_str()), (1, "no disk"));
    assert_eq!(record.failures[0].node, store.node("a").await);

    assert!(store.claim("a", 1).await.is_empty());
    store.advance(SECOND).await;
    assert_eq!(store.claim_one("a").await.attempts, 1);
}

pub async fn release_does_not_count_an_attempt(store: TestStore) {
    let id = store.push(job("one")).await.id();
    let held = store.claim_one("a").await;
    store.settle("a", &held, release()).await;
    let record = store.get(id).await.expect("is there");
    assert_eq!((record.state, record.attempts, record.crashes), (State::Ready, 0, 0));
    assert!(record.failures.is_empty());
}

pub async fn release_can_delay_a_job(store: TestStore) {
    store.push(job("one")).await;
    let held = store.claim_one("a").await;
    store.settle("a", &held, Outcome::release(SECOND)).await;
    assert!(store.claim("a", 1).await.is_empty());
    store.advance(SECOND).await;
    assert_eq!(store.claim_one("a").await.attempts, 0);
}

pub async fn buried_job_is_dead_and_keeps_its_failures(store: TestStore) {
    let id = store.push(job("one")).await.id();
    let held = store.claim_one("a").await;
    store.settle("a", &held, retry_at_once()).await;
    let held = store.claim_one("a").await;
    store.settle("a", &held, Outcome::bury("that is it")).await;

    let record = store.get(id).await.expect("is kept");
    assert_eq!((record.state, record.attempts), (State::Dead, 2));
    let errors: Vec<_> = record.failures.iter().map(|f| (f.attempt, f.error.as_str())).collect();
    assert_eq!(errors, [(1, "oh"), (2, "that is it")]);
    assert!(record.ended.is_some());
    assert!(store.claim("a", 1).await.is_empty());
}

pub async fn only_the_newest_failures_are_kept(store: TestStore) {
    let id = store.push(job("one")).await.id();
    for n in 1..=FAILURES_MAX + 3 {
        let held = store.claim_one("a").await;
        let long = format!("{n} {}", "ü".repeat(ERROR_BYTES_MAX));
        store.settle("a", &held, Outcome::retry(Duration::ZERO, long)).await;
    }
    let failures = store.get(id).await.expect("is there").failures;
    assert_eq!(failures.len(), FAILURES_MAX);
    assert_eq!(failures[0].attempt, 4);
    assert!(failures.iter().all(|failure| failure.error.len() <= ERROR_BYTES_MAX));
}

pub async fn done_job_is_kept_for_its_keep_time(store: TestStore) {
    let kept = store.push(job("kept").keep(5 * SECOND)).await.id();
    let gone = store.push(job("gone").keep(Duration::ZERO)).await.id();
    for held in store.claim("a", 2).await {
        store.settle("a", &held, Outcome::Ack).await;
    }
    assert_eq!(store.state(gone).await, None);
    assert_eq!(store.state(kept).await, Some(State::Done));

    store.advance(5 * SECOND - MS).await;
    assert_eq!(store.prune().await, 0);
    store.advance(MS).await;
    assert_eq!(store.prune().await, 1);
    assert_eq!(store.state(kept).await, None);
}

pub async fn done_jobs_beyond_the_maximum_are_pruned(store: TestStore) {
    let ids: Vec<JobId> = store.push_all((0..5).map(|_| job("one")).collect()).await.iter().map(|p| p.id()).collect();
    for held in store.claim("a", 5).await {
        store.settle("a", &held, Outcome::Ack).await;
        store.advance(MS).await;
    }
    assert_eq!(store.store.prune("default", 2).await.expect("prunes"), 3);
    assert_eq!(store.state(ids[2]).await, None);
    assert_eq!(store.state(ids[3]).await, Some(State::Done), "the newest stay");
}

pub async fn rejected_outcome_does_not_affect_others_in_the_batch(store: TestStore) {
    store.push_all(vec![job("one"), job("two"), job("three")]).await;
    let held = store.claim("a", 3).await;
    store.settle("a", &held[1], Outcome::Ack).await;
    let end = |held: &HeldJob| AttemptEnd::from_held(held, Outcome::Ack, KEEP);
    let ends = held.iter().map(end).collect();
    let lost = store.store.settle(store.node("a").await, ends).await.expect("settles");
    assert_eq!(lost, [held[1].job.id]);
    assert_eq!(store.state(held[2].job.id).await, Some(State::Done));
}
