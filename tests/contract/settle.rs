//! Settle: the effect of each outcome, and which node may record it.

use std::time::Duration;

use duly::bounds::{ERROR_BYTES_MAX, RUNS_MAX};
use duly::job::{Due, HeldJob, RunOutcome};
use duly::store::{AdminStore, AttemptEnd, ChangeResult, Filter, JobStore};
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
    for n in 1..=RUNS_MAX + 3 {
        let held = store.claim_one("a").await;
        let long = format!("{n} {}", "ü".repeat(ERROR_BYTES_MAX));
        store.settle("a", &held, Outcome::retry(Duration::ZERO, long)).await;
    }
    let failures = store.get(id).await.expect("is there").failures;
    assert_eq!(failures.len(), RUNS_MAX);
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

/// Returns the runs of a job as the record and a list have them, without what every run of these cases has in common.
async fn runs(store: &TestStore, id: JobId) -> Vec<(u32, RunOutcome, Option<String>, Option<String>)> {
    let record = store.get(id).await.expect("is there");
    let page = store.store.list(Filter::all().with_details()).await.expect("lists");
    assert_eq!(page.jobs.iter().find(|listed| listed.job.id == id), Some(&record));
    let node = store.node("a").await;
    for run in &record.runs {
        assert_eq!((run.node, run.duration), (node, Some(SECOND)));
        assert!(run.started.is_some_and(|started| started < run.ended), "{run:?}");
    }
    record.runs.into_iter().map(|run| (run.attempt, run.outcome, run.error, run.output)).collect()
}

pub async fn every_attempt_of_a_kept_job_is_recorded(store: TestStore) {
    let text = |text: &str| Some(text.to_owned());
    let id = store.push(job("one").keep(100 * SECOND).max_attempts(9)).await.id();
    store.advance(10 * SECOND).await;
    store.settle_run("a", &store.claim_one("a").await, Outcome::retry(Duration::ZERO, "oh"), Some("a\nb")).await;
    store.settle_run("a", &store.claim_one("a").await, release(), None).await;
    store.settle_run("a", &store.claim_one("a").await, Outcome::release(SECOND), Some("later")).await;
    let waiting = [
        (1, RunOutcome::Retry, text("oh"), text("a\nb")),
        (2, RunOutcome::Release, None, None),
        (2, RunOutcome::Release, None, text("later")),
    ];
    assert_eq!(runs(&store, id).await, waiting);
    assert_eq!(store.get(id).await.expect("is there").failures.len(), 1, "a release is no failure");
    let failed = store.store.list("error:oh".parse().expect("a filter")).await.expect("lists").jobs;
    assert_eq!(failed.len(), 1, "the last error is found behind later runs");
    assert!(failed[0].runs.is_empty() && failed[0].failures.is_empty(), "details only on request");

    store.advance(SECOND).await;
    store.settle_run("a", &store.claim_one("a").await, Outcome::Ack, Some("done")).await;
    let done = (2, RunOutcome::Ack, None, text("done"));
    assert_eq!(runs(&store, id).await, [&waiting[..], std::slice::from_ref(&done)].concat());

    store.store.reschedule(id, Due::Now).await.expect("starts over");
    store.settle_run("a", &store.claim_one("a").await, Outcome::bury("no"), None).await;
    let ended = [&waiting[..], &[done, (1, RunOutcome::Bury, text("no"), None)]].concat();
    assert_eq!(runs(&store, id).await, ended);
    assert_eq!(store.remove(id).await, ChangeResult::Applied);
}

pub async fn run_of_an_ack_is_recorded_only_with_its_start(store: TestStore) {
    for (kind, is_recorded) in [("with", true), ("without", false)] {
        let id = store.push(job(kind).keep(SECOND)).await.id();
        let held = store.claim_one("a").await;
        match is_recorded {
            true => store.settle_run("a", &held, Outcome::Ack, None).await,
            false => drop(store.settle("a", &held, Outcome::Ack).await),
        }
        let found = runs(&store, id).await;
        assert_eq!(found, is_recorded.then_some((1, RunOutcome::Ack, None, None)).into_iter().collect::<Vec<_>>());
    }
    store.sleep(2 * SECOND);
    assert_eq!(store.prune().await, 2);
}

pub async fn attempt_at_a_cancelled_job_is_recorded(store: TestStore) {
    let id = store.push(job("one")).await.id();
    let held = store.claim_one("a").await;
    store.store.cancel(id, KEEP).await.expect("cancels");
    store.settle_run("a", &held, release(), Some("cleaned up")).await;
    assert_eq!(store.state(id).await, Some(State::Cancelled));
    assert_eq!(runs(&store, id).await, [(1, RunOutcome::Release, None, Some("cleaned up".to_owned()))]);
}
