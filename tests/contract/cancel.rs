//! Cancels: in every unfinished state, and across the death of the holder.

use std::time::Duration;

use duly::admin::Why;
use duly::job::{Due, HeldJob};
use duly::store::{
    AdminStore, AttemptEnd, AttemptTiming, CANCELLED_JOBS_MAX, CancelReply, ChangeResult, HistoryQuery, JobStore,
    MaintenanceStore, ProgressStore, ProgressUpdate, StatsStore, Wake,
};
use duly::{Filter, JobId, Outcome, State};

use crate::test_store::*;

async fn cancel(store: &TestStore, id: JobId) -> CancelReply {
    store.store.cancel(id, KEEP).await.expect("cancels")
}

/// Checks that nothing counts as unfinished, and that the store is consistent.
async fn assert_ended(store: &TestStore, cancelled: u64) {
    let counts = &store.store.counts().await.expect("counts")[0];
    assert_eq!((counts.cancelled, counts.dead, counts.bytes), (cancelled, 0, 0), "{counts:?}");
    assert_eq!((counts.scheduled, counts.ready, counts.running), (0, 0, 0), "{counts:?}");
    assert_eq!(store.store.dead_groups(None).await.expect("reads"), [], "a cancelled job is in no group");
    let verified = store.store.verify().await.expect("verifies");
    assert!(verified.violations.is_empty(), "the store is consistent: {verified:?}");
}

pub async fn waiting_job_is_cancelled_at_once(store: TestStore) {
    let ready = store.push(job("ready").unique("key").tag("eu")).await.id();
    let later = store.push(job("later").after(SECOND)).await.id();
    let retried = store.push(job("retried")).await.id();
    for id in [ready, later] {
        assert_eq!(cancel(&store, id).await, CancelReply::Cancelled);
        assert_eq!(cancel(&store, id).await, CancelReply::Cancelled, "idempotent");
    }
    let held = store.claim_one("a").await;
    assert_eq!(held.job.id, retried);
    store.settle("a", &held, Outcome::retry(SECOND, "oh")).await;
    assert_eq!(cancel(&store, retried).await, CancelReply::Cancelled);
    store.advance(2 * SECOND).await;
    assert!(store.claim("a", 9).await.is_empty(), "no cancelled job runs");
    let record = store.get(retried).await.expect("is kept");
    assert_eq!((record.state, record.attempts, record.failures.len()), (State::Cancelled, 1, 1));
    assert_eq!(record.ended, Some(store.now() - 2 * SECOND));
    let again = store.push(job("again").unique("key")).await;
    assert_ne!(again.id(), ready, "the unique key is free");
    store.remove(again.id()).await;
    assert_ended(&store, 3).await;
    assert_eq!(cancel(&store, JobId::fresh()).await, CancelReply::NotFound);
}

pub async fn cancelled_jobs_are_listed_and_pruned(store: TestStore) {
    let ids = [store.push(job("a")).await.id(), store.push(job("b").after(SECOND)).await.id()];
    for id in ids {
        cancel(&store, id).await;
        store.advance(MS).await;
    }
    let page = store.duly.jobs().list(Filter::all().state(State::Cancelled)).await.expect("lists");
    assert_eq!(page.jobs.iter().map(|record| record.job.id).collect::<Vec<_>>(), [ids[1], ids[0]], "the newest first");
    let dead = store.duly.jobs().list(Filter::all().state(State::Dead)).await.expect("lists");
    assert!(dead.jobs.is_empty());
    let completed = store.store.completed_among("default", ids.to_vec()).await.expect("reads");
    assert_eq!(completed, ids);
    let why = store.duly.jobs().why(ids[0]).await.expect("reads");
    assert!(matches!(why, Why::Cancelled { .. }), "{why:?}");
    assert_eq!(store.remove(ids[0]).await, ChangeResult::Applied);
    assert_eq!(store.prune().await, 0);
    store.advance(Duration::from_secs(60)).await;
    store.sleep(KEEP);
    assert_eq!(store.prune().await, 1);
    assert_ended(&store, 0).await;
}

pub async fn cancelled_job_can_be_rescheduled(store: TestStore) {
    let id = store.push(job("a").unique("key")).await.id();
    cancel(&store, id).await;
    assert_eq!(store.store.reschedule(id, Due::Now).await.expect("reschedules"), ChangeResult::Applied);
    let held = store.claim_one("a").await;
    assert_eq!((held.job.id, held.attempt()), (id, 1));
    assert_eq!(store.settle("a", &held, retry_at_once()).await, nothing_lost());
    assert_eq!(store.state(id).await, Some(State::Ready), "the cancel is over");
    assert_eq!(store.push(job("b").unique("key")).await.id(), id, "it has its unique key again");
}

