//! Shutdown: running jobs finish, are released after the grace time, or are taken back.

use std::sync::Arc;
use std::time::Duration;

use duly::worker::Event;
use duly::{CancellationToken, Ctx, Duly, State};
use test_support::until;
use tokio::sync::{Notify, mpsc};

use crate::worker::{Mail, TIMEOUT, job_record, mail, memory};

/// A worker with one job that runs until it is notified.
async fn busy(
    duly: &Duly,
    grace: Duration,
) -> (tokio::task::JoinHandle<duly::Result<duly::worker::RunSummary>>, [CancellationToken; 2], Arc<Notify>) {
    let tokens = [CancellationToken::new(), CancellationToken::new()];
    let (started, release) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (notify, wait) = (started.clone(), release.clone());
    let handler = move |_: Mail, _: Ctx| {
        let (notify, wait) = (notify.clone(), wait.clone());
        async move {
            notify.notify_one();
            wait.notified().await;
        }
    };
    let worker = duly.worker().on(handler).grace(grace);
    let run = tokio::spawn(worker.run_with_shutdown(tokens[0].clone(), tokens[1].clone()));
    tokio::time::timeout(TIMEOUT, started.notified()).await.expect("starts");
    (run, tokens, release)
}

#[tokio::test]
async fn stopping_worker_lets_running_jobs_finish() {
    let duly = memory().await;
    let id = duly.push(mail()).await.expect("pushes").id();
    let (run, [stop, _], release) = busy(&duly, TIMEOUT).await;
    stop.cancel();
    duly.push(mail()).await.expect("pushes");
    release.notify_one();
    let summary = tokio::time::timeout(TIMEOUT, run).await.expect("in time").expect("no panic").expect("ends well");
    assert_eq!((summary.acked, summary.settled()), (1, 1), "and claims no more");
    assert_eq!(job_record(&duly, id).await.state, State::Done);
}

#[tokio::test]
async fn unfinished_job_is_released_after_the_grace_time() {
    for second_signal in [false, true] {
        let duly = memory().await;
        let id = duly.push(mail()).await.expect("pushes").id();
        let grace = if second_signal { 100 * TIMEOUT } else { Duration::from_millis(30) };
        let (run, [stop, stop_now], _release) = busy(&duly, grace).await;
        stop.cancel();
        if second_signal {
            stop_now.cancel();
        }
        let summary = tokio::time::timeout(TIMEOUT, run).await.expect("in time").expect("no panic").expect("ends well");
        assert_eq!(summary.released, 1);
        let record = job_record(&duly, id).await;
        assert_eq!((record.state, record.attempts, record.crashes), (State::Ready, 0, 0));
        assert!(duly.nodes().list().await.expect("lists").is_empty(), "the node has left");
    }
}

#[tokio::test]
async fn unlimited_grace_time_is_accepted() {
    let duly = memory().await;
    duly.push(mail()).await.expect("pushes");
    let (run, [stop, _], release) = busy(&duly, Duration::MAX).await;
    stop.cancel();
    release.notify_one();
    assert_eq!(run.await.expect("no panic").expect("ends well").acked, 1);
}

#[tokio::test]
async fn dropped_worker_leaves() {
    let duly = memory().await;
    let id = duly.push(mail()).await.expect("pushes").id();
    let (run, _, _release) = busy(&duly, TIMEOUT).await;
    run.abort();
    until("it leaves", async || duly.nodes().list().await.expect("lists").iter().all(|node| !node.alive)).await;
    // Its job can be taken over at once.
    assert_eq!(duly.worker().on(|_: Mail, _| async {}).drain().await.expect("drains").acked, 1);
    assert_eq!(job_record(&duly, id).await.state, State::Done);
}

/// Pushes on another thread and blocks this one, so that no worker of this thread runs meanwhile.
fn push_while_blocked(duly: &Duly) {
    let push = || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(duly.push(mail())).expect("pushes");
    };
    std::thread::scope(|threads| threads.spawn(push).join().expect("no panic"));
}

/// The order in which a worker sees two events is random; this many rounds cover both orders.
const ROUNDS: usize = 8;

#[tokio::test]
async fn stopping_worker_claims_nothing_and_passes_its_wake_on() {
    for _ in 0..ROUNDS {
        // With a long lease, no node claims without a wake: a swallowed wake would never be made up for.
        let duly = Duly::open(":memory:?lease=1h").await.expect("opens");
        duly.push(mail()).await.expect("pushes");
        let (stopping, [stop, _], release) = busy(&duly, 100 * TIMEOUT).await;
        let (starts, mut received) = mpsc::unbounded_channel();
        let end = CancellationToken::new();
        let other = duly.worker().on(|_: Mail, _| async {}).on_event(move |event| {
            if let Event::Started { .. } = event {
                let _ = starts.send(());
            }
        });
        let other = tokio::spawn(other.run_until(end.clone()));
        tokio::time::sleep(Duration::from_millis(100)).await; // now both are idle, the busy one first

        stop.cancel();
        for _ in 0..3 {
            // The first push wakes the stopping worker before it has left the idle list.
            push_while_blocked(&duly);
            tokio::time::timeout(TIMEOUT, received.recv()).await.expect("in time").expect("open");
        }
        release.notify_one();
        end.cancel();
        for (run, acked) in [(stopping, 1), (other, 3)] {
            let summary = run.await.expect("no panic").expect("ends well");
            assert_eq!((summary.acked, summary.settled()), (acked, acked), "no job was claimed and released");
        }
    }
}
