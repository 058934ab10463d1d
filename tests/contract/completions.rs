//! Completions: subscribers are notified of jobs that end, and waits return at once.

use std::time::Duration;

use duly::store::{CompletionStore, JobStore, Notification};
use duly::{JobId, JobRecord, Outcome, State};
use tokio::task::JoinHandle;

use crate::test_store::*;

/// Far longer than a notification takes, far shorter than the interval of the fallback check.
const AT_ONCE: Duration = Duration::from_secs(2);

async fn watch(store: &TestStore, peer: &'static str, queues: &[&str]) {
    let queues: Vec<String> = queues.iter().map(|queue| (*queue).into()).collect();
    store.store.watch_completions(store.peer(peer).await, &queues).await.expect("watches");
}

/// Receives notifications until this many jobs have completed. Returns their ids.
async fn completed(inbox: &mut Inbox, jobs: usize) -> Vec<JobId> {
    let mut all = Vec::new();
    while all.len() < jobs {
        match inbox.next().await {
            Notification::Completed(ids) => all.extend(ids),
            other => panic!("received {other:?}"),
        }
    }
    all
}

pub async fn subscriber_is_notified_of_every_kind_of_completion(store: TestStore) {
    let mut inbox = store.subscribe("w").await;
    watch(&store, "w", &["default"]).await;
    let kept = store.push(job("kept")).await.id();
    let forgotten = store.push(job("forgotten").keep(Duration::ZERO)).await.id();
    let buried = store.push(job("buried")).await.id();
    let again = store.push(job("again")).await.id();
    let removed = store.push(job("removed").after(SECOND)).await.id();
    let held = store.claim("a", 4).await;
    for (held, outcome) in held.iter().zip([Outcome::Ack, Outcome::Ack, Outcome::bury("oh"), retry_at_once()]) {
        assert_eq!(store.settle("a", held, outcome).await, nothing_lost());
    }
    store.remove(removed).await;
    assert_eq!(completed(&mut inbox, 4).await, [kept, forgotten, buried, removed], "without the job that is retried");
    let held = store.claim_one("a").await;
    store.settle("a", &held, Outcome::Ack).await;
    assert_eq!(completed(&mut inbox, 1).await, [again]);
    let replaced = store.push(job("replaced").unique("u").after(SECOND)).await.id();
    store.push(job("another").unique("u").on_conflict(duly::job::UniqueConflict::Replace).after(SECOND)).await;
    assert_eq!(completed(&mut inbox, 1).await, [replaced]);
}

pub async fn jobs_completed_in_one_settle_are_all_notified(store: TestStore) {
    let mut inbox = store.subscribe("w").await;
    watch(&store, "w", &["default"]).await;
    let node = store.node("a").await;
    let mut pushed: Vec<JobId> =
        store.push_all((0..600).map(|_| job("k")).collect()).await.iter().map(|p| p.id()).collect();
    let ends = store
        .claim("a", 600)
        .await
        .iter()
        .map(|held| duly::store::AttemptEnd::from_held(held, Outcome::Ack, KEEP))
        .collect();
    assert_eq!(store.store.settle(node, ends).await.expect("settles"), nothing_lost());
    let mut notified = completed(&mut inbox, 600).await;
    notified.sort();
    pushed.sort();
    assert_eq!(notified, pushed);
}

pub async fn completions_of_other_queues_are_not_notified(store: TestStore) {
    let mut inbox = store.subscribe("w").await;
    let unwatched = store.push(job("unwatched")).await.id();
    let held = store.claim_one("a").await;
    store.settle("a", &held, Outcome::Ack).await;
    watch(&store, "w", &["default"]).await;
    let first = store.push(job("first")).await.id();
    let held = store.claim_one("a").await;
    store.settle("a", &held, Outcome::Ack).await;
    assert_eq!(completed(&mut inbox, 1).await, [first], "not {unwatched}");
    watch(&store, "w", &["other"]).await;
    store.push(job("second")).await;
    let held = store.claim_one("a").await;
    store.settle("a", &held, Outcome::Ack).await;
    watch(&store, "w", &["default"]).await;
    let third = store.push(job("third")).await.id();
    let held = store.claim_one("a").await;
    store.settle("a", &held, Outcome::Ack).await;
    assert_eq!(completed(&mut inbox, 1).await, [third]);
}

pub async fn completed_among_returns_finished_and_unknown_jobs(store: TestStore) {
    let mut ids = Vec::new();
    for kind in ["done", "dead", "gone", "running", "ready"] {
        ids.push(store.push(job(kind)).await.id());
    }
    let later = store.push(job("scheduled").after(SECOND)).await.id();
    let held = store.claim("a", 4).await;
    store.settle("a", &held[0], Outcome::Ack).await;
    store.settle("a", &held[1], Outcome::bury("oh")).await;
    store.settle("a", &held[2], release()).await;
    store.remove(ids[2]).await;
    let never = JobId::fresh();
    let asked_for = [&ids[..], &[later, never]].concat();
    let completed = store.store.completed_among("default", asked_for).await.expect("reads");
    assert_eq!(completed, [ids[0], ids[1], ids[2], never]);
    assert_eq!(store.store.completed_among("default", Vec::new()).await.expect("reads"), []);
}

fn wait(store: &TestStore, id: JobId) -> JoinHandle<Option<JobRecord>> {
    let duly = store.duly.clone();
    tokio::spawn(async move { duly.jobs().wait(id).await.expect("waits") })
}

async fn at_once(waiting: JoinHandle<Option<JobRecord>>) -> Option<JobRecord> {
    tokio::time::timeout(AT_ONCE, waiting).await.expect("notified at once").expect("no panic")
}

pub async fn wait_returns_the_job_as_it_ended(store: TestStore) {
    let (done, dead) = (store.push(job("done")).await.id(), store.push(job("dead")).await.id());
    let gone = store.push(job("gone")).await.id();
    let waits = [done, done, dead, gone].map(|id| wait(&store, id));
    // A wait for a job that has ended or never existed returns at once.
    assert_eq!(at_once(wait(&store, JobId::fresh())).await, None);
    let held = store.claim("a", 2).await;
    store.settle("a", &held[0], Outcome::Ack).await;
    let [first, second, third, fourth] = waits;
    for waiting in [first, second, wait(&store, done)] {
        assert_eq!(at_once(waiting).await.map(|record| (record.job.id, record.state)), Some((done, State::Done)));
    }
    store.settle("a", &held[1], Outcome::bury("oh")).await;
    let record = at_once(third).await.expect("is kept");
    assert_eq!((record.job.id, record.state), (dead, State::Dead));
    store.remove(gone).await;
    assert_eq!(at_once(fourth).await, None);
}

pub async fn wait_does_not_end_at_a_retry(store: TestStore) {
    let id = store.push(job("k")).await.id();
    let waiting = wait(&store, id);
    let held = store.claim_one("a").await;
    store.settle("a", &held, retry_at_once()).await;
    let held = store.claim_one("a").await;
    store.settle("a", &held, Outcome::Ack).await;
    let record = at_once(waiting).await.expect("is kept");
    assert_eq!((record.state, record.attempts), (State::Done, 1));
}