/// Pushes and claims a job, cancels it twice, and returns it.
async fn claim_and_cancel(store: &TestStore, kind: &str) -> HeldJob {
    store.push(job(kind).unique(kind)).await;
    let held = store.claim_one("a").await;
    let node = store.node("a").await;
    for _ in 0..2 {
        assert_eq!(cancel(store, held.job.id).await, CancelReply::Cancelling(node));
        assert_eq!(store.state(held.job.id).await, Some(State::Running));
    }
    held
}

pub async fn cancelled_running_job_ends_with_its_attempt(store: TestStore) {
    let outcomes = [
        ("release", release(), 0),
        ("deferred", Outcome::release(SECOND), 0),
        ("retry", retry_at_once(), 1),
        ("later", Outcome::retry(SECOND, "oh"), 1),
        ("bury", Outcome::bury("no"), 1),
    ];
    for (kind, outcome, failures) in outcomes {
        let held = claim_and_cancel(&store, kind).await;
        assert_eq!(store.settle("a", &held, outcome).await, nothing_lost());
        let record = store.get(held.job.id).await.expect("is kept");
        assert_eq!((record.state, record.failures.len()), (State::Cancelled, failures), "{kind}");
        assert_eq!((record.attempts, record.ended), (failures as u32, Some(store.now())), "{kind}");
        let again = store.push(job(kind).unique(kind)).await.id();
        assert_ne!(again, held.job.id, "the unique key is free");
        store.remove(again).await;
    }
    store.advance(2 * SECOND).await;
    assert!(store.claim("a", 9).await.is_empty());
    assert_ended(&store, 5).await;
}

pub async fn cancelled_job_that_succeeds_is_done(store: TestStore) {
    let held = claim_and_cancel(&store, "a").await;
    let mut update = ProgressUpdate::from_held(&held, None, vec![(store.now(), "line".to_owned())]);
    update.attempt = 1;
    let node = store.node("a").await;
    assert_eq!(store.store.record_progress(node, vec![update]).await.expect("records"), nothing_lost());
    assert_eq!(store.settle("a", &held, Outcome::Ack).await, nothing_lost());
    assert_eq!(store.state(held.job.id).await, Some(State::Done));
    assert_eq!(cancel(&store, held.job.id).await, CancelReply::Ended(State::Done));
    let plain = store.push(job("plain").keep(Duration::ZERO)).await.id();
    let held = store.claim_one("a").await;
    cancel(&store, plain).await;
    assert_eq!(store.settle("a", &held, Outcome::Ack).await, nothing_lost());
    assert_eq!(store.state(plain).await, None);
    store.push(job("dead")).await;
    let held = store.claim_one("a").await;
    store.settle("a", &held, Outcome::bury("no")).await;
    assert_eq!(cancel(&store, held.job.id).await, CancelReply::Ended(State::Dead));
}

pub async fn cancelled_job_of_dead_node_does_not_run_again(store: TestStore) {
    store.node("b").await;
    let held = claim_and_cancel(&store, "cancelled").await;
    store.push(job("other")).await;
    let other = store.claim_one("a").await;
    store.silence("a");
    store.advance(past_the_lease() + SECOND).await;
    let reply = store.claim_from("b", "a", 9).await;
    assert_eq!(kinds(&reply.jobs), ["other"]);
    let record = store.get(held.job.id).await.expect("is kept");
    assert_eq!((record.state, record.crashes, record.failures.len()), (State::Cancelled, 1, 1));
    assert_eq!(store.settle("a", &held, Outcome::Ack).await, [held.job.id], "the dead node comes too late");
    assert_eq!(store.settle("a", &other, Outcome::Ack).await, [other.job.id]);
    assert_eq!(store.settle("b", &reply.jobs[0], Outcome::Ack).await, nothing_lost());
    assert_ended(&store, 1).await;
}

pub async fn holder_of_cancelled_job_is_notified(store: TestStore) {
    let node = store.node("a").await;
    let mut wakes = store.store.subscribe_wakes(node).await.expect("subscribes");
    store.push_all(vec![job("one"), job("two")]).await;
    let held = store.claim("a", 2).await;
    assert_eq!(store.heartbeat("a").await.cancelled, []);
    cancel(&store, held[1].job.id).await;
    let notified = async { while wakes.recv().await.expect("open") != Wake::Heartbeat {} };
    tokio::time::timeout(TIMEOUT, notified).await.expect("in time");
    for _ in 0..2 {
        assert_eq!(store.heartbeat("a").await.cancelled, [held[1].job.id], "until it is settled");
    }
    store.settle("a", &held[1], release()).await;
    assert_eq!(store.heartbeat("a").await.cancelled, []);
    assert_eq!(store.heartbeat("b").await.cancelled, []);
    cancel(&store, held[0].job.id).await;
    assert_eq!(store.settle("a", &held[0], Outcome::Ack).await, nothing_lost());
    assert_eq!(store.heartbeat("a").await.cancelled, []);
}

