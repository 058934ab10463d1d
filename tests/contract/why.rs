//! `why`: one case for each reason that a job is not running.

use std::sync::Arc;

use duly::admin::Why;
use duly::store::{JobStore, Node, PeerStore, TransferStore};
use duly::worker::Event;
use duly::{CancellationToken, Ctx, JobId, NodeId, Outcome};

use crate::test_store::*;

async fn why(store: &TestStore, id: JobId) -> Why {
    let reason = store.duly.jobs().why(id).await.expect("replies");
    assert!(!reason.to_string().contains('\n'), "one line: {reason}");
    reason
}

/// A node with handlers for these kinds and this many slots.
async fn node_with(store: &TestStore, kinds: &[&str], slots: u64) -> Node {
    let mut node = Node::fresh(vec!["default".into()]);
    node.profile.kinds = Some(kinds.iter().map(|kind| (*kind).into()).collect());
    node.profile.slots = Some(slots);
    node.profile.limits = [("default".to_owned(), slots)].into();
    store.store.heartbeat(&node).await.expect("sends a heartbeat");
    node
}

pub async fn why_names_an_unknown_job(store: TestStore) {
    assert_eq!(why(&store, JobId::from_name("never")).await, Why::NotFound);
}

pub async fn why_names_a_later_due_time(store: TestStore) {
    let id = store.push(job("one").after(100 * SECOND)).await.id();
    let due = store.now() + 100 * SECOND;
    assert_eq!(why(&store, id).await, Why::DueLater { due });
    store.node("a").await;
    store.store.set_paused("default", true).await.expect("pauses");
    assert_eq!(why(&store, id).await, Why::DueLater { due }, "the first reason that applies");
}

pub async fn why_names_a_paused_queue(store: TestStore) {
    let id = store.push(job("one")).await.id();
    store.node("a").await;
    store.store.set_paused("default", true).await.expect("pauses");
    let reason = why(&store, id).await;
    assert_eq!(reason, Why::Paused { queue: "default".into() });
    assert_eq!(reason.to_string(), "its queue default is paused: it runs once the queue is resumed");
}

pub async fn why_names_a_moving_queue(store: TestStore) {
    let id = store.push(job("one")).await.id();
    store.node("a").await;
    store.store.set_transfer_mark("default", NodeId::fresh(), Some("there")).await.expect("marks");
    assert!(matches!(why(&store, id).await, Why::Moving { moving, .. } if moving.to == "there"));
}

pub async fn why_names_a_queue_without_workers(store: TestStore) {
    let id = store.push(job("one")).await.id();
    assert_eq!(why(&store, id).await, Why::NoNode { queue: "default".into(), due: None });
    store.node("a").await;
    store.silence("a");
    store.advance(past_the_lease()).await;
    assert_eq!(
        why(&store, id).await,
        Why::NoNode { queue: "default".into(), due: None },
        "a node without heartbeats does not count"
    );
}

pub async fn why_names_a_kind_without_handler(store: TestStore) {
    let id = store.push(job("mail")).await.id();
    node_with(&store, &["resize"], 9).await;
    let reason = why(&store, id).await;
    assert_eq!(reason, Why::UnknownKind { queue: "default".into(), kind: "mail".into(), nodes: 1 });
    store.node("reports no kinds").await;
    assert!(matches!(why(&store, id).await, Why::Next { .. }), "a node that reports no kinds may have a handler");
}

pub async fn why_names_a_deferred_kind_without_handler(store: TestStore) {
    let id = store.push(job("mail")).await.id();
    let node = node_with(&store, &["resize"], 9).await;
    let held = store.store.claim(node.id, claim(1)).await.expect("claims").jobs;
    let end = duly::store::AttemptEnd::from_held(&held[0], Outcome::release(30 * SECOND), KEEP);
    store.store.settle(node.id, vec![end]).await.expect("settles");
    assert_eq!(why(&store, id).await.code(), "unknown_kind");
}

pub async fn why_names_a_job_that_crashed_several_nodes(store: TestStore) {
    let id = store.push(job("one")).await.id();
    store.claim_one("a").await;
    for node in ["b", "c"] {
        store.node(node).await;
    }
    store.silence("a");
    store.advance(past_the_lease() + SECOND).await;
    assert_eq!(store.claim_from("b", "a", 1).await.jobs[0].crashes, 1);
    store.silence("b");
    store.advance(past_the_lease() + SECOND).await;
    let held = store.claim_from("c", "b", 1).await.jobs;
    store.settle("c", &held[0], Outcome::release(2 * SECOND)).await;
    let due = store.now() + 2 * SECOND;
    let reason = why(&store, id).await;
    assert_eq!(reason, Why::Suspect { due, crashes: 2 });
    assert_eq!(reason.code(), "suspect");
}

pub async fn why_names_busy_slots(store: TestStore) {
    let node = node_with(&store, &["one"], 1).await;
    store.push(job("one")).await;
    store.store.claim(node.id, claim(1)).await.expect("claims");
    let id = store.push(job("one")).await.id();
    let busy = Why::SlotsBusy { queue: "default".into(), nodes: 1, running: 1, ready: 1 };
    assert_eq!(why(&store, id).await, busy);
    node_with(&store, &["one"], 1).await;
    assert_eq!(why(&store, id).await.code(), "next", "another node has room");
}

