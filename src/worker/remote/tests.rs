//! Remote nodes on a store that fails.

use std::time::Duration;

use super::*;
use crate::job::push::{Push, PushResult};
use crate::job::{HeldJob, State};
use crate::node::Node;
use crate::store::Claim;
use crate::store::faulty::{FaultyStore, InjectedFault};

/// Returns a store that fails on demand, with one job in it.
async fn store_with_job() -> (Duly, Arc<FaultyStore>) {
    let mut duly = Duly::open(":memory:").await.expect("opens");
    let store = FaultyStore::new(duly.store());
    duly.store = store.clone();
    duly.push(Push::new("work", "1")).await.expect("pushes");
    (duly, store)
}

/// A resync lists the job while a settle records it: the late reply must not deliver the job again.
#[tokio::test]
async fn resync_does_not_deliver_a_job_settled_meanwhile() {
    let (duly, store) = store_with_job().await;
    let node = RemoteNodes::new(duly)
        .join("ada", vec!["default".into()], Vec::new(), DEFAULT_REMOTE_LEASE)
        .await
        .expect("joins");
    let held = node.claim(1, Duration::ZERO).await.expect("claims").pop().expect("the job");
    store.inject("claim", InjectedFault::LoseReply, 1);
    node.claim(1, Duration::ZERO).await.expect_err("its reply is lost");
    store.inject("claim", InjectedFault::DelayReply(Duration::from_millis(300)), 1);
    let settlement = Settlement { id: held.job.id, fence: held.fence, outcome: ReportedOutcome::Ack, result: None };
    let settled = async {
        // The store has made the list by then, and its reply has not arrived.
        tokio::time::sleep(Duration::from_millis(100)).await;
        node.settle(vec![settlement]).await
    };
    let (again, settled) = tokio::join!(node.claim(1, Duration::ZERO), settled);
    assert_eq!(settled.expect("settles"), [], "it was held");
    assert!(again.expect("claims").is_empty(), "it is not delivered twice");
    assert!(node.claim(1, Duration::ZERO).await.expect("claims").is_empty(), "nor later");
}

/// A settle is recorded, its reply is lost, and a resync removes the job. A repeated settle must not report it lost.
#[tokio::test]
async fn repeated_settle_after_lost_reply_is_not_lost() {
    let (duly, store) = store_with_job().await;
    let node = RemoteNodes::new(duly)
        .join("ada", vec!["default".into()], Vec::new(), DEFAULT_REMOTE_LEASE)
        .await
        .expect("joins");
    let held = node.claim(1, Duration::ZERO).await.expect("claims").pop().expect("the job");
    let ack = |fence| vec![Settlement { id: held.job.id, fence, outcome: ReportedOutcome::Ack, result: None }];
    store.inject("settle", InjectedFault::LoseReply, 1);
    node.settle(ack(held.fence)).await.expect_err("its reply is lost");
    store.inject("claim", InjectedFault::LoseReply, 1);
    node.claim(1, Duration::ZERO).await.expect_err("and that of a claim");
    assert!(node.claim(1, Duration::ZERO).await.expect("resyncs").is_empty());
    assert_eq!(node.settle(ack(held.fence)).await.expect("repeats"), []);
    assert_eq!(node.heartbeat(Some(&[held.job.id])).await.expect("heartbeat").lost, []);
    let older = crate::job::Fence(held.fence.0 - 1);
    assert_eq!(node.settle(ack(older)).await.expect("another claim"), [held.job.id], "which was not recorded");
}

/// As above, but the node claims the job again before a resync.
#[tokio::test]
async fn repeated_settle_of_a_job_claimed_again_is_not_lost() {
    let (duly, store) = store_with_job().await;
    let node = RemoteNodes::new(duly)
        .join("ada", vec!["default".into()], Vec::new(), DEFAULT_REMOTE_LEASE)
        .await
        .expect("joins");
    let first = node.claim(1, Duration::ZERO).await.expect("claims").pop().expect("the job");
    let report = |outcome, fence| vec![Settlement { id: first.job.id, fence, outcome, result: None }];
    let release = || ReportedOutcome::Release { after: Duration::ZERO };
    store.inject("settle", InjectedFault::LoseReply, 1);
    node.settle(report(release(), first.fence)).await.expect_err("its reply is lost");
    let again = node.claim(1, Duration::ZERO).await.expect("claims").pop().expect("the job again");
    assert!(again.fence > first.fence);
    assert_eq!(node.settle(report(release(), first.fence)).await.expect("repeats"), []);
    assert_eq!(node.settle(report(ReportedOutcome::Ack, again.fence)).await.expect("settles"), [], "it is still held");
}