pub async fn pending_cancel_is_visible(store: TestStore) {
    let id = store.push(job("a")).await.id();
    let held = store.claim_one("a").await;
    let list = async || store.duly.jobs().list(Filter::all().state(State::Running)).await.expect("lists").jobs;
    let why = async || store.duly.jobs().why(id).await.expect("reads");
    assert!(!store.get(id).await.expect("is there").cancelling && !list().await[0].cancelling);
    assert!(matches!(why().await, Why::Held { cancelling: false, .. }));
    cancel(&store, id).await;
    assert!(store.get(id).await.expect("is there").cancelling && list().await[0].cancelling);
    assert!(matches!(why().await, Why::Held { cancelling: true, .. }));
    assert!(why().await.to_string().ends_with("it was cancelled, and ends cancelled unless this attempt succeeds"));
    store.settle("a", &held, release()).await;
    assert!(!store.get(id).await.expect("is kept").cancelling, "it is over");
}

/// An attempt that fails just before its node learns of the cancel is no dead job and no retry.
pub async fn end_of_cancelled_job_is_counted_as_cancelled(store: TestStore) {
    let waiting = [store.push(job("ready")).await.id(), store.push(job("later").after(SECOND)).await.id()];
    for id in [waiting[0], waiting[0], waiting[1]] {
        cancel(&store, id).await;
    }
    let node = store.node("a").await;
    let outcomes = [Outcome::bury("no"), Outcome::retry(SECOND, "oh"), release(), Outcome::Ack];
    let mut ends = Vec::new();
    for (kind, outcome) in ["bury", "retry", "release", "ack"].iter().zip(outcomes) {
        let held = claim_and_cancel(&store, kind).await;
        let mut end = AttemptEnd::from_held(&held, outcome, KEEP);
        end.timing = Some(AttemptTiming { lateness: MS, duration: SECOND });
        ends.push(end);
        // In the same batch, a job that was not cancelled.
        store.push(job("other")).await;
        let other = store.claim_one("a").await;
        ends.push(AttemptEnd::from_held(&other, Outcome::bury("no"), KEEP));
    }
    assert_eq!(store.store.settle(node, ends).await.expect("settles"), nothing_lost());
    claim_and_cancel(&store, "of a dead node").await;
    store.node("b").await;
    store.silence("a");
    store.advance(past_the_lease() + SECOND).await;
    assert_eq!(store.claim_from("b", "a", 1).await.taken_back, 1);
    let all = store.store.history(HistoryQuery::default()).await.expect("reads").total();
    assert_eq!([all.done, all.retried, all.buried, all.released, all.taken_back], [1, 0, 4, 0, 1], "{all:?}");
    assert_eq!((all.cancelled, all.duration.count()), (2 + 3 + 1, 4));
    let totals = store.duly.queues().totals().await.expect("reads");
    assert_eq!((totals[0].1.buried, totals[0].1.cancelled), (4, 6));
}

/// One reply lists a bounded number of jobs: the others follow once these are settled.
pub async fn more_cancels_than_a_heartbeat_lists_are_all_delivered(store: TestStore) {
    const MORE: usize = 40;
    let count = CANCELLED_JOBS_MAX + MORE;
    store.push_all((0..count).map(|n| job(&format!("kind-{n}"))).collect()).await;
    let mut held = Vec::new();
    while held.len() < count {
        held.extend(store.claim("a", count - held.len()).await);
    }
    for one in &held {
        cancel(&store, one.job.id).await;
    }
    let first = store.heartbeat("a").await.cancelled;
    assert_eq!(first.len(), CANCELLED_JOBS_MAX);
    let (listed, rest): (Vec<_>, Vec<_>) = held.into_iter().partition(|one| first.contains(&one.job.id));
    assert_eq!(rest.len(), MORE);
    for one in &listed {
        assert_eq!(store.settle("a", one, release()).await, nothing_lost());
    }
    let mut second = store.heartbeat("a").await.cancelled;
    let mut expected: Vec<_> = rest.iter().map(|one| one.job.id).collect();
    second.sort();
    expected.sort();
    assert_eq!(second, expected, "the first heartbeat had no room for these");
    for one in &rest {
        assert_eq!(store.settle("a", one, release()).await, nothing_lost());
    }
    assert_eq!(store.heartbeat("a").await.cancelled, []);
    assert_ended(&store, count as u64).await;
}

pub async fn caller_that_waits_sees_the_cancel(store: TestStore) {
    let (waiting, running) = (store.push(job("b").after(SECOND)).await.id(), store.push(job("a")).await.id());
    let held = store.claim_one("a").await;
    cancel(&store, running).await;
    for id in [waiting, running] {
        let duly = store.duly.clone();
        let waits = tokio::spawn(async move { duly.jobs().wait(id).await.expect("waits") });
        match id == waiting {
            true => _ = cancel(&store, waiting).await,
            false => _ = store.settle("a", &held, release()).await,
        }
        let record = tokio::time::timeout(TIMEOUT, waits).await.expect("in time").expect("no panic");
        assert_eq!(record.map(|record| record.state), Some(State::Cancelled));
    }
}