pub async fn why_names_quiet_nodes(store: TestStore) {
    let mut node = node_with(&store, &["one"], 1).await;
    let id = store.push(job("one")).await.id();
    node.profile.quiet = true;
    store.store.heartbeat(&node).await.expect("sends a heartbeat");
    assert_eq!(why(&store, id).await, Why::Quiet { queue: "default".into(), nodes: 1 });
    let nodes = store.store.nodes().await.expect("nodes");
    assert!(nodes.iter().any(|listed| listed.id == node.id && listed.profile.quiet), "it is listed as quiet");
    node.profile.quiet = false;
    store.store.heartbeat(&node).await.expect("sends a heartbeat");
    assert_eq!(why(&store, id).await.code(), "next");
    let nodes = store.store.nodes().await.expect("nodes");
    assert!(
        nodes.iter().any(|listed| listed.id == node.id && !listed.profile.quiet && listed.profile.slots == Some(1))
    );
}

pub async fn why_names_the_node_that_holds_a_job(store: TestStore) {
    let id = store.push(job("one")).await.id();
    store.advance(SECOND).await;
    store.claim_one("a").await;
    let claimed = store.now();
    store.advance(SECOND).await;
    let Why::Held { node, since, alive, host, cancelling: false, waits_for: None, .. } = why(&store, id).await else {
        panic!("it is held");
    };
    assert_eq!((node, since, alive), (store.node("a").await, claimed, true));
    assert!(host.is_some_and(|host| !host.is_empty()));
}

pub async fn why_counts_the_jobs_that_a_crash_suspect_waits_for(store: TestStore) {
    let id = store.push(job("one")).await.id();
    store.claim_one("a").await;
    for (dead, next) in [("a", "b"), ("b", "c")] {
        store.node(next).await;
        store.silence(dead);
        store.advance(past_the_lease() + SECOND).await;
        store.claim_from(next, dead, 1).await;
    }
    assert!(matches!(why(&store, id).await, Why::Held { waits_for: None, .. }), "it may run alone");
    store.push(job("two")).await;
    store.claim_one("c").await;
    let reason = why(&store, id).await;
    assert!(matches!(reason, Why::Held { waits_for: Some(1), .. }), "{reason:?}");
    assert!(reason.to_string().contains("it may wait there until 1 other job has ended"), "{reason}");
}

pub async fn why_names_a_silent_node(store: TestStore) {
    let id = store.push(job("one")).await.id();
    store.claim_one("a").await;
    store.silence("a");
    store.advance(past_the_lease()).await;
    let reason = why(&store, id).await;
    let Why::Held { alive: false, return_command: Some(command), .. } = &reason else {
        panic!("no live node can take it back: {reason:?}");
    };
    assert!(command.starts_with("duly work --queue default"), "{command}");
    assert!(reason.to_string().ends_with(command), "{reason}");
    store.node("b").await;
    let reason = why(&store, id).await;
    assert!(matches!(reason, Why::Held { alive: false, return_command: None, .. }), "b takes it back: {reason:?}");
}

pub async fn why_names_a_backoff(store: TestStore) {
    let id = store.push(job("one").max_attempts(4)).await.id();
    let held = store.claim_one("a").await;
    store.settle("a", &held, Outcome::retry(10 * SECOND, "no\nroute")).await;
    let reason = why(&store, id).await;
    let (due, error) = (store.now() + 10 * SECOND, Some("no\nroute".into()));
    assert_eq!(reason, Why::BackingOff { due, attempts: 1, max_attempts: 4, error });
    assert!(reason.to_string().starts_with("attempt 1 of at most 4 has failed (no route); the next one is due at "));
    store.advance(10 * SECOND).await;
    assert_eq!(why(&store, id).await.code(), "next", "it is due");
}

pub async fn why_names_a_done_job(store: TestStore) {
    let id = store.push(job("one")).await.id();
    let held = store.claim_one("a").await;
    store.settle("a", &held, Outcome::Ack).await;
    assert_eq!(why(&store, id).await, Why::Done { ended: Some(store.now()) });
}

pub async fn why_names_a_dead_job(store: TestStore) {
    let id = store.push(job("one").unique("k")).await.id();
    let held = store.claim_one("a").await;
    store.settle("a", &held, Outcome::bury("no such user")).await;
    assert_eq!(why(&store, id).await, Why::Dead { ended: Some(store.now()), error: Some("no such user".into()) });
}

pub async fn why_names_a_dead_job_with_taken_key(store: TestStore) {
    let id = store.push(job("one").unique("k")).await.id();
    let held = store.claim_one("a").await;
    store.settle("a", &held, Outcome::bury("no")).await;
    let other = store.push(job("one").unique("k")).await.id();
    let holder = Why::UniqueHolder { key: "k".into(), holder: other, error: Some("no".into()) };
    assert_eq!(why(&store, id).await, holder);
    assert_eq!(why(&store, other).await.code(), "next", "the holder itself only waits");
}

pub async fn why_names_a_job_that_comes_next(store: TestStore) {
    store.push(job("one")).await;
    let id = store.push(job("one")).await.id();
    store.node("a").await;
    assert_eq!(why(&store, id).await, Why::Next { queue: "default".into(), ready: 2 });
}

pub async fn why_uses_the_kinds_a_worker_reports(store: TestStore) {
    let (stop, joined) = (CancellationToken::new(), Arc::new(tokio::sync::Notify::new()));
    let notify = joined.clone();
    let worker = store.duly.worker().queue("default", 3).on_kind("resize", async |_: Ctx| ()).on_event(move |event| {
        if matches!(event, Event::Joined { .. }) {
            notify.notify_one()
        }
    });
    let work = tokio::spawn(worker.run_until(stop.clone()));
    tokio::time::timeout(TIMEOUT, joined.notified()).await.expect("joins");
    let nodes = store.duly.nodes().list().await.expect("lists");
    let profile = &nodes.iter().find(|node| node.profile.slots.is_some()).expect("reports its slots").profile;
    assert_eq!((profile.kinds.clone(), profile.slots), (Some(vec!["resize".to_owned()]), Some(3)));
    stop.cancel();
    work.await.expect("no panic").expect("ends well");
}
