//! Locks and waits for jobs on a store that fails.

use std::sync::Arc;
use std::time::Duration;

use test_support::{in_time, until};

use crate::client::Duly;
use crate::clock::Clock;
use crate::peers::Peers;
use crate::store::faulty::{FaultyStore, InjectedFault};
use crate::store::{LockOwner, LockRequest, LockStore, PeerStore};

const LONG_TIMEOUT: Duration = Duration::from_secs(20);
const MS: Duration = Duration::from_millis(1);

async fn open_faulty() -> (Duly, Arc<FaultyStore>) {
    let mut duly = Duly::open(":memory:").await.expect("opens");
    let faulty = FaultyStore::new(duly.store());
    duly.store = faulty.clone();
    (duly, faulty)
}

/// Returns a request for lock `a` as a peer sends it.
fn lock_request(peers: &Peers, wait: bool) -> LockRequest {
    let (name, owner, node, lease) = ("a".to_owned(), LockOwner::fresh(), peers.node_id(), crate::node::DEFAULT_LEASE);
    LockRequest { name, owner, node, lease, slots: 1, ttl: LONG_TIMEOUT, wait, note: String::new() }
}

#[tokio::test]
async fn lock_with_lost_reply_is_held_once() {
    let (duly, faulty) = open_faulty().await;
    faulty.inject("lock", InjectedFault::LoseReply, 2);
    let guard = in_time(duly.lock("a").acquire()).await.expect("retries");
    assert_eq!(faulty.call_count("lock"), 3);
    assert_eq!(duly.locks().list(None).await.expect("lists").locks.len(), 1);
    guard.release().await.expect("is held");
    assert!(duly.locks().list(None).await.expect("lists").locks.is_empty());
}

#[tokio::test]
async fn try_acquire_with_lost_reply_leaves_no_lock() {
    let (duly, faulty) = open_faulty().await;
    faulty.inject("lock", InjectedFault::LoseReply, 1);
    duly.lock("a").try_acquire().await.expect_err("the outcome is unknown");
    until("the lock is free", async || duly.locks().list(None).await.expect("lists").locks.is_empty()).await;
}

#[tokio::test]
async fn guard_is_lost_when_extension_keeps_failing() {
    let (duly, faulty) = open_faulty().await;
    let guard = duly.lock("a").ttl(300 * MS).acquire().await.expect("is free");
    faulty.inject("extend_locks", InjectedFault::Refuse, usize::MAX);
    in_time(guard.lost()).await;
    assert!(guard.is_lost());
    assert!(faulty.call_count("extend_locks") > 2, "the extension is retried");
}

#[tokio::test]
async fn guard_is_lost_in_time_when_store_never_replies() {
    let (duly, faulty) = open_faulty().await;
    let guard = duly.lock("a").ttl(300 * MS).acquire().await.expect("is free");
    faulty.inject("extend_locks", InjectedFault::WithholdReply, usize::MAX);
    in_time(guard.lost()).await;
}

#[tokio::test]
async fn failed_extension_is_retried_and_lock_kept() {
    let (duly, faulty) = open_faulty().await;
    let guard = duly.lock("a").ttl(400 * MS).acquire().await.expect("is free");
    faulty.inject("extend_locks", InjectedFault::LoseReply, 3);
    until("the extension is retried", async || faulty.call_count("extend_locks") >= 5).await;
    assert!(!guard.is_lost());
}

#[tokio::test]
async fn dropped_guard_is_not_extended() {
    let (duly, faulty) = open_faulty().await;
    faulty.inject("unlock", InjectedFault::Refuse, 5);
    drop(duly.lock("a").ttl(300 * MS).acquire().await.expect("is free"));
    let before = faulty.call_count("extend_locks");
    until("the lock is free", async || duly.locks().list(None).await.expect("lists").locks.is_empty()).await;
    assert_eq!(faulty.call_count("extend_locks"), before, "renewal does not outlive the guard");
    assert!(faulty.call_count("unlock") > 1, "the release is retried");
}

