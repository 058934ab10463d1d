//! Tests of the store as a whole: slow and panicking reads must not affect other operations.

use std::time::Duration;

use super::*;
use crate::node::{DEFAULT_LEASE, Node};
use crate::store::JobStore;
use crate::store::sqlite::nodes::registry::Liveness;

/// A read that lasts as long as the test wants.
fn start_slow_read(store: &Arc<Sqlite>) -> (tokio::task::JoinHandle<Result<()>>, std::sync::mpsc::Sender<()>) {
    let (store, (end, wait)) = (store.clone(), std::sync::mpsc::channel());
    let read = move |_: &Connection| {
        let _ = wait.recv();
        Ok(())
    };
    (tokio::spawn(async move { store.read("slow", read).await }), end)
}

#[tokio::test]
async fn slow_read_does_not_delay_heartbeat() {
    let dir = tempfile::tempdir().expect("a directory");
    let clock = Clock::manual();
    let options = StoreOptions { clock: clock.clone(), ..StoreOptions::default() };
    let store = Arc::new(Sqlite::open(&dir.path().join("duly.db"), &options).expect("opens"));
    let node = Node::fresh(Vec::new());
    store.heartbeat(&node).await.expect("joins");

    let (slow, end) = start_slow_read(&store);
    clock.advance(DEFAULT_LEASE + Duration::from_micros(1));
    tokio::task::yield_now().await;
    assert_eq!(store.registry.worker_liveness(node.id), Liveness::LeaseExpired);
    let result = tokio::time::timeout(Duration::from_millis(50), store.heartbeat(&node));
    assert!(result.await.is_err(), "the reply waits for the read");
    assert_eq!(store.registry.worker_liveness(node.id), Liveness::Alive, "the heartbeat does not");

    end.send(()).expect("the read waits");
    slow.await.expect("no panic").expect("ends well");
    store.heartbeat(&node).await.expect("replies again");
}

#[tokio::test]
async fn panicking_read_does_not_stop_the_reader() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Sqlite::open(&dir.path().join("duly.db"), &StoreOptions::default()).expect("opens");
    let panicked = store.read("read", |_| -> Result<()> { panic!("a bug") });
    assert_eq!(panicked.await.expect_err("fails").code(), "store");
    assert!(store.counts().await.expect("still reads").is_empty());
}