/// The node leaves even if its jobs cannot be released: no later request could repeat it.
#[tokio::test]
async fn node_leaves_although_the_release_of_its_jobs_fails() {
    let (duly, store) = store_with_job().await;
    let nodes = RemoteNodes::new(duly.clone());
    let node = nodes.join("ada", vec!["default".into()], Vec::new(), DEFAULT_REMOTE_LEASE).await.expect("joins");
    node.claim(1, Duration::ZERO).await.expect("claims").pop().expect("the job");
    store.inject("settle", InjectedFault::Refuse, 1);
    nodes.leave(node.id(), None).await.expect_err("reports the failure");
    assert!(!duly.nodes().list().await.expect("lists").iter().any(|record| record.id == node.id() && record.alive));
}

/// The node has settled an overdue job without the worker: a late report of the worker was not recorded.
#[tokio::test]
async fn overdue_job_is_lost_whatever_the_worker_reports() {
    let duly = Duly::open(":memory:").await.expect("opens");
    duly.push(Push::new("work", "1").timeout(Duration::from_millis(1))).await.expect("pushes");
    let node = RemoteNodes::new(duly)
        .join("ada", vec!["default".into()], Vec::new(), DEFAULT_REMOTE_LEASE)
        .await
        .expect("joins");
    let held = node.claim(1, Duration::ZERO).await.expect("claims").pop().expect("the job");
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(node.heartbeat(Some(&[held.job.id])).await.expect("heartbeat").lost, [held.job.id], "it has timed out");
    assert_eq!(node.heartbeat(Some(&[held.job.id])).await.expect("heartbeat").lost, [held.job.id], "and is still lost");
    let ack = vec![Settlement { id: held.job.id, fence: held.fence, outcome: ReportedOutcome::Ack, result: None }];
    assert_eq!(node.settle(ack).await.expect("settles"), [held.job.id]);
}

/// Lets nodes die while they hold all jobs of the queue.
async fn crash_all_jobs(duly: &Duly, times: usize) {
    for _ in 0..times {
        let (dead, next) = (Node::fresh(vec!["default".into()]), Node::fresh(vec!["default".into()]));
        for node in [&dead, &next] {
            duly.store.heartbeat(node).await.expect("joins");
        }
        duly.store.claim(dead.id, Claim::new("default", 9)).await.expect("claims");
        take_back(duly, dead.id, &next).await;
        duly.store.leave(next.id).await.expect("leaves");
    }
}

async fn take_back(duly: &Duly, dead: NodeId, next: &Node) {
    duly.store.leave(dead).await.expect("its jobs can be taken back at once");
    let claim = Claim { suspect: Some(dead), ..Claim::new("default", 0) };
    duly.store.claim(next.id, claim).await.expect("takes back");
}

fn kinds(jobs: &[Arc<HeldJob>]) -> Vec<&str> {
    jobs.iter().map(|held| &*held.job.kind).collect()
}

/// Two jobs were held during two crashes: the worker gets one of them, alone, then the other, then a new one.
#[tokio::test]
async fn crash_suspects_are_delivered_one_by_one() {
    let duly = Duly::open(":memory:").await.expect("opens");
    duly.push_all(["one", "two"].map(|kind| Push::new(kind, "1"))).await.expect("pushes");
    crash_all_jobs(&duly, 2).await;
    duly.push(Push::new("new", "1")).await.expect("pushes");
    let node = RemoteNodes::new(duly.clone())
        .join("ada", vec!["default".into()], Vec::new(), DEFAULT_REMOTE_LEASE)
        .await
        .expect("joins");
    for kind in ["one", "two", "new"] {
        let held = node.claim(9, Duration::ZERO).await.expect("claims");
        assert_eq!(kinds(&held), [kind]);
        assert!(node.claim(9, Duration::ZERO).await.expect("claims").is_empty(), "nothing beside {kind}");
        let ack = Settlement::new(held[0].job.id, held[0].fence, ReportedOutcome::Ack);
        assert_eq!(node.settle(vec![ack]).await.expect("settles"), []);
    }
}