#[tokio::test]
async fn release_with_lost_reply_succeeds() {
    let (duly, faulty) = open_faulty().await;
    let guard = duly.lock("a").acquire().await.expect("is free");
    faulty.inject("unlock", InjectedFault::LoseReply, 1);
    in_time(guard.release()).await.expect("is released");
    assert!(duly.lock("a").try_acquire().await.expect("replies").is_some());
}

#[tokio::test]
async fn release_of_lost_lock_with_lost_reply_is_rejected() {
    let (duly, faulty) = open_faulty().await;
    let guard = duly.lock("a").acquire().await.expect("is free");
    assert_eq!(duly.locks().break_lock("a").await.expect("breaks"), 1);
    in_time(guard.lost()).await;
    faulty.inject("unlock", InjectedFault::LoseReply, 1);
    assert_eq!(in_time(guard.release()).await.expect_err("was lost before").code(), "conflict");
}

#[tokio::test]
async fn lock_expired_before_reply_is_not_returned() {
    let (duly, faulty) = open_faulty().await;
    let lock = || duly.lock("a").ttl(50 * MS);
    faulty.inject("lock", InjectedFault::DelayReply(200 * MS), 1);
    let guard = in_time(lock().acquire()).await.expect("retries");
    assert!(!guard.is_lost());
    assert_eq!(faulty.call_count("lock"), 2);
    guard.release().await.expect("is held");
    faulty.inject("lock", InjectedFault::DelayReply(200 * MS), 1);
    assert_eq!(lock().try_acquire().await.expect_err("is over").code(), "timeout");
}

#[tokio::test]
async fn lock_wait_survives_store_failures() {
    let (duly, faulty) = open_faulty().await;
    let guard = duly.lock("a").acquire().await.expect("is free");
    let waiting = tokio::spawn(duly.lock("a").acquire());
    until("it waits", async || duly.lock("a").holder().await.expect("reads").is_some_and(|held| held.waiters > 0))
        .await;
    faulty.inject("lock", InjectedFault::Refuse, 3);
    guard.release().await.expect("is held");
    let next = in_time(waiting).await.expect("no panic").expect("gets it");
    assert!(next.fence() > guard.fence());
}

/// A remote client without a guard may hold the lock by now.
#[tokio::test]
async fn unwanted_lock_turn_cancels_wait_and_keeps_hold() {
    let (duly, faulty) = open_faulty().await;
    let peers = duly.peers().expect("starts");
    peers.ensure_announced().await.expect("announces");
    let (held, orphaned) = (lock_request(&peers, false), lock_request(&peers, true));
    assert!(duly.store.lock(&held).await.expect("replies").hold.is_some());
    assert!(duly.store.lock(&orphaned).await.expect("replies").hold.is_none());
    faulty.inject("cancel_wait", InjectedFault::Refuse, 2);
    for owner in [held.owner, orphaned.owner] {
        peers.inner.handle_notification(crate::store::Notification::LockTurn { name: "a".to_owned(), owner });
    }
    let holder = async || duly.lock("a").holder().await.expect("reads").expect("is held");
    until("the wait is cancelled", async || holder().await.waiters == 0 && faulty.call_count("cancel_wait") >= 4).await;
    assert_eq!(holder().await.owner, held.owner);
    assert!(duly.store.unlock(&held).await.expect("replies"), "it is held");
}

/// The process does not notice the pause, but by its own clock the time is over before the store reports it.
#[tokio::test]
async fn guard_is_lost_after_pause_longer_than_ttl() {
    let clock = Clock::manual();
    let duly = Duly::builder(":memory:").clock(clock.clone()).open().await.expect("opens");
    let guard = duly.lock("a").ttl(Duration::from_secs(30)).acquire().await.expect("is free");
    assert!(!guard.is_lost());
    clock.advance(Duration::from_secs(31));
    assert!(guard.is_lost());
    assert!(guard.remaining().is_zero());
    assert_eq!(guard.extend().await.expect_err("is over").code(), "conflict");
}

