//! A push puts its job into the hands of a node that waits, and a worker starts it without a claim.

use duly::store::{Claim, Wake};
use duly::{Node, Push};

use super::{Kind, Location};
use crate::helpers::{LONG, open};

async fn a_push_puts_its_job_into_the_hands_of_a_node_that_waits(location: Location) {
    let (pusher, duly) = (open(location.url.clone()).await, open(location.url.clone()).await);
    let (store, node) = (duly.store(), Node::fresh(vec!["default".into()]));
    store.heartbeat(&node).await.expect("beats");
    let mut wakes = store.subscribe_wakes(node.id).await.expect("subscribes");
    store.accept_deliveries(node.id, None).await.expect("accepts");
    let claim = || Claim { queue: "default".into(), max: 10, resync: false, suspect: None, kinds: None };
    let mut given = Vec::new();
    for _ in 0..3 {
        store.claim(node.id, claim()).await.expect("claims");
        while wakes.try_recv().is_ok() {}
        let id = pusher.push(Push::new("ok", "{}")).await.expect("pushes").id();
        let wake = tokio::time::timeout(LONG, wakes.recv()).await.expect("in time").expect("open");
        given.push(matches!(wake, Wake::Job(held) if held.job.id == id));
    }
    assert_eq!(given, [true, true, true]);
    store.leave(node.id).await.expect("leaves");
}

#[tokio::test]
async fn push_delivers_its_job_to_a_waiting_node_on_redis() {
    a_push_puts_its_job_into_the_hands_of_a_node_that_waits(Location::new(Kind::Redis)).await;
}

#[tokio::test]
async fn push_delivers_its_job_to_a_waiting_node_on_valkey() {
    a_push_puts_its_job_into_the_hands_of_a_node_that_waits(Location::new(Kind::Valkey)).await;
}

#[tokio::test]
async fn push_delivers_its_job_to_a_waiting_node_on_a_cluster() {
    a_push_puts_its_job_into_the_hands_of_a_node_that_waits(Location::new(Kind::Cluster)).await;
}