/// Only the suspect that was alone at its worker's death gets another crash, and none does if this process dies. A
/// suspect that waits is given back when the worker leaves.
#[tokio::test]
async fn crash_of_a_remote_worker_counts_for_its_lone_job_only() {
    let duly = Duly::open(":memory:").await.expect("opens");
    let ids = duly.push_all(["one", "two"].map(|kind| Push::new(kind, "1"))).await.expect("pushes");
    crash_all_jobs(&duly, 2).await;
    let nodes = RemoteNodes::new(duly.clone());
    let next = Node::fresh(vec!["default".into()]);
    duly.store.heartbeat(&next).await.expect("joins");
    let crashes = async |index: usize| {
        let record = duly.jobs().get(PushResult::id(&ids[index])).await.expect("reads").expect("is there");
        (record.state, record.crashes)
    };
    let node = nodes.join("ada", vec!["default".into()], Vec::new(), DEFAULT_REMOTE_LEASE).await.expect("joins");
    assert_eq!(kinds(&node.claim(9, Duration::ZERO).await.expect("claims")), ["one"]);
    // As if the store had lost this process, and with it all its nodes.
    take_back(&duly, node.id(), &next).await;
    assert_eq!((crashes(0).await, crashes(1).await), ((State::Ready, 2), (State::Ready, 2)), "the worker lives");

    let node = nodes.join("ada", vec!["default".into()], Vec::new(), LEASE_MIN).await.expect("joins");
    assert_eq!(kinds(&node.claim(9, Duration::ZERO).await.expect("claims")), ["one"]);
    test_support::until("the worker has been silent for its lease", async || nodes.get(node.id(), None).is_err()).await;
    test_support::until("its jobs are taken back", async || {
        duly.store.heartbeat(&next).await.expect("heartbeat");
        let claim = Claim { suspect: Some(node.id()), ..Claim::new("default", 0) };
        duly.store.claim(next.id, claim).await.expect("takes back").taken_back > 0
    })
    .await;
    assert_eq!((crashes(0).await, crashes(1).await), ((State::Ready, 3), (State::Ready, 2)));

    let node = nodes.join("ada", vec!["default".into()], Vec::new(), DEFAULT_REMOTE_LEASE).await.expect("joins");
    assert_eq!(kinds(&node.claim(9, Duration::ZERO).await.expect("claims")), ["one"]);
    nodes.leave(node.id(), None).await.expect("leaves");
    assert_eq!((crashes(0).await, crashes(1).await), ((State::Ready, 3), (State::Ready, 2)), "it did not die");
}

/// Pushes jobs with args of this length.
async fn push_large(duly: &Duly, jobs: usize, bytes: usize) {
    let args = format!("\"{}\"", "x".repeat(bytes - 2));
    duly.push_all((0..jobs).map(|_| Push::new("work", args.clone()))).await.expect("pushes");
}

/// Ready and running jobs of the queue.
async fn counts(duly: &Duly) -> (u64, u64) {
    let counts = duly.queues().counts().await.expect("counts");
    (counts[0].ready, counts[0].running)
}

#[tokio::test]
async fn claim_of_large_jobs_leaves_the_rest_ready() {
    const BYTES: usize = 1024 * 1024;
    const FITTING: usize = CLAIM_BYTES_MAX / BYTES;
    let duly = Duly::open(":memory:").await.expect("opens");
    push_large(&duly, 3 * FITTING, BYTES).await;
    let nodes = RemoteNodes::new(duly.clone());
    let node = nodes.join("ada", vec!["default".into()], Vec::new(), DEFAULT_REMOTE_LEASE).await.expect("joins");
    let first = node.claim(1_000, Duration::ZERO).await.expect("claims");
    assert_eq!((first.len(), counts(&duly).await), (FITTING, (2 * FITTING as u64, FITTING as u64)));
    assert!(first.iter().all(|held| held.job.args.len() == BYTES), "each with its args");
    let held_bytes = || -> usize { node.state().describe_held(|held| held.job.args.len()).iter().sum() };
    assert_eq!(held_bytes(), 0, "the node keeps no args of delivered jobs");

    // Two requests at once, whose replies go nowhere: they collect no more than one reply may contain.
    let all = async || tokio::join!(node.clone().claim_from_store(1_000), node.clone().claim_from_store(1_000));
    let (one, other) = all().await;
    assert!(one.is_ok() && other.is_ok());
    assert_eq!((held_bytes(), counts(&duly).await), (CLAIM_BYTES_MAX, (FITTING as u64, 2 * FITTING as u64)));
    let second = node.claim(1_000, Duration::ZERO).await.expect("claims");
    assert_eq!((second.len(), held_bytes()), (FITTING, 0));
    let acks = first.iter().chain(&second).map(|held| Settlement::new(held.job.id, held.fence, ReportedOutcome::Ack));
    assert_eq!(node.settle(acks.collect()).await.expect("settles"), []);
    let left = duly.queues().counts().await.expect("counts")[0].bytes;
    assert_eq!(left, (FITTING * BYTES) as u64, "the args of done jobs are subtracted");
    nodes.leave(node.id(), None).await.expect("leaves");
}

