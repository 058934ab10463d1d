//! Stopping: what finishes, what is released, what is left behind.

use std::sync::Arc;
use std::time::Duration;

use duly::{CancellationToken, Ctx, Duly, Event, State};
use tokio::sync::{Notify, mpsc};

use crate::worker::{LONG, Mail, mail, memory, only};

/// A worker with one job that runs until it is let go.
async fn busy(
    duly: &Duly,
    grace: Duration,
) -> (tokio::task::JoinHandle<duly::Result<duly::RunSummary>>, [CancellationToken; 2], Arc<Notify>) {
    let tokens = [CancellationToken::new(), CancellationToken::new()];
    let (started, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (tell, wait) = (started.clone(), go.clone());
    let handler = move |_: Mail, _: Ctx| {
        let (tell, wait) = (tell.clone(), wait.clone());
        async move {
            tell.notify_one();
            wait.notified().await;
        }
    };
    let worker = duly.worker().on(handler).grace(grace);
    let run = tokio::spawn(worker.run_with_shutdown(tokens[0].clone(), tokens[1].clone()));
    tokio::time::timeout(LONG, started.notified()).await.expect("starts");
    (run, tokens, go)
}

#[tokio::test]
async fn stopping_worker_lets_running_jobs_finish() {
    let duly = memory().await;
    let id = duly.push(mail()).await.expect("pushes").id();
    let (run, [stop, _], go) = busy(&duly, LONG).await;
    stop.cancel();
    duly.push(mail()).await.expect("pushes");
    go.notify_one();
    let tally = tokio::time::timeout(LONG, run).await.expect("in time").expect("no panic").expect("ends well");
    assert_eq!((tally.acked, tally.settled()), (1, 1), "and claims no more");
    assert_eq!(only(&duly, id).await.state, State::Done);
}

#[tokio::test]
async fn unfinished_job_is_released_after_the_grace_time() {
    for second_signal in [false, true] {
        let duly = memory().await;
        let id = duly.push(mail()).await.expect("pushes").id();
        let grace = if second_signal { 100 * LONG } else { Duration::from_millis(30) };
        let (run, [stop, at_once], _go) = busy(&duly, grace).await;
        stop.cancel();
        if second_signal {
            at_once.cancel();
        }
        let tally = tokio::time::timeout(LONG, run).await.expect("in time").expect("no panic").expect("ends well");
        assert_eq!(tally.released, 1);
        let record = only(&duly, id).await;
        assert_eq!((record.state, record.attempts, record.crashes), (State::Ready, 0, 0));
        assert!(duly.nodes().await.expect("lists").is_empty(), "the node has left");
    }
}

#[tokio::test]
async fn unlimited_grace_time_is_accepted() {
    let duly = memory().await;
    duly.push(mail()).await.expect("pushes");
    let (run, [stop, _], go) = busy(&duly, Duration::MAX).await;
    stop.cancel();
    go.notify_one();
    assert_eq!(run.await.expect("no panic").expect("ends well").acked, 1);
}

#[tokio::test]
async fn dropped_worker_leaves() {
    let duly = memory().await;
    let id = duly.push(mail()).await.expect("pushes").id();
    let (run, _, _go) = busy(&duly, LONG).await;
    run.abort();
    let until = std::time::Instant::now() + LONG;
    while duly.nodes().await.expect("lists").iter().any(|node| node.alive) {
        assert!(std::time::Instant::now() < until, "it never leaves");
        tokio::task::yield_now().await;
    }
    // Its job can be taken over at once.
    assert_eq!(duly.worker().on(|_: Mail, _| async {}).drain().await.expect("drains").acked, 1);
    assert_eq!(only(&duly, id).await.state, State::Done);
}

/// Pushes on a thread of its own, and lets no worker of this thread turn meanwhile.
fn push_unseen(duly: &Duly) {
    let push = || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(duly.push(mail())).expect("pushes");
    };
    std::thread::scope(|threads| threads.spawn(push).join().expect("no panic"));
}

/// Which of two things that have happened a worker sees first is left to chance: so many times it shows.
const ROUNDS: usize = 8;

#[tokio::test]
async fn stopping_worker_claims_nothing_and_passes_its_wake_on() {
    for _ in 0..ROUNDS {
        // With so long a lease nobody looks by himself: a wake that is swallowed is never made up for.
        let duly = Duly::open(":memory:?lease=1h").await.expect("opens");
        duly.push(mail()).await.expect("pushes");
        let (stopping, [stop, _], go) = busy(&duly, 100 * LONG).await;
        let (starts, mut got) = mpsc::unbounded_channel();
        let end = CancellationToken::new();
        let other = duly.worker().on(|_: Mail, _| async {}).on_event(move |event| {
            if let Event::Started { .. } = event {
                let _ = starts.send(());
            }
        });
        let other = tokio::spawn(other.run_until(end.clone()));
        tokio::time::sleep(Duration::from_millis(100)).await; // now both wait for more, and the busy one has come first

        stop.cancel();
        for _ in 0..3 {
            // The first of them wakes the one that stops, before it has turned to step back.
            push_unseen(&duly);
            tokio::time::timeout(LONG, got.recv()).await.expect("in time").expect("open");
        }
        go.notify_one();
        end.cancel();
        for (run, acked) in [(stopping, 1), (other, 3)] {
            let tally = run.await.expect("no panic").expect("ends well");
            assert_eq!((tally.acked, tally.settled()), (acked, acked), "nothing was claimed only to be given back");
        }
    }
}
