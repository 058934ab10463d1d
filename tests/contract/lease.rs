//! Leases: which node holds a job, and when it is taken back.

use std::sync::Arc;
use std::time::Duration;

use duly::job::{Due, HeldJob};
use duly::store::{AttemptEnd, CLAIM_MAX, ChangeResult, JobStore, TAKE_BACK_MAX};
use duly::{Outcome, State};

use crate::test_store::*;

pub async fn node_with_heartbeats_keeps_its_jobs(store: TestStore) {
    store.push(job("long")).await;
    store.node("b").await;
    let held = store.claim_one("a").await;
    for _ in 0..20 {
        store.advance(SECOND).await;
        let reply = store.claim_from("b", "a", 1).await;
        assert_eq!((reply.jobs.len(), reply.taken_back), (0, 0));
    }
    assert!(store.heartbeat("b").await.suspects.is_empty());
    assert_eq!(store.settle("a", &held, Outcome::Ack).await, nothing_lost());
}

pub async fn silent_node_loses_its_jobs_after_its_lease(store: TestStore) {
    store.push(job("one")).await;
    store.node("b").await;
    store.claim_one("a").await;
    let a = store.node("a").await;
    store.silence("a");

    store.advance(past_the_lease() - 2 * MS).await;
    assert!(store.heartbeat("b").await.suspects.is_empty());
    assert!(store.claim_from("b", "a", 1).await.jobs.is_empty());

    store.advance(2 * MS).await;
    assert_eq!(store.heartbeat("b").await.suspects, [(a, "default".into())]);
    assert_eq!(store.claim_from("b", "a", 1).await.jobs.len(), 1);
    assert!(store.heartbeat("b").await.suspects.is_empty(), "nothing is left to take");
}

pub async fn node_that_slept_itself_takes_nothing_back(store: TestStore) {
    store.push(job("one")).await;
    store.node("b").await;
    let held = store.claim_one("a").await;
    store.sleep(100 * SECOND); // the whole machine is suspended

    store.heartbeat("b").await;
    assert!(store.claim_from("b", "a", 1).await.jobs.is_empty(), "b wakes up first and must not take the job of a");
    store.heartbeat("a").await;
    assert_eq!(store.settle("a", &held, Outcome::Ack).await, nothing_lost());
}

pub async fn taken_back_job_goes_to_the_head_and_counts_a_crash(store: TestStore) {
    store.push_all(vec![job("first"), job("second"), job("third")]).await;
    store.node("b").await;
    let held = store.claim("a", 2).await;
    store.silence("a");
    store.advance(past_the_lease() + SECOND).await;

    let reply = store.claim_from("b", "a", 9).await;
    assert_eq!(reply.taken_back, 2);
    assert_eq!(kinds(&reply.jobs), ["first", "second", "third"]);
    let counts: Vec<_> = reply.jobs.iter().map(|held| (held.attempts, held.crashes)).collect();
    assert_eq!(counts, [(0, 1), (0, 1), (0, 0)], "a crash uses up no attempt");
    assert!(reply.jobs[0].fence > held[0].fence);
    let record = store.get(held[0].job.id).await.expect("is there");
    assert_eq!((record.crashes, record.failures.len()), (1, 1), "and is recorded as a failure");
}

pub async fn crash_count_survives_a_reschedule(store: TestStore) {
    store.node("b").await;
    for (node, due) in [("a", Due::After(SECOND)), ("c", Due::Now)] {
        let id = store.push(job("one")).await.id();
        store.claim_one(node).await;
        store.silence(node);
        store.advance(past_the_lease() + SECOND).await;
        assert_eq!(store.claim_from("b", node, 0).await.taken_back, 1);
        assert_eq!(store.store.reschedule(id, due).await.expect("reschedules"), ChangeResult::Applied);
        assert_eq!(store.get(id).await.expect("is there").crashes, 1);
        store.advance(2 * SECOND).await;
        let held = store.claim_one("b").await;
        assert_eq!((held.job.id, held.attempts, held.crashes), (id, 0, 1));
        store.settle("b", &held, Outcome::Ack).await;
    }
}

/// The node dies, and the next one claims its jobs.
async fn die(store: &TestStore, node: &'static str, next: &'static str) -> Vec<HeldJob> {
    store.node(next).await;
    store.silence(node);
    store.advance(past_the_lease() + SECOND).await;
    store.claim_from(next, node, 9).await.jobs
}

fn crashes(jobs: &[HeldJob]) -> Vec<(&str, u32)> {
    jobs.iter().map(|held| (&*held.job.kind, held.crashes)).collect()
}

async fn set_alone(store: &TestStore, node: &'static str, held: &HeldJob, alone: bool) -> bool {
    store.store.set_alone(store.node(node).await, Arc::new(held.clone()), alone).await.expect("marks")
}

