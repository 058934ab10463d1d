//! A push delivers its job to an idle node, and a worker starts it without a claim.

use duly::Push;
use duly::store::Node;
use duly::store::{Claim, JobStore, Wake};

use super::{Kind, Location};
use crate::helpers::{LONG, open};

async fn push_delivers_its_job_to_an_idle_node(location: Location) {
    let (pusher, duly) = (open(location.url.clone()).await, open(location.url.clone()).await);
    let (store, node) = (duly.store(), Node::fresh(vec!["default".into()]));
    store.heartbeat(&node).await.expect("sends a heartbeat");
    let mut wakes = store.subscribe_wakes(node.id).await.expect("subscribes");
    store.accept_deliveries(node.id, None).await.expect("accepts");
    let claim = || Claim::new("default", 10);
    let mut is_delivered = Vec::new();
    for _ in 0..3 {
        store.claim(node.id, claim()).await.expect("claims");
        while wakes.try_recv().is_ok() {}
        let id = pusher.push(Push::new("ok", "{}")).await.expect("pushes").id();
        let wake = tokio::time::timeout(LONG, wakes.recv()).await.expect("in time").expect("open");
        is_delivered.push(matches!(wake, Wake::Job(held) if held.job.id == id));
    }
    assert_eq!(is_delivered, [true, true, true]);
    store.leave(node.id).await.expect("leaves");
}

#[tokio::test]
async fn push_delivers_its_job_to_a_waiting_node_on_redis() {
    push_delivers_its_job_to_an_idle_node(Location::new(Kind::Redis)).await;
}

#[tokio::test]
async fn push_delivers_its_job_to_a_waiting_node_on_valkey() {
    push_delivers_its_job_to_an_idle_node(Location::new(Kind::Valkey)).await;
}

#[tokio::test]
async fn push_delivers_its_job_to_a_waiting_node_on_a_cluster() {
    push_delivers_its_job_to_an_idle_node(Location::new(Kind::Cluster)).await;
}