/// More connections than fit into one update. An update that fails, or takes longer than an announcement, is repeated.
#[tokio::test]
async fn connections_forgotten_by_store_are_resynced() {
    const HELD: usize = crate::store::CONNECTIONS_BATCH_MAX + 10;
    let (duly, faulty) = open_faulty().await;
    let peers = duly.peers().expect("starts");
    let names: Vec<String> = (0..HELD).map(|n| format!("connection {n:04}")).collect();
    let held = futures_util::future::join_all(names.iter().map(|name| duly.hold_connection(name.as_str()))).await;
    assert!(held.iter().all(Result::is_ok));
    assert!(faulty.call_count("set_connections") < HELD / 2, "many in one update");
    for fault in [InjectedFault::Refuse, InjectedFault::DelayReply(1_200 * MS)] {
        for batch in names.chunks(crate::store::CONNECTIONS_BATCH_MAX) {
            duly.store.set_connections(peers.node_id(), &[], batch).await.expect("forgets");
        }
        faulty.inject("refresh_connections", fault, 2);
        peers.inner.handle_notification(crate::store::Notification::Gap);
        for name in [&names[0], &names[HELD - 1]] {
            until("the connection is held again", async || {
                duly.store.connection_holder(name).await.expect("reads") == Some(peers.node_id())
            })
            .await;
        }
    }
}

/// Pushes jobs and spawns a task that waits for each.
async fn push_and_wait(duly: &Duly, jobs: usize) -> Vec<tokio::task::JoinHandle<Option<crate::JobRecord>>> {
    let pushed = duly.push_all((0..jobs).map(|_| crate::Push::new("k", "1"))).await.expect("pushes");
    let wait = |id: crate::JobId| {
        let duly = duly.clone();
        tokio::spawn(async move { duly.jobs().wait(id).await.expect("waits") })
    };
    pushed.iter().map(|pushed| wait(pushed.id())).collect()
}

async fn run_all_jobs(duly: &Duly) {
    duly.worker().on_any_kind(async |_| crate::Outcome::Ack).drain().await.expect("works");
}

#[tokio::test]
async fn thousands_of_waiters_do_not_poll_the_store() {
    const JOBS: usize = 2_000;
    let (duly, faulty) = open_faulty().await;
    let waits = push_and_wait(&duly, JOBS).await;
    until("all wait", async || faulty.call_count("get") >= 2 * JOBS).await;
    assert_eq!(
        (faulty.call_count("watch_completions"), faulty.call_count("completed_among")),
        (1, 0),
        "one watch for all"
    );
    // Without any completions.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(
        (faulty.call_count("get"), faulty.call_count("watch_completions"), faulty.call_count("completed_among")),
        (2 * JOBS, 1, 0)
    );
    run_all_jobs(&duly).await;
    for wait in waits {
        let result = tokio::time::timeout(Duration::from_secs(2), wait).await.expect("notified at once");
        assert!(result.expect("no panic").is_some_and(|record| record.state == crate::State::Done));
    }
    assert_eq!(faulty.call_count("get"), 3 * JOBS, "each once more, after it completed");
}

#[tokio::test]
async fn wait_polls_when_store_cannot_watch_completions() {
    let (duly, faulty) = open_faulty().await;
    faulty.inject("watch_completions", InjectedFault::Refuse, usize::MAX);
    let waits = push_and_wait(&duly, 3).await;
    until("it polls", async || faulty.call_count("completed_among") > 0).await;
    run_all_jobs(&duly).await;
    for wait in waits {
        assert!(in_time(wait).await.expect("no panic").is_some_and(|record| record.state == crate::State::Done));
    }
}

