//! What other nodes can tell a worker: what it runs, to cancel it, to be quiet, to stop.

use duly::{CancellationToken, Ctx, Duly, Event, JobId, NodeId, Push, RunSummary, RunningJob, State};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::peers::location::*;

/// A worker whose jobs run until they are let go, or cancelled.
struct Slow {
    run: JoinHandle<duly::Result<RunSummary>>,
    started: mpsc::UnboundedReceiver<JobId>,
    go: CancellationToken,
    stop: CancellationToken,
    node: NodeId,
}

async fn slow(duly: &Duly) -> Slow {
    let (go, stop) = (CancellationToken::new(), CancellationToken::new());
    let (sender, started) = mpsc::unbounded_channel();
    let (joined, mut nodes) = mpsc::unbounded_channel();
    let wait = go.clone();
    let worker = duly
        .worker()
        .on_kind("slow", move |ctx: Ctx| {
            let (sender, wait) = (sender.clone(), wait.clone());
            async move {
                ctx.set_progress(0.25, "");
                let _ = sender.send(ctx.job().id);
                tokio::select! {
                    () = wait.cancelled() => {}
                    () = ctx.cancelled() => {}
                }
            }
        })
        .on_event(move |event| {
            if let Event::Joined { node } = event {
                let _ = joined.send(*node);
            }
        });
    let run = tokio::spawn(worker.run_until(stop.clone()));
    let node = in_time(nodes.recv()).await.expect("joins");
    Slow { run, started, go, stop, node }
}

async fn push(duly: &Duly) -> JobId {
    duly.push(Push::new("slow", "{}")).await.expect("pushes").id()
}

pub async fn running_job_is_cancelled_from_another_process(location: Location) {
    let (here, there) = (location.open().await, location.open().await);
    let mut worker = slow(&there).await;
    let id = push(&here).await;
    assert_eq!(in_time(worker.started.recv()).await, Some(id));
    until("the job is cancelled", async || here.cancel(id).await.is_ok()).await;
    until("the job is dead", async || here.get(id).await.expect("looks").is_some_and(|job| job.state == State::Dead))
        .await;
    let record = here.get(id).await.expect("looks").expect("is kept");
    assert_eq!(record.failures.last().map(|failure| failure.error.as_str()), Some("cancelled"));
    assert_eq!(here.cancel(id).await.expect_err("is dead").code(), "conflict");
    worker.stop.cancel();
    in_time(worker.run).await.expect("no panic").expect("ends well");
}

pub async fn job_that_is_not_running_cannot_be_cancelled(location: Location) {
    let duly = location.open().await;
    assert_eq!(duly.cancel(JobId::fresh()).await.expect_err("is none").code(), "not_found");
    let id = push(&duly).await;
    assert_eq!(duly.cancel(id).await.expect_err("waits").code(), "conflict");
}

pub async fn worker_lists_its_running_jobs(location: Location) {
    let (here, there) = (location.open().await, location.open().await);
    let mut worker = slow(&there).await;
    let id = push(&here).await;
    in_time(worker.started.recv()).await.expect("starts");
    until("the worker answers", async || {
        here.call("duly.jobs", &()).node(worker.node).reply::<Vec<RunningJob>>().await.is_ok()
    })
    .await;
    let jobs: Vec<RunningJob> = in_time(here.call("duly.jobs", &()).node(worker.node).reply()).await.expect("tells");
    assert_eq!(jobs.len(), 1);
    assert_eq!((jobs[0].id, jobs[0].attempt, jobs[0].progress), (id, 1, Some(0.25)));
    worker.go.cancel();
    worker.stop.cancel();
    in_time(worker.run).await.expect("no panic").expect("ends well");
}

pub async fn quiet_worker_claims_nothing_until_resumed(location: Location) {
    let (here, there) = (location.open().await, location.open().await);
    let mut worker = slow(&there).await;
    let first = push(&here).await;
    assert_eq!(in_time(worker.started.recv()).await, Some(first));
    let quiet = async |on: bool| here.call("duly.quiet", &json!({ "on": on })).node(worker.node).reply::<Value>().await;
    until("the worker is quiet", async || quiet(true).await.is_ok()).await;
    let second = push(&here).await;
    // The worker's loop answers this itself: it has turned since the push.
    let jobs: Vec<RunningJob> = in_time(here.call("duly.jobs", &()).node(worker.node).reply()).await.expect("tells");
    assert_eq!(jobs.iter().map(|job| job.id).collect::<Vec<_>>(), [first]);
    // The push may have put it into the worker's hands before the store knew of the order: then it is put back at once.
    until("the job is ready", async || {
        here.get(second).await.expect("looks").is_some_and(|job| job.state == State::Ready)
    })
    .await;
    assert!(worker.started.try_recv().is_err(), "starts nothing");
    assert_eq!(here.get(first).await.expect("looks").expect("is there").state, State::Running, "what runs goes on");
    quiet(false).await.expect("is heard");
    assert_eq!(in_time(worker.started.recv()).await, Some(second));
    worker.stop.cancel();
    worker.go.cancel();
    in_time(worker.run).await.expect("no panic").expect("ends well");
}

pub async fn worker_is_stopped_by_another_node(location: Location) {
    let (here, there) = (location.open().await, location.open().await);
    let worker = slow(&there).await;
    until("the worker stops", async || here.call("duly.stop", &()).node(worker.node).reply::<Value>().await.is_ok())
        .await;
    in_time(worker.run).await.expect("no panic").expect("ends well");
    assert!(!worker.stop.is_cancelled(), "the caller's own token is its own");
}
