//! Wakes: a change wakes exactly one idle node at once.

use duly::store::{JobStore, Wake};
use tokio::sync::mpsc::Receiver;

use crate::test_store::*;

/// A node that has claimed nothing and is idle.
async fn idle_node(store: &TestStore, name: &'static str) -> Receiver<Wake> {
    let node = store.node(name).await;
    let wakes = store.store.subscribe_wakes(node).await.expect("subscribes");
    assert!(store.claim(name, 1).await.is_empty());
    wakes
}

async fn next_wake(wakes: &mut Receiver<Wake>) -> Wake {
    tokio::time::timeout(TIMEOUT, wakes.recv()).await.expect("in time").expect("open")
}

fn default_queue() -> Wake {
    Wake::Queue("default".into())
}

pub async fn push_wakes_a_waiting_node(store: TestStore) {
    let mut wakes = idle_node(&store, "a").await;
    store.push(job("one")).await;
    assert_eq!(next_wake(&mut wakes).await, default_queue());
}

pub async fn push_wakes_only_one_node(store: TestStore) {
    let mut a = idle_node(&store, "a").await;
    let mut b = idle_node(&store, "b").await;
    store.push(job("one")).await;
    // The wake of a push is sent before the next push returns.
    store.push(job("elsewhere").queue("other")).await;
    let woken = [a.try_recv().is_ok(), b.try_recv().is_ok()];
    assert_eq!(woken.iter().filter(|woken| **woken).count(), 1);
}

pub async fn push_into_another_queue_wakes_no_node(store: TestStore) {
    let mut wakes = idle_node(&store, "a").await;
    store.push(job("one").queue("other")).await;
    store.push(job("one").queue("another")).await;
    assert!(wakes.try_recv().is_err());
}

pub async fn push_wakes_only_if_due_earlier(store: TestStore) {
    store.push(job("later").after(10 * SECOND)).await;
    let mut wakes = idle_node(&store, "a").await;
    store.push(job("much later").after(100 * SECOND)).await;
    store.push(job("elsewhere").queue("other")).await;
    assert!(wakes.try_recv().is_err(), "the node claims before that anyway");
    store.push(job("sooner").after(SECOND)).await;
    assert_eq!(next_wake(&mut wakes).await, default_queue());
}

pub async fn resume_wakes_a_waiting_node(store: TestStore) {
    store.store.set_paused("default", true).await.expect("pauses");
    store.push(job("one")).await;
    let mut wakes = idle_node(&store, "a").await;
    store.store.set_paused("default", false).await.expect("resumes");
    assert_eq!(next_wake(&mut wakes).await, default_queue());
}

pub async fn claim_that_leaves_jobs_wakes_another_node(store: TestStore) {
    let mut a = idle_node(&store, "a").await;
    let mut b = idle_node(&store, "b").await;
    store.push_all(vec![job("one"), job("two")]).await;
    let (first, other) = tokio::select! {
        wake = next_wake(&mut a) => { assert_eq!(wake, default_queue()); ("a", &mut b) }
        wake = next_wake(&mut b) => { assert_eq!(wake, default_queue()); ("b", &mut a) }
    };
    assert!(store.claim_with(first, claim(1)).await.has_more);
    assert_eq!(next_wake(other).await, default_queue());
}

/// Two idle nodes; a push of an earlier job has woken one of them, which has claimed. Returns both, that one first.
async fn woken_and_other(store: &TestStore) -> [(&'static str, Receiver<Wake>); 2] {
    let mut a = idle_node(store, "a").await;
    let mut b = idle_node(store, "b").await;
    store.push(job("soon").after(SECOND / 2)).await;
    let a_is_woken = tokio::select! {
        wake = next_wake(&mut a) => { assert_eq!(wake, default_queue()); true }
        wake = next_wake(&mut b) => { assert_eq!(wake, default_queue()); false }
    };
    let nodes = if a_is_woken { [("a", a), ("b", b)] } else { [("b", b), ("a", a)] };
    assert_eq!(store.claim_with(nodes[0].0, claim(1)).await.next_due, Some(SECOND / 2));
    nodes
}

pub async fn node_that_fills_up_passes_a_near_due_time_on(store: TestStore) {
    let [(woken, _), (_, mut wakes)] = woken_and_other(&store).await;
    let held = store.push(job("now")).await.id();
    // A push wakes either node. The one that knows the due time takes the job.
    while wakes.try_recv().is_ok() {}
    let claimed = store.claim(woken, 1).await;
    assert_eq!(claimed.iter().map(|job| job.job.id).collect::<Vec<_>>(), [held]);
    assert_eq!(next_wake(&mut wakes).await, default_queue());
}

pub async fn node_that_stops_waiting_passes_a_near_due_time_on(store: TestStore) {
    let [(woken, _), (_, mut wakes)] = woken_and_other(&store).await;
    assert!(store.claim(woken, 0).await.is_empty());
    assert_eq!(next_wake(&mut wakes).await, default_queue());
}

pub async fn node_that_stops_waiting_passes_its_wake_on(store: TestStore) {
    let mut a = idle_node(&store, "a").await;
    let mut b = idle_node(&store, "b").await;
    let mut c = idle_node(&store, "c").await;
    assert!(store.claim("a", 0).await.is_empty());
    store.push(job("one")).await;
    // One of the other two is woken. It has no free slot either, so the wake is passed on to the last.
    let (first, last) = tokio::select! {
        wake = next_wake(&mut b) => { assert_eq!(wake, default_queue()); ("b", &mut c) }
        wake = next_wake(&mut c) => { assert_eq!(wake, default_queue()); ("c", &mut b) }
    };
    assert!(store.claim_with(first, claim(0)).await.has_more);
    assert_eq!(next_wake(last).await, default_queue());
    assert!(a.try_recv().is_err());
}
