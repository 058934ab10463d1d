//! Wakes: a node that waits is told at once, and only one of them.

use duly::store::Wake;
use tokio::sync::mpsc::Receiver;

use crate::test_store::*;

/// A node that has looked, found nothing, and waits.
async fn waiting(store: &TestStore, name: &'static str) -> Receiver<Wake> {
    let node = store.node(name).await;
    let wakes = store.store.subscribe_wakes(node).await.expect("subscribes");
    assert!(store.claim(name, 1).await.is_empty());
    wakes
}

async fn woken(wakes: &mut Receiver<Wake>) -> Wake {
    tokio::time::timeout(LONG, wakes.recv()).await.expect("in time").expect("open")
}

fn look() -> Wake {
    Wake::Queue("default".into())
}

pub async fn push_wakes_a_waiting_node(store: TestStore) {
    let mut wakes = waiting(&store, "a").await;
    store.push(job("one")).await;
    assert_eq!(woken(&mut wakes).await, look());
}

pub async fn push_wakes_only_one_node(store: TestStore) {
    let mut a = waiting(&store, "a").await;
    let mut b = waiting(&store, "b").await;
    store.push(job("one")).await;
    // The wake is sent before the push is answered to the next caller in line.
    store.push(job("elsewhere").queue("other")).await;
    let woken = [a.try_recv().is_ok(), b.try_recv().is_ok()];
    assert_eq!(woken.iter().filter(|woken| **woken).count(), 1);
}

pub async fn push_into_another_queue_wakes_no_node(store: TestStore) {
    let mut wakes = waiting(&store, "a").await;
    store.push(job("one").queue("other")).await;
    store.push(job("one").queue("another")).await;
    assert!(wakes.try_recv().is_err());
}

pub async fn push_wakes_only_if_due_earlier(store: TestStore) {
    store.push(job("later").after(10 * SECOND)).await;
    let mut wakes = waiting(&store, "a").await;
    store.push(job("much later").after(100 * SECOND)).await;
    store.push(job("elsewhere").queue("other")).await;
    assert!(wakes.try_recv().is_err(), "the node looks sooner anyway");
    store.push(job("sooner").after(SECOND)).await;
    assert_eq!(woken(&mut wakes).await, look());
}

pub async fn resume_wakes_a_waiting_node(store: TestStore) {
    store.store.set_paused("default", true).await.expect("pauses");
    store.push(job("one")).await;
    let mut wakes = waiting(&store, "a").await;
    store.store.set_paused("default", false).await.expect("resumes");
    assert_eq!(woken(&mut wakes).await, look());
}

pub async fn claim_that_leaves_jobs_wakes_another_node(store: TestStore) {
    let mut a = waiting(&store, "a").await;
    let mut b = waiting(&store, "b").await;
    store.push_all(vec![job("one"), job("two")]).await;
    let (first, other) = tokio::select! {
        wake = woken(&mut a) => { assert_eq!(wake, look()); ("a", &mut b) }
        wake = woken(&mut b) => { assert_eq!(wake, look()); ("b", &mut a) }
    };
    assert!(store.ask(first, claim(1)).await.has_more);
    assert_eq!(woken(other).await, look());
}

pub async fn node_that_stops_waiting_passes_its_wake_on(store: TestStore) {
    let mut a = waiting(&store, "a").await;
    let mut b = waiting(&store, "b").await;
    let mut c = waiting(&store, "c").await;
    assert!(store.claim("a", 0).await.is_empty());
    store.push(job("one")).await;
    // One of the other two is woken; it has no room either, and the wake goes on to the last.
    let (first, last) = tokio::select! {
        wake = woken(&mut b) => { assert_eq!(wake, look()); ("b", &mut c) }
        wake = woken(&mut c) => { assert_eq!(wake, look()); ("c", &mut b) }
    };
    assert!(store.ask(first, claim(0)).await.has_more);
    assert_eq!(woken(last).await, look());
    assert!(a.try_recv().is_err());
}
