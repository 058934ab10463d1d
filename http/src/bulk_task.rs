//! Bulk changes: each runs in a task of its own, which no timeout of a request cuts off.
//!
//! The task records the end in the audit log. The start is recorded before the first change, so a kill of the server
//! leaves no change without an entry.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::http::StatusCode;
use duly::admin::{AuditEntry, AuditOutcome, BulkOperation, BulkReport};
use tokio::task::JoinHandle;

use super::audit::{self, AuditNote};
use super::auth::handler_failed;
use super::problem::{Problem, Result};
use super::server::{App, WAIT_MAX};

/// How long a store that does not reply may delay the start or the end of a bulk change.
const RECORD_WAIT_MAX: Duration = Duration::from_secs(5);

/// A bulk change that has started. It continues if this value is dropped.
pub(crate) struct BulkTask(JoinHandle<Result<BulkReport>>);

impl BulkTask {
    /// Records the start of a bulk change and starts it. `on_progress` receives the report after each batch.
    ///
    /// The entries have the name, target and filter that the note has now. If the store does not confirm the first one
    /// in time, the change ends with an error before it changes a job.
    pub(crate) async fn start(
        app: &Arc<App>,
        note: &AuditNote,
        bulk: BulkOperation<'static>,
        mut on_progress: impl FnMut(&BulkReport) + Send + Sync + 'static,
    ) -> Self {
        let entry = note.take_entry(AuditOutcome::Started);
        if let Some(entry) = &entry
            && !record(app, entry.clone()).await
        {
            return BulkTask(app.tasks.spawn(async { Err(not_recorded()) }));
        }
        let applied = Arc::new(AtomicU64::new(0));
        let counter = applied.clone();
        let bulk = bulk.on_progress(move |report| {
            counter.store(report.applied, Ordering::Relaxed);
            on_progress(report);
        });
        BulkTask(app.tasks.spawn(run(app.clone(), entry, bulk, applied)))
    }

    /// Waits for the end.
    pub(crate) async fn end(self) -> Result<BulkReport> {
        self.0.await.unwrap_or_else(|_| Err(handler_failed()))
    }

    /// Waits for the end; `None` if the change takes longer than a request may, and continues.
    pub(crate) async fn wait(self) -> Result<Option<BulkReport>> {
        tokio::time::timeout(WAIT_MAX, self.end()).await.ok().transpose()
    }
}

/// Runs a bulk change and records its end, with the changes so far if it is cut off.
async fn run(
    app: Arc<App>,
    entry: Option<AuditEntry>,
    bulk: BulkOperation<'static>,
    applied: Arc<AtomicU64>,
) -> Result<BulkReport> {
    let result = tokio::select! {
        biased;
        () = app.bulk_stop.cancelled() => Err(server_stops()),
        result = bulk.run() => result.map_err(Problem::from),
    };
    let (outcome, count) = match &result {
        Ok(report) => (AuditOutcome::Done, report.applied),
        Err(_) => (AuditOutcome::Unknown, applied.load(Ordering::Relaxed)),
    };
    if let Some(mut entry) = entry {
        (entry.outcome, entry.count) = (outcome, Some(count));
        record(&app, entry).await;
    }
    result
}

/// Adds an entry. Returns whether the store has replied in time.
async fn record(app: &App, entry: AuditEntry) -> bool {
    let action = entry.action.clone();
    let is_in_time = tokio::time::timeout(RECORD_WAIT_MAX, audit::add(app, entry)).await.is_ok();
    if !is_in_time {
        tracing::error!(action, "timed out recording a bulk change in the audit log");
    }
    is_in_time
}

fn not_recorded() -> Problem {
    let detail = "the store did not record the start of the change in time; nothing was changed; start it again";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "timeout", detail)
}

fn server_stops() -> Problem {
    let detail = "the server stops; a part of the jobs may have been changed; start the change again";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unknown", detail)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use duly::{Clock, Duly, Push};

    use crate::audited_action::AuditedAction;
    use crate::server::Server;
    use crate::sign_in_link::SignInLink;

    use super::*;

    const LONG: Duration = Duration::from_secs(30);
    /// More than one batch.
    const JOBS: u64 = 500;

    /// A bulk change that waits after its first batch.
    struct Blocked {
        app: Arc<App>,
        task: BulkTask,
        /// Lets the change go on.
        release: mpsc::Sender<()>,
        in_first_batch: u64,
    }

    impl Blocked {
        async fn start() -> Self {
            let duly = Duly::open(":memory:").await.expect("opens");
            duly.push_all((0..JOBS).map(|_| Push::new("work", "1").queue("mail"))).await.expect("pushes");
            let app = Server::new(duly.clone()).app_with(SignInLink::default(), &Clock::system());
            let action = AuditedAction::new(
                &axum::http::Method::DELETE,
                "/api/v1/queues/{queue}/jobs",
                "/api/v1/queues/mail/jobs",
            );
            let request = audit::AuditedRequest::new(app.clone(), action, "ada".to_owned(), None);
            let (release, released) = mpsc::channel();
            let (reached, mut first_batch) = tokio::sync::mpsc::unbounded_channel();
            let released = std::sync::Mutex::new(released);
            let block = move |report: &BulkReport| {
                if reached.send(report.applied).is_ok() {
                    let _ = released.lock().map(|released| released.recv_timeout(LONG));
                }
            };
            let task = BulkTask::start(&app, &request.note, duly.queues().clear("mail"), block).await;
            request.end(StatusCode::OK).await;
            let first_batch = tokio::time::timeout(LONG, first_batch.recv()).await.expect("in time");
            Blocked { app, task, release, in_first_batch: first_batch.expect("a batch") }
        }

        /// Returns the outcomes and counts in the audit log, newest first.
        async fn recorded(&self) -> Vec<(AuditOutcome, Option<u64>)> {
            let entries = self.app.duly.audit().list(None, 10).await.expect("reads");
            let entries = entries.into_iter().map(|record| record.entry);
            let entries = entries.inspect(|entry| {
                assert_eq!((entry.action.as_str(), entry.target.as_deref()), ("queues.clear", Some("mail")));
            });
            entries.map(|entry| (entry.outcome, entry.count)).collect()
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn start_is_recorded_before_the_end_and_the_request() {
        let blocked = Blocked::start().await;
        let started = (AuditOutcome::Started, None);
        assert_eq!(blocked.recorded().await, [started], "the end of the request adds no entry");
        // The request ends while the change runs.
        let Blocked { app, task, release, .. } = blocked;
        drop((task, release));
        test_support::until("the end is recorded", async || {
            let entries = app.duly.audit().list(None, 10).await.expect("reads");
            entries.len() == 2 && entries[0].entry.count == Some(JOBS) && entries[0].entry.outcome == AuditOutcome::Done
        })
        .await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn stop_of_the_server_records_the_changes_so_far() {
        let mut blocked = Blocked::start().await;
        assert!((1..JOBS).contains(&blocked.in_first_batch));
        blocked.app.bulk_stop.cancel();
        blocked.release = mpsc::channel().0;
        let problem = (&mut blocked.task.0).await.expect("no panic").expect_err("it was ended");
        assert_eq!(problem.status, StatusCode::SERVICE_UNAVAILABLE);
        let (unknown, started) = ((AuditOutcome::Unknown, Some(blocked.in_first_batch)), (AuditOutcome::Started, None));
        assert_eq!(blocked.recorded().await, [unknown, started]);
    }
}
