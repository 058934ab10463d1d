//! Events of a worker.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use duly::worker::Event;
use duly::{CancellationToken, Duly, Push};
use tokio::sync::mpsc;

use crate::worker::{Mail, TIMEOUT, mail, memory};

const INTERVAL: Duration = Duration::from_millis(10);

#[tokio::test]
async fn idle_loop_reports_liveness() {
    // With a long lease, no heartbeat wakes the loop.
    let duly = Duly::open(":memory:?lease=1h").await.expect("opens");
    let (alive, mut reports) = mpsc::unbounded_channel();
    let stop = CancellationToken::new();
    let worker = duly.worker().on(|_: Mail, _| async {}).alive_interval(INTERVAL).on_event(move |event| {
        if let Event::Alive = event {
            let _ = alive.send(());
        }
    });
    let run = tokio::spawn(worker.run_until(stop.clone()));
    for _ in 0..5 {
        tokio::time::timeout(TIMEOUT, reports.recv()).await.expect("in time").expect("open");
    }
    stop.cancel();
    run.await.expect("no panic").expect("ends well");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stuck_loop_reports_no_liveness() {
    let duly = memory().await;
    let (alive, mut reports) = mpsc::unbounded_channel();
    let (blocked, mut blocks) = mpsc::unbounded_channel();
    let (unblock, wait) = channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let stop = CancellationToken::new();
    let worker = duly.worker().on(|_: Mail, _| async {}).alive_interval(INTERVAL).on_event(move |event| match event {
        Event::Alive => drop(alive.send(())),
        // The loop calls this and is blocked meanwhile.
        Event::Started { .. } => {
            let _ = blocked.send(());
            let _ = wait.lock().expect("lock").recv();
        }
        _ => {}
    });
    let run = tokio::spawn(worker.run_until(stop.clone()));
    duly.push(mail()).await.expect("pushes");
    tokio::time::timeout(TIMEOUT, blocks.recv()).await.expect("in time").expect("open");
    while reports.try_recv().is_ok() {}
    tokio::time::sleep(20 * INTERVAL).await;
    assert!(reports.try_recv().is_err(), "a stuck loop must not be reported as alive");

    unblock.send(()).expect("is received");
    tokio::time::timeout(TIMEOUT, reports.recv()).await.expect("in time").expect("open");
    stop.cancel();
    run.await.expect("no panic").expect("ends well");
}

#[tokio::test]
async fn release_event_has_a_reason() {
    let duly = memory().await;
    duly.push_all([Push::new("unknown", "{}"), Push::new("release", "{}")]).await.expect("pushes");
    let released: Arc<std::sync::Mutex<Vec<_>>> = Arc::default();
    let events = released.clone();
    let release = |_| async { duly::Outcome::release(TIMEOUT) };
    let worker = duly.worker().on_kind("release", release).on_event(move |event| {
        if let Event::Settled { held, reason, .. } = event {
            events.lock().expect("lock").push((held.job.kind.clone(), reason.map(str::to_owned)));
        }
    });
    assert_eq!(worker.drain().await.expect("drains").released, 2);
    let mut released = released.lock().expect("lock").clone();
    released.sort();
    let reason = Some("no handler for its kind on this node".to_owned());
    assert_eq!(released, [("release".to_owned(), None), ("unknown".to_owned(), reason)]);
}