#[tokio::test]
async fn wait_polls_queues_beyond_watch_limit() {
    let (duly, faulty) = open_faulty().await;
    let queue = |number: usize| format!("q{number:04}");
    let push = |number| crate::Push::new("k", "1").queue(queue(number));
    let pushed = duly.push_all((0..=crate::store::COMPLETION_QUEUES_MAX).map(push)).await.expect("pushes");
    let wait = |pushed: &crate::PushResult| {
        let (duly, id) = (duly.clone(), pushed.id());
        tokio::spawn(async move { duly.jobs().wait(id).await.expect("waits") })
    };
    let mut waits: Vec<_> = pushed.iter().map(wait).collect();
    until("all wait", async || faulty.call_count("get") >= 2 * pushed.len()).await;
    // Whichever queue is beyond the limit: the first and the last by name are both reported.
    let first_and_last: Vec<_> = [waits.pop(), Some(waits.remove(0))].into_iter().flatten().collect();
    for (index, wait) in [crate::store::COMPLETION_QUEUES_MAX, 0].into_iter().zip(first_and_last) {
        duly.jobs().remove(pushed[index].id()).await.expect("is there");
        assert!(in_time(wait).await.expect("no panic").is_none(), "is gone");
    }
    waits.iter().for_each(tokio::task::JoinHandle::abort);
}

/// Breaking a lock sends one notification, which is lost during a gap.
#[tokio::test]
async fn lock_broken_during_gap_is_lost_after_gap_is_reported() {
    let (duly, faulty) = open_faulty().await;
    let peers = duly.peers().expect("starts");
    let guard = duly.lock("a").ttl(20 * LONG_TIMEOUT).acquire().await.expect("is free");
    let kept = duly.lock("b").ttl(10 * LONG_TIMEOUT).acquire().await.expect("is free");
    // Released in the name of its owner without the guard: no notification is sent.
    let request = LockRequest { owner: guard.owner(), ..lock_request(&peers, false) };
    assert!(duly.store.unlock(&request).await.expect("replies"));
    // The first request after the gap fails too.
    faulty.inject("extend_locks", InjectedFault::Refuse, 1);
    peers.inner.handle_notification(crate::store::Notification::Gap);
    in_time(guard.lost()).await;
    assert!(!kept.is_lost());
}

#[tokio::test]
async fn worker_with_full_command_queue_is_reported_busy() {
    let duly = Duly::open(":memory:").await.expect("opens");
    let peers = duly.peers().expect("starts");
    let mut node = crate::node::Node::fresh(vec!["default".to_owned()]);
    node.id = peers.worker_node_id();
    let (commands, _receiver) = tokio::sync::mpsc::channel(1);
    let _registration = peers.register_worker(&node, commands);
    let stop = async || in_time(duly.call("duly.stop", &()).node(node.id).reply::<u64>()).await;
    assert_eq!(stop().await.expect("accepts the command"), 1);
    let id = crate::job::JobId::fresh();
    let args = serde_json::json!({ "id": id });
    let cancel = in_time(duly.call("duly.cancel", &args).node(node.id).reply::<bool>()).await;
    for result in [stop().await.map(drop), cancel.map(drop)] {
        let error = result.expect_err("the command queue is full").to_string();
        assert!(error.contains("has not executed earlier commands"), "{error}");
    }
}

#[tokio::test]
async fn failed_connection_removal_is_retried() {
    let (duly, faulty) = open_faulty().await;
    let held = duly.hold_connection("browser 7").await.expect("is free");
    faulty.inject("set_connections", InjectedFault::Refuse, 1);
    drop(held);
    until("the connection is removed", async || {
        duly.store.connection_holder("browser 7").await.expect("reads").is_none()
    })
    .await;
    assert!(faulty.call_count("set_connections") >= 3);
}

#[tokio::test]
async fn lock_timeout_error_names_store_failure() {
    let (duly, faulty) = open_faulty().await;
    faulty.inject("lock", InjectedFault::Refuse, usize::MAX);
    let error = in_time(duly.lock("a").wait(200 * MS).acquire()).await.expect_err("no answer").to_string();
    assert!(error.contains("rejected on demand"), "{error}");
}
