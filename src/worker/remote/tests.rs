//! Remote nodes on a store that fails.

use std::time::Duration;

use super::*;
use crate::job::push::Push;
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
    let node = RemoteNodes::new(duly).join("ada", vec!["default".into()], Vec::new(), LEASE).await.expect("joins");
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
    let node = RemoteNodes::new(duly).join("ada", vec!["default".into()], Vec::new(), LEASE).await.expect("joins");
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
    let node = RemoteNodes::new(duly).join("ada", vec!["default".into()], Vec::new(), LEASE).await.expect("joins");
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
    let node = nodes.join("ada", vec!["default".into()], Vec::new(), LEASE).await.expect("joins");
    node.claim(1, Duration::ZERO).await.expect("claims").pop().expect("the job");
    store.inject("settle", InjectedFault::Refuse, 1);
    nodes.leave(node.id(), None).await.expect_err("reports the failure");
    assert!(!duly.nodes().await.expect("lists").iter().any(|record| record.id == node.id() && record.alive));
}

/// The node has settled an overdue job without the worker: a late report of the worker was not recorded.
#[tokio::test]
async fn overdue_job_is_lost_whatever_the_worker_reports() {
    let duly = Duly::open(":memory:").await.expect("opens");
    duly.push(Push::new("work", "1").timeout(Duration::from_millis(1))).await.expect("pushes");
    let node = RemoteNodes::new(duly).join("ada", vec!["default".into()], Vec::new(), LEASE).await.expect("joins");
    let held = node.claim(1, Duration::ZERO).await.expect("claims").pop().expect("the job");
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(node.heartbeat(Some(&[held.job.id])).await.expect("heartbeat").lost, [held.job.id], "it has timed out");
    assert_eq!(node.heartbeat(Some(&[held.job.id])).await.expect("heartbeat").lost, [held.job.id], "and is still lost");
    let ack = vec![Settlement { id: held.job.id, fence: held.fence, outcome: ReportedOutcome::Ack, result: None }];
    assert_eq!(node.settle(ack).await.expect("settles"), [held.job.id]);
}
