//! What a worker holds: lost, forgotten, and jobs that take their process down.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use duly::{Args, CancellationToken, Clock, Ctx, Duly, Event, Outcome, State};
use tokio::sync::{Notify, mpsc};

use crate::worker::{LONG, Mail, mail, only};

#[tokio::test]
async fn crashing_job_is_buried_without_using_attempts() {
    let clock = Clock::manual();
    let duly = Duly::builder(":memory:").clock(clock.clone()).open().await.expect("opens");
    let id = duly.push(mail().max_attempts(1)).await.expect("pushes").id();
    let store = duly.store();
    let claim = |suspect| duly::store::Claim { queue: "default".into(), max: 1, resync: false, suspect, kinds: None };
    let mut suspect = None;
    for _ in 0..4 {
        // A node that claims and is gone, as a process that its job has taken down.
        let node = duly::Node::fresh(Vec::new());
        store.heartbeat(&node).await.expect("beats");
        assert_eq!(store.claim(node.id, claim(suspect)).await.expect("claims").jobs.len(), 1);
        store.leave(node.id).await.expect("leaves");
        suspect = Some(node.id);
    }
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let worker = duly.worker().on(move |_: Mail, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        async {}
    });
    let tally = worker.drain().await.expect("drains");
    assert_eq!((tally.buried, calls.load(Ordering::SeqCst)), (1, 0));
    let record = only(&duly, id).await;
    assert_eq!((record.state, record.crashes, record.failures.len()), (State::Dead, 4, 5));
}

#[tokio::test]
async fn worker_runs_held_jobs_it_did_not_know_of() {
    let duly = Duly::open(":memory:?lease=300ms").await.expect("opens");
    let first = duly.push(mail()).await.expect("pushes").id();
    let (seen, mut got) = mpsc::unbounded_channel();
    let (stop, go) = (CancellationToken::new(), Arc::new(Notify::new()));
    let (joined, mut node) = mpsc::unbounded_channel();
    let wait = go.clone();
    let worker = duly
        .worker()
        .concurrency(1)
        .on(move |_: Mail, ctx: Ctx| {
            let (seen, wait) = (seen.clone(), wait.clone());
            async move {
                let _ = seen.send(ctx.job().id);
                wait.notified().await;
            }
        })
        .on_event(move |event| {
            if let Event::Joined { node } = event {
                let _ = joined.send(*node);
            }
        });
    let run = tokio::spawn(worker.run_until(stop.clone()));
    let mut ran = async || tokio::time::timeout(LONG, got.recv()).await.expect("in time").expect("open");
    assert_eq!(ran().await, first);

    // The worker is full. A claim in its name whose answer it never sees: the job is held, and nobody runs it.
    let lost = duly.push(mail()).await.expect("pushes").id();
    let claim = duly::store::Claim { queue: "default".into(), max: 1, resync: false, suspect: None, kinds: None };
    let node = node.recv().await.expect("joined");
    assert_eq!(duly.store().claim(node, claim).await.expect("claims").jobs[0].job.id, lost);

    go.notify_one();
    assert_eq!(ran().await, lost, "the count of the beats differs, and the store is asked what it holds");
    go.notify_one();
    stop.cancel();
    assert_eq!(run.await.expect("no panic").expect("ends well").acked, 2);
}

#[tokio::test]
async fn attempt_is_notified_after_its_job_was_taken_back() {
    let duly = Duly::open(":memory:?lease=300ms").await.expect("opens");
    duly.push(mail()).await.expect("pushes");
    let (told, mut got) = mpsc::unbounded_channel();
    let stop = CancellationToken::new();
    let events = Arc::new(AtomicUsize::new(0));
    let counted = events.clone();
    // Full: there is no room for another job, and it must be told all the same.
    let worker = duly.worker().concurrency(1).on(move |_: Mail, ctx: Ctx| {
        let told = told.clone();
        async move {
            let _ = told.send((ctx.fence(), false));
            ctx.cancelled().await;
            let _ = told.send((ctx.fence(), true));
        }
    });
    let worker = worker.on_event(move |event| {
        counted.fetch_add(usize::from(matches!(event, Event::Lost { .. })), Ordering::SeqCst);
    });
    let run = tokio::spawn(worker.run_until(stop.clone()));
    let mut next = async || tokio::time::timeout(LONG, got.recv()).await.expect("in time").expect("open");
    let (fence, _) = next().await;

    // Its outcome is recorded behind its back, as if another node had taken it over and finished it.
    let node = duly.nodes().await.expect("lists")[0].id;
    let redo = duly::store::Claim { queue: "default".into(), max: 1, resync: true, suspect: None, kinds: None };
    let held = duly.store().claim(node, redo).await.expect("claims").jobs.remove(0);
    let end = duly::store::AttemptEnd::from_held(&held, Outcome::Ack, Duration::ZERO);
    duly.store().settle(node, vec![end]).await.expect("settles");

    assert_eq!(next().await, (fence, true));
    stop.cancel();
    assert_eq!(run.await.expect("no panic").expect("ends well").lost, 1, "and its own outcome is refused");
    assert_eq!(events.load(Ordering::SeqCst), 1, "one event for both");
}
