//! What a worker tells whoever watches it.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use duly::{CancellationToken, Duly, Event, Push};
use tokio::sync::mpsc;

use crate::worker::{LONG, Mail, mail, memory};

const OFTEN: Duration = Duration::from_millis(10);

#[tokio::test]
async fn idle_loop_reports_liveness() {
    // Nothing else happens in so long a lease.
    let duly = Duly::open(":memory:?lease=1h").await.expect("opens");
    let (alive, mut signs) = mpsc::unbounded_channel();
    let stop = CancellationToken::new();
    let worker = duly.worker().on(|_: Mail, _| async {}).alive_interval(OFTEN).on_event(move |event| {
        if let Event::Alive = event {
            let _ = alive.send(());
        }
    });
    let run = tokio::spawn(worker.run_until(stop.clone()));
    for _ in 0..5 {
        tokio::time::timeout(LONG, signs.recv()).await.expect("in time").expect("open");
    }
    stop.cancel();
    run.await.expect("no panic").expect("ends well");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stuck_loop_reports_no_liveness() {
    let duly = memory().await;
    let (alive, mut signs) = mpsc::unbounded_channel();
    let (stuck, mut sticks) = mpsc::unbounded_channel();
    let (free, wait) = channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let stop = CancellationToken::new();
    let worker = duly.worker().on(|_: Mail, _| async {}).alive_interval(OFTEN).on_event(move |event| match event {
        Event::Alive => drop(alive.send(())),
        // Called by the loop, which goes no further meanwhile.
        Event::Started { .. } => {
            let _ = stuck.send(());
            let _ = wait.lock().expect("lock").recv();
        }
        _ => {}
    });
    let run = tokio::spawn(worker.run_until(stop.clone()));
    duly.push(mail()).await.expect("pushes");
    tokio::time::timeout(LONG, sticks.recv()).await.expect("in time").expect("open");
    while signs.try_recv().is_ok() {}
    tokio::time::sleep(20 * OFTEN).await;
    assert!(signs.try_recv().is_err(), "who is stuck must not be called alive");

    free.send(()).expect("it waits");
    tokio::time::timeout(LONG, signs.recv()).await.expect("in time").expect("open");
    stop.cancel();
    run.await.expect("no panic").expect("ends well");
}

#[tokio::test]
async fn release_event_has_a_reason() {
    let duly = memory().await;
    duly.push_all([Push::new("strange", "{}"), Push::new("wish", "{}")]).await.expect("pushes");
    let told: Arc<std::sync::Mutex<Vec<_>>> = Arc::default();
    let noted = told.clone();
    let release = |_| async { duly::Outcome::release(LONG) };
    let worker = duly.worker().on_kind("wish", release).on_event(move |event| {
        if let Event::Settled { held, reason, .. } = event {
            noted.lock().expect("lock").push((held.job.kind.clone(), reason.map(str::to_owned)));
        }
    });
    assert_eq!(worker.drain().await.expect("drains").released, 2);
    let mut told = told.lock().expect("lock").clone();
    told.sort();
    let why = Some("no handler here knows its kind".to_owned());
    assert_eq!(told, [("strange".to_owned(), why), ("wish".to_owned(), None)]);
}