#[tokio::test]
async fn worker_with_the_most_jobs_gets_further_ones_after_a_settle() {
    let duly = Duly::open(":memory:").await.expect("opens");
    push_large(&duly, JOBS_HELD_MAX + 2, 3).await;
    let node = RemoteNodes::new(duly.clone())
        .join("ada", vec!["default".into()], Vec::new(), DEFAULT_REMOTE_LEASE)
        .await
        .expect("joins");
    let mut held = Vec::new();
    while held.len() < JOBS_HELD_MAX {
        let claimed = node.claim(1_000, Duration::ZERO).await.expect("claims");
        assert!(!claimed.is_empty(), "{} are held", held.len());
        held.extend(claimed);
    }
    assert!(node.claim(1_000, Duration::ZERO).await.expect("claims").is_empty());
    assert_eq!(counts(&duly).await, (2, JOBS_HELD_MAX as u64));
    let settle = async {
        while !node.has_waiting_claim() {
            tokio::task::yield_now().await;
        }
        let ack = Settlement::new(held[0].job.id, held[0].fence, ReportedOutcome::Ack);
        node.settle(vec![ack]).await.expect("settles")
    };
    let (claimed, lost) = tokio::join!(node.claim(1_000, DEFAULT_REMOTE_LEASE), settle);
    assert_eq!((claimed.expect("claims").len(), lost), (1, Vec::new()), "the waiting claim gets one at once");
}

/// A resync lists jobs without args, so a job that no reply has contained is released and claimed again.
#[tokio::test]
async fn job_whose_claim_was_lost_comes_with_its_args() {
    let (duly, store) = store_with_job().await;
    let node = RemoteNodes::new(duly.clone())
        .join("ada", vec!["default".into()], Vec::new(), DEFAULT_REMOTE_LEASE)
        .await
        .expect("joins");
    store.inject("claim", InjectedFault::LoseReply, 1);
    node.claim(1, Duration::ZERO).await.expect_err("its reply is lost");
    let held = node.claim(1, DEFAULT_REMOTE_LEASE / 3).await.expect("claims").pop().expect("the job");
    assert_eq!((held.job.args.as_str(), held.attempts, held.crashes), ("1", 0, 0));
    let ack = Settlement::new(held.job.id, held.fence, ReportedOutcome::Ack);
    assert_eq!(node.settle(vec![ack]).await.expect("settles"), []);
}

/// Two workers that take every other kind do not pass a job of the excluded kind back and forth.
#[tokio::test]
async fn job_of_the_excluded_kind_is_left_to_other_workers() {
    let duly = Duly::open(":memory:").await.expect("opens");
    let nodes = RemoteNodes::new(duly.clone()).exclude_kind("command");
    let named = nodes.join("ada", vec!["default".into()], vec!["command".into()], DEFAULT_REMOTE_LEASE).await;
    assert!(matches!(named, Err(Error::Invalid { field: "kinds", .. })));
    let join =
        async || nodes.join("ada", vec!["default".into()], Vec::new(), DEFAULT_REMOTE_LEASE).await.expect("joins");
    let (one, other) = (join().await, join().await);
    let command = duly.push(Push::new("command", "{}")).await.expect("pushes");
    duly.push(Push::new("work", "1")).await.expect("pushes");
    assert_eq!(
        kinds(&one.claim(9, DEFAULT_REMOTE_LEASE).await.expect("claims")),
        ["work"],
        "the next job is not held up"
    );
    for _ in 0..3 {
        for node in [&one, &other] {
            assert!(node.claim(9, Duration::ZERO).await.expect("claims").is_empty());
        }
    }
    let record = duly.jobs().get(command.id()).await.expect("reads").expect("is there");
    assert_eq!((record.state, record.attempts, record.crashes), (State::Scheduled, 0, 0));
    let local = Node::fresh(vec!["default".into()]);
    duly.store.heartbeat(&local).await.expect("joins");
    let claim = Claim { kinds: Some(["command".to_owned()].into()), ..Claim::new("default", 9) };
    let held = duly.store.claim(local.id, claim).await.expect("claims").jobs;
    assert_eq!(held.iter().map(|held| (held.job.id, held.fence.0 > 0)).collect::<Vec<_>>(), [(command.id(), true)]);
}

#[tokio::test]
async fn queues_are_pruned_when_a_worker_leaves() {
    let (duly, store) = store_with_job().await;
    let nodes = RemoteNodes::new(duly.clone());
    for leaves_alone in [true, false] {
        let before = store.call_count("prune");
        let node = nodes
            .join("ada", vec!["default".into(), "mail".into()], Vec::new(), DEFAULT_REMOTE_LEASE)
            .await
            .expect("joins");
        match leaves_alone {
            true => nodes.leave(node.id(), None).await.expect("leaves"),
            false => nodes.leave_all().await,
        }
        assert!(store.call_count("prune") >= before + 2, "both queues");
    }
}

#[tokio::test]
async fn queue_is_pruned_soon_after_a_worker_joins() {
    let (duly, store) = store_with_job().await;
    let nodes = RemoteNodes::new(duly);
    let _node = nodes.join("ada", vec!["default".into()], Vec::new(), DEFAULT_REMOTE_LEASE).await.expect("joins");
    let pruned = async {
        while store.call_count("prune") == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), pruned).await.expect("not only after a minute");
}
