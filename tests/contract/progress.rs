//! Progress, log lines and results of jobs.

use std::time::Duration;

use duly::bounds::LOG_LINES_MAX;
use duly::job::{HeldJob, JobProgress};
use duly::store::{AttemptEnd, JobStore, ProgressStore, ProgressUpdate};
use duly::{JobId, Outcome, State};

use crate::test_store::{KEEP, TestStore, job, past_the_lease, retry_at_once};

async fn report(store: &TestStore, node: &'static str, held: &HeldJob, done: f64, lines: &[&str]) -> Vec<JobId> {
    let progress = JobProgress::new(done, "so far", store.now());
    let lines = lines.iter().map(|line| (store.now(), (*line).to_owned())).collect();
    store
        .store
        .record_progress(store.node(node).await, vec![ProgressUpdate::from_held(held, Some(progress), lines)])
        .await
        .expect("records")
}

pub async fn progress_and_log_are_kept_with_the_job(store: TestStore) {
    let id = store.push(job("a")).await.id();
    let held = store.claim_one("a").await;
    assert_eq!(report(&store, "a", &held, 0.25, &["one", "two\ttabbed\nbroken"]).await, []);
    assert_eq!(report(&store, "a", &held, 0.5, &["three"]).await, []);
    store.settle("a", &held, retry_at_once()).await;
    let held = store.claim_one("a").await;
    assert_eq!(report(&store, "a", &held, 0.75, &["again"]).await, []);
    let record = store.get(id).await.expect("is there");
    assert_eq!(record.progress, Some(JobProgress::new(0.75, "so far", store.now())));
    let lines: Vec<_> = record.log.iter().map(|line| (line.attempt, line.line.as_str())).collect();
    assert_eq!(lines, [(1, "one"), (1, "two\ttabbed\nbroken"), (1, "three"), (2, "again")]);
    let listed = store.store.list(duly::Filter::default()).await.expect("lists").jobs.remove(0);
    assert!(listed.progress.is_none() && listed.log.is_empty(), "not in lists");
}

pub async fn progress_from_another_node_is_rejected(store: TestStore) {
    let id = store.push(job("a")).await.id();
    let held = store.claim_one("a").await;
    assert_eq!(report(&store, "b", &held, 0.5, &["not mine"]).await, [id]);
    store.silence("a");
    store.advance(past_the_lease()).await;
    let new = store.claim_from("b", "a", 1).await.jobs.remove(0);
    assert_eq!(report(&store, "a", &held, 0.5, &["too late"]).await, [id]);
    assert_eq!(report(&store, "b", &new, 0.5, &["mine"]).await, []);
    let lines: Vec<_> = store.get(id).await.expect("is there").log.into_iter().map(|line| line.line).collect();
    assert_eq!(lines, ["mine"]);
}

pub async fn log_keeps_the_newest_lines(store: TestStore) {
    let id = store.push(job("a")).await.id();
    let held = store.claim_one("a").await;
    let lines: Vec<String> = (0..LOG_LINES_MAX + 20).map(|n| format!("line {n}")).collect();
    for chunk in lines.chunks(50) {
        let chunk: Vec<&str> = chunk.iter().map(String::as_str).collect();
        report(&store, "a", &held, 0.1, &chunk).await;
    }
    let log = store.get(id).await.expect("is there").log;
    assert_eq!(log.len(), LOG_LINES_MAX);
    assert_eq!((log[0].line.as_str(), log[LOG_LINES_MAX - 1].line.as_str()), ("line 20", "line 119"));
}

pub async fn result_is_kept_with_a_done_job(store: TestStore) {
    let ids = [store.push(job("a")).await.id(), store.push(job("b")).await.id()];
    let held = store.claim("a", 2).await;
    let node = store.node("a").await;
    let end = |held: &HeldJob, outcome| {
        let mut end = AttemptEnd::from_held(held, outcome, KEEP);
        end.result = Some(r#"{"sum":42}"#.into());
        end
    };
    let ends = vec![end(&held[0], Outcome::Ack), end(&held[1], Outcome::bury("no"))];
    assert!(store.store.settle(node, ends).await.expect("settles").is_empty());
    let done = store.get(ids[0]).await.expect("is kept");
    assert_eq!((done.state, done.result.as_deref()), (State::Done, Some(r#"{"sum":42}"#)));
    assert_eq!(store.get(ids[1]).await.expect("is kept").result, None, "only an ack stores a result");
}

pub async fn progress_and_log_are_removed_with_the_job(store: TestStore) {
    let id = JobId::from_name("again");
    store.push(job("a").id(id).keep(Duration::ZERO)).await;
    let held = store.claim_one("a").await;
    report(&store, "a", &held, 0.5, &["one"]).await;
    store.settle("a", &held, Outcome::Ack).await;
    assert_eq!(store.get(id).await, None);
    // After its id is forgotten, another job may use it.
    for _ in 0..3 {
        store.sleep(crate::test_store::REMEMBER);
        store.prune().await;
    }
    store.push(job("a").id(id)).await;
    let record = store.get(id).await.expect("is there");
    assert!(record.log.is_empty() && record.progress.is_none());
}
