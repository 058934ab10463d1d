//! Commands from other nodes to a worker: list and cancel its jobs, quiet it, stop it.

use duly::admin::{CancelResult, RunningJob};
use duly::job::Due;
use duly::worker::{Event, RunSummary};
use duly::{CancellationToken, Ctx, Duly, JobId, NodeId, Outcome, Push, State};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::peers::location::*;

/// A worker with jobs that run until they are released or cancelled.
struct BlockingWorker {
    run: JoinHandle<duly::Result<RunSummary>>,
    started: mpsc::UnboundedReceiver<JobId>,
    release: CancellationToken,
    stop: CancellationToken,
    node: NodeId,
}

async fn blocking_worker(duly: &Duly) -> BlockingWorker {
    let (release, stop) = (CancellationToken::new(), CancellationToken::new());
    let (sender, started) = mpsc::unbounded_channel();
    let (joined, mut nodes) = mpsc::unbounded_channel();
    let wait = release.clone();
    let worker = duly
        .worker()
        .on_kind("slow", move |ctx: Ctx| {
            let (sender, wait) = (sender.clone(), wait.clone());
            async move {
                ctx.set_progress(0.25, "");
                let _ = sender.send(ctx.job().id);
                tokio::select! {
                    () = wait.cancelled() => Outcome::Ack,
                    () = ctx.cancelled() => Outcome::bury("stopped in the middle"),
                }
            }
        })
        .on_event(move |event| {
            if let Event::Joined { node, .. } = event {
                let _ = joined.send(*node);
            }
        });
    let run = tokio::spawn(worker.run_until(stop.clone()));
    let node = in_time(nodes.recv()).await.expect("joins");
    BlockingWorker { run, started, release, stop, node }
}

async fn push(duly: &Duly) -> JobId {
    duly.push(Push::new("slow", "{}")).await.expect("pushes").id()
}

pub async fn running_job_is_cancelled_from_another_process(location: Location) {
    let (here, there) = (location.open().await, location.open().await);
    let mut worker = blocking_worker(&there).await;
    let id = push(&here).await;
    assert_eq!(in_time(worker.started.recv()).await, Some(id));
    let record = here.jobs().get(id).await.expect("reads").expect("is there");
    let node = record.node.expect("is held");
    assert_eq!(here.jobs().cancel(id).await.expect("cancels"), CancelResult::Cancelling { node });
    let ended = in_time(here.jobs().wait(id)).await.expect("waits").expect("is kept");
    assert_eq!((ended.state, ended.attempts), (State::Cancelled, 1));
    let errors: Vec<_> = ended.failures.iter().map(|failure| failure.error.as_str()).collect();
    assert_eq!(errors, ["stopped in the middle"], "the error of the handler is kept");
    assert_eq!(here.jobs().cancel(id).await.expect("cancels"), CancelResult::Cancelled);
    worker.stop.cancel();
    let summary = in_time(worker.run).await.expect("no panic").expect("ends well");
    assert_eq!((summary.acked, summary.buried, summary.released, summary.cancelled), (0, 0, 0, 1));
}

pub async fn job_that_has_not_started_is_cancelled(location: Location) {
    let duly = location.open().await;
    assert_eq!(duly.jobs().cancel(JobId::fresh()).await.expect_err("is none").code(), "not_found");
    let id = push(&duly).await;
    assert_eq!(duly.jobs().cancel(id).await.expect("cancels"), CancelResult::Cancelled);
    assert_eq!(duly.jobs().get(id).await.expect("reads").expect("is kept").state, State::Cancelled);
    let (ready, later) = (push(&duly).await, Push::new("slow", "{}").after(std::time::Duration::from_secs(60)));
    let later = duly.push(later).await.expect("pushes").id();
    let report = duly.jobs().cancel_all("kind:slow".parse().expect("a filter")).run().await.expect("cancels");
    assert_eq!((report.applied, report.skipped_changed, report.failed), (2, 0, 0), "{report:?}");
    for id in [ready, later] {
        assert_eq!(duly.jobs().get(id).await.expect("reads").expect("is kept").state, State::Cancelled);
    }
    let all = "kind:slow".parse().expect("a filter");
    let retried = duly.jobs().reschedule_all(all, Due::Now).run().await.expect("reschedules");
    assert_eq!(retried.matching, 0, "cancelled jobs start over only on request");
}

pub async fn worker_lists_its_running_jobs(location: Location) {
    let (here, there) = (location.open().await, location.open().await);
    let mut worker = blocking_worker(&there).await;
    let id = push(&here).await;
    in_time(worker.started.recv()).await.expect("starts");
    until("the worker replies", async || {
        here.call("duly.jobs", &()).node(worker.node).reply::<Vec<RunningJob>>().await.is_ok()
    })
    .await;
    let jobs: Vec<RunningJob> = in_time(here.call("duly.jobs", &()).node(worker.node).reply()).await.expect("reads");
    assert_eq!(jobs.len(), 1);
    assert_eq!((jobs[0].id, jobs[0].attempt, jobs[0].progress), (id, 1, Some(0.25)));
    worker.release.cancel();
    worker.stop.cancel();
    in_time(worker.run).await.expect("no panic").expect("ends well");
}

pub async fn quiet_worker_claims_nothing_until_resumed(location: Location) {
    let (here, there) = (location.open().await, location.open().await);
    let mut worker = blocking_worker(&there).await;
    let first = push(&here).await;
    assert_eq!(in_time(worker.started.recv()).await, Some(first));
    let quiet = async |on: bool| here.call("duly.quiet", &json!({ "on": on })).node(worker.node).reply::<Value>().await;
    until("the worker is quiet", async || quiet(true).await.is_ok()).await;
    let second = push(&here).await;
    // The run loop replies to this itself, so it has turned since the push.
    let jobs: Vec<RunningJob> = in_time(here.call("duly.jobs", &()).node(worker.node).reply()).await.expect("reads");
    assert_eq!(jobs.iter().map(|job| job.id).collect::<Vec<_>>(), [first]);
    // The push may have delivered the job before the store knew that the node is quiet: it is then released at once.
    until("the job is ready", async || {
        here.jobs().get(second).await.expect("reads").is_some_and(|job| job.state == State::Ready)
    })
    .await;
    assert!(worker.started.try_recv().is_err(), "starts nothing");
    assert_eq!(
        here.jobs().get(first).await.expect("reads").expect("is there").state,
        State::Running,
        "running jobs continue"
    );
    quiet(false).await.expect("replies");
    assert_eq!(in_time(worker.started.recv()).await, Some(second));
    worker.stop.cancel();
    worker.release.cancel();
    in_time(worker.run).await.expect("no panic").expect("ends well");
}

pub async fn worker_is_stopped_by_another_node(location: Location) {
    let (here, there) = (location.open().await, location.open().await);
    let worker = blocking_worker(&there).await;
    until("the worker stops", async || here.call("duly.stop", &()).node(worker.node).reply::<Value>().await.is_ok())
        .await;
    in_time(worker.run).await.expect("no panic").expect("ends well");
    assert!(!worker.stop.is_cancelled(), "the token of the program is not cancelled");
}