pub async fn third_crash_counts_only_for_a_job_that_ran_alone(store: TestStore) {
    store.push_all(vec![job("one"), job("two")]).await;
    store.claim("a", 2).await;
    let held = die(&store, "a", "b").await;
    assert_eq!(crashes(&held), [("one", 1), ("two", 1)]);
    let held = die(&store, "b", "c").await;
    assert_eq!(crashes(&held), [("one", 2), ("two", 2)]);

    let held = die(&store, "c", "d").await;
    assert_eq!(crashes(&held), [("one", 2), ("two", 2)], "either may be a bystander");
    let failures = store.get(held[0].job.id).await.expect("is there").failures.len();
    assert!([1, 3].contains(&failures), "each crash is in the history; on Sidekiq's keys only the last: {failures}");

    assert!(set_alone(&store, "d", &held[0], true).await);
    let held = die(&store, "d", "e").await;
    assert_eq!(crashes(&held), [("one", 3), ("two", 2)]);

    assert!(set_alone(&store, "e", &held[1], true).await);
    assert!(set_alone(&store, "e", &held[1], false).await, "another job has started since");
    let held = die(&store, "e", "f").await;
    assert_eq!(crashes(&held), [("one", 3), ("two", 2)]);
}

pub async fn mark_of_a_lone_job_ends_with_its_claim(store: TestStore) {
    store.push(job("one")).await;
    store.claim_one("a").await;
    let held = die(&store, "a", "b").await;
    let held = [die(&store, "b", "c").await, held].concat();
    let (now, before) = (&held[0], &held[1]);
    assert!(!set_alone(&store, "c", before, true).await, "an older claim");
    assert!(!set_alone(&store, "b", now, true).await, "another node");
    assert!(set_alone(&store, "c", now, true).await);
    store.settle("c", now, Outcome::release(Duration::ZERO)).await;

    let again = store.claim_one("c").await;
    assert_eq!(again.crashes, 2);
    let held = die(&store, "c", "d").await;
    assert_eq!(crashes(&held), [("one", 2)], "the job was not marked under its new claim");
}

pub async fn take_back_is_bounded(store: TestStore) {
    let held = TAKE_BACK_MAX + 100;
    store.push_all((0..held).map(|_| job("one")).collect()).await;
    store.node("b").await;
    assert_eq!(store.claim("a", held).await.len(), held);
    store.silence("a");
    store.advance(past_the_lease() + SECOND).await;

    let first = store.claim_from("b", "a", 10).await;
    assert_eq!((first.jobs.len(), first.taken_back, first.has_more), (10, TAKE_BACK_MAX, true));
    assert_eq!(store.claim_from("b", "a", 10).await.taken_back, 100);
    assert_eq!(store.claim_from("b", "a", 10).await.taken_back, 0);
}

pub async fn few_jobs_of_dead_node_are_found_among_many(store: TestStore) {
    const MANY: usize = 3;
    let jobs = MANY * CLAIM_MAX + 5;
    store.push_all((0..jobs).map(|_| job("one")).collect()).await;
    store.node("c").await;
    assert_eq!(store.claim("a", 5).await.len(), 5);
    for _ in 0..MANY {
        assert_eq!(store.claim("b", CLAIM_MAX).await.len(), CLAIM_MAX);
    }
    store.silence("a");
    store.advance(past_the_lease() + SECOND).await;

    let mut taken = 0;
    for _ in 0..20 {
        let reply = store.claim_from("c", "a", 5).await;
        taken += reply.taken_back;
        if !reply.suspect_has_more {
            break;
        }
    }
    assert_eq!(taken, 5);
    assert_eq!(store.heartbeat("b").await.held, [("default".into(), (MANY * CLAIM_MAX) as u64)], "b keeps its own");
}

pub async fn returning_node_keeps_jobs_not_taken_back(store: TestStore) {
    let held = TAKE_BACK_MAX + 100;
    store.push_all((0..held).map(|_| job("one")).collect()).await;
    store.node("b").await;
    let held = store.claim("a", held).await;
    store.silence("a");
    store.advance(past_the_lease() + SECOND).await;
    store.claim_from("b", "a", 1).await;

    store.heartbeat("a").await;
    assert_eq!(store.claim_from("b", "a", 1).await.taken_back, 0, "a is back");
    assert_eq!(store.heartbeat("a").await.held, [("default".into(), 100)]);
    let ends = held.iter().map(|held| AttemptEnd::from_held(held, Outcome::Ack, held.job.keep)).collect();
    let lost = store.store.settle(store.node("a").await, ends).await.expect("settles");
    assert_eq!(lost.len(), TAKE_BACK_MAX, "outcomes of taken jobs are rejected, the others recorded");
    assert!(store.heartbeat("a").await.held.is_empty());
}

pub async fn jobs_of_a_node_that_left_are_taken_back_at_once(store: TestStore) {
    let id = store.push(job("one")).await.id();
    store.node("b").await;
    store.claim_one("a").await;
    let a = store.node("a").await;
    store.silence("a");
    store.store.leave(a).await.expect("leaves");
    assert_eq!(store.heartbeat("b").await.suspects, [(a, "default".into())]);
    assert_eq!(store.claim_from("b", "a", 1).await.jobs.len(), 1);
    assert_eq!(store.state(id).await, Some(State::Running));
}

pub async fn heartbeat_returns_the_jobs_the_node_holds(store: TestStore) {
    store.push_all(vec![job("one"), job("two")]).await;
    assert!(store.heartbeat("a").await.held.is_empty());
    let held = store.claim("a", 2).await;
    assert_eq!(store.heartbeat("a").await.held, [("default".into(), 2)]);
    assert!(store.heartbeat("b").await.held.is_empty());
    store.settle("a", &held[0], Outcome::Ack).await;
    assert_eq!(store.heartbeat("a").await.held, [("default".into(), 1)]);
}
