//! Jobs that a worker holds: lost jobs, lost replies, and jobs that crash their process.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use duly::store::JobStore;
use duly::worker::Event;
use duly::{CancellationToken, Clock, Ctx, Duly, Outcome, PushExt, State};
use tokio::sync::{Notify, mpsc};

use crate::worker::{Mail, TIMEOUT, job_record, mail};

#[tokio::test]
async fn crashing_job_is_buried_without_using_attempts() {
    let clock = Clock::manual();
    let duly = Duly::builder(":memory:").clock(clock.clone()).open().await.expect("opens");
    let id = duly.push(mail().max_attempts(1)).await.expect("pushes").id();
    let store = duly.store();
    let claim = |suspect| duly::store::Claim { suspect, ..duly::store::Claim::new("default", 1) };
    let mut suspect = None;
    for _ in 0..4 {
        // A node that claims and disappears, like a process that its job has crashed.
        let node = duly::store::Node::fresh(Vec::new());
        store.heartbeat(&node).await.expect("sends a heartbeat");
        let held = store.claim(node.id, claim(suspect)).await.expect("claims").jobs.pop().expect("the job");
        assert!(store.set_alone(node.id, Arc::new(held), true).await.expect("marks"));
        store.leave(node.id).await.expect("leaves");
        suspect = Some(node.id);
    }
    let calls = Arc::new(AtomicUsize::new(0));
    let count = calls.clone();
    let worker = duly.worker().on(move |_: Mail, _| {
        count.fetch_add(1, Ordering::SeqCst);
        async {}
    });
    let summary = worker.drain().await.expect("drains");
    assert_eq!((summary.buried, calls.load(Ordering::SeqCst)), (1, 0));
    let record = job_record(&duly, id).await;
    assert_eq!((record.state, record.crashes, record.failures.len()), (State::Dead, 4, 5));
}

#[tokio::test]
async fn worker_runs_held_jobs_it_did_not_know_of() {
    let duly = Duly::open(":memory:?lease=300ms").await.expect("opens");
    let first = duly.push(mail()).await.expect("pushes").id();
    let (sender, mut received) = mpsc::unbounded_channel();
    let (stop, release) = (CancellationToken::new(), Arc::new(Notify::new()));
    let (joined, mut node) = mpsc::unbounded_channel();
    let wait = release.clone();
    let worker = duly
        .worker()
        .concurrency(1)
        .on(move |_: Mail, ctx: Ctx| {
            let (sender, wait) = (sender.clone(), wait.clone());
            async move {
                let _ = sender.send(ctx.job().id);
                wait.notified().await;
            }
        })
        .on_event(move |event| {
            if let Event::Joined { node, .. } = event {
                let _ = joined.send(*node);
            }
        });
    let run = tokio::spawn(worker.run_until(stop.clone()));
    let mut ran = async || tokio::time::timeout(TIMEOUT, received.recv()).await.expect("in time").expect("open");
    assert_eq!(ran().await, first);

    // The worker has no free slot. A claim in its name with a lost reply leaves a held job that does not run.
    let lost = duly.push(mail()).await.expect("pushes").id();
    let claim = duly::store::Claim::new("default", 1);
    let node = node.recv().await.expect("joined");
    assert_eq!(duly.store().claim(node, claim).await.expect("claims").jobs[0].job.id, lost);

    release.notify_one();
    assert_eq!(ran().await, lost, "the count of a heartbeat differs, so the worker resyncs");
    release.notify_one();
    stop.cancel();
    assert_eq!(run.await.expect("no panic").expect("ends well").acked, 2);
}

#[tokio::test]
async fn attempt_is_notified_after_its_job_was_taken_back() {
    let duly = Duly::open(":memory:?lease=300ms").await.expect("opens");
    duly.push(mail()).await.expect("pushes");
    let (sender, mut received) = mpsc::unbounded_channel();
    let stop = CancellationToken::new();
    let events = Arc::new(AtomicUsize::new(0));
    let count = events.clone();
    // A worker without a free slot must be notified too.
    let worker = duly.worker().concurrency(1).on(move |_: Mail, ctx: Ctx| {
        let sender = sender.clone();
        async move {
            let _ = sender.send((ctx.fence(), false));
            ctx.cancelled().await;
            let _ = sender.send((ctx.fence(), true));
        }
    });
    let worker = worker.on_event(move |event| {
        count.fetch_add(usize::from(matches!(event, Event::Lost { .. })), Ordering::SeqCst);
    });
    let run = tokio::spawn(worker.run_until(stop.clone()));
    let mut next = async || tokio::time::timeout(TIMEOUT, received.recv()).await.expect("in time").expect("open");
    let (fence, _) = next().await;

    // The outcome is recorded in its name, as if another node had taken the job over and finished it.
    let node = duly.nodes().list().await.expect("lists")[0].id;
    let resync = duly::store::Claim { resync: true, ..duly::store::Claim::new("default", 1) };
    let held = duly.store().claim(node, resync).await.expect("claims").jobs.remove(0);
    let end = duly::store::AttemptEnd::from_held(&held, Outcome::Ack, Duration::ZERO);
    duly.store().settle(node, vec![end]).await.expect("settles");

    assert_eq!(next().await, (fence, true));
    stop.cancel();
    assert_eq!(run.await.expect("no panic").expect("ends well").lost, 1, "its own outcome is rejected");
    assert_eq!(events.load(Ordering::SeqCst), 1, "one event for both");
}
