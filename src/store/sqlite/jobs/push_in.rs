//! Push inside the caller's own transaction: the jobs are committed if and only if the caller's rows are.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::Transaction;

use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::job::push::{Push, PushResult};
use crate::store::Store;
use crate::store::sqlite::disk_reserve::{self, DiskReserve};
use crate::store::sqlite::errors;
use crate::store::sqlite::file::{FORMAT, read_format, read_store_id};
use crate::store::sqlite::jobs::push;
use crate::store::sqlite::nodes::registry::NodeRegistry;
use crate::store::sqlite::nodes::wakes::{Notifier, PendingNotifications};
use crate::store::sqlite::tx::{QueueNumbers, Tx};

/// The work of the client with the results after the commit.
type CommitHook = Box<dyn FnOnce(&[PushResult]) + Send + Sync>;

/// The work that remains after the caller's commit: waking a worker, metrics and middleware.
///
/// Without it, workers find the jobs at their next check, within a second.
#[must_use = "call `wake()` after the commit, or the jobs start up to a second late"]
#[non_exhaustive]
pub struct AfterCommit {
    /// The result for each job, valid once the transaction is committed.
    pub pushed: Vec<PushResult>,
    file: PathBuf,
    store: Arc<dyn Store>,
    notifications: PendingNotifications,
    then: Option<CommitHook>,
}

impl std::fmt::Debug for AfterCommit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AfterCommit").field("pushed", &self.pushed).finish_non_exhaustive()
    }
}

impl AfterCommit {
    /// Adds the work of the client after the commit.
    pub(crate) fn then(mut self, then: impl FnOnce(&[PushResult]) + Send + Sync + 'static) -> Self {
        self.then = Some(Box::new(then));
        self
    }

    /// Wakes workers for the jobs, counts the jobs in the metrics and runs the middleware. Call it after the commit.
    ///
    /// If the file was replaced before the commit, no worker will find the jobs: logs an error, and does nothing else.
    pub fn wake(self) {
        if let Err(error) = self.store.check_files("push_in", None) {
            tracing::error!(%error, jobs = self.pushed.len(), "jobs were committed into a file that was replaced");
            return;
        }
        if let Some(then) = self.then {
            then(&self.pushed);
        }
        // Without a registry there is no worker to wake.
        if let Ok(Some(registry)) = NodeRegistry::open_existing(&self.file, Clock::system()) {
            Notifier::new(Arc::new(registry)).deliver(self.notifications);
        }
    }
}

/// Pushes jobs inside `tx`, a transaction on `file`, the file of this store.
pub(crate) fn push_in(
    tx: &Transaction<'_>,
    store: &Arc<dyn Store>,
    file: &Path,
    clock: &Clock,
    history: bool,
    jobs: &[Push],
) -> Result<AfterCommit> {
    let own = check_transaction(tx, store, file, "push_in")?;
    let reserve = DiskReserve::new(&own.file);
    let (pushed, notifications) = own.in_savepoint(|| push_in_savepoint(tx, &reserve, clock, history, jobs))?;
    Ok(AfterCommit { pushed, file: own.file, store: store.clone(), notifications, then: None })
}

/// A transaction of the caller that is on the file of this store, as far as the paths tell.
pub(crate) struct OwnTransaction<'t> {
    tx: &'t Transaction<'t>,
    store: &'t dyn Store,
    /// The file, without symbolic links.
    pub(crate) file: PathBuf,
    op: &'static str,
}

/// Checks that a transaction of the caller is on `file`, the file of this store.
pub(crate) fn check_transaction<'t>(
    tx: &'t Transaction<'t>,
    store: &'t Arc<dyn Store>,
    file: &Path,
    op: &'static str,
) -> Result<OwnTransaction<'t>> {
    // First: the comparison of the paths fails too if the file is gone, with a worse advice.
    store.check_files(op, None)?;
    let file = file.canonicalize().unwrap_or_else(|_| file.to_owned());
    let own = tx.path().map(Path::new).and_then(|path| path.canonicalize().ok());
    if own.as_deref() == Some(file.as_path()) {
        return Ok(OwnTransaction { tx, store: &**store, file, op });
    }
    Err(Error::invalid(
        "transaction",
        format!("must be on {}, the file of this store; open your connection on that file", file.display()),
    ))
}

impl OwnTransaction<'_> {
    /// Runs `run` in a savepoint: all of it or nothing takes effect, even if the caller commits after an error.
    pub(crate) fn in_savepoint<T>(&self, run: impl FnOnce() -> Result<T>) -> Result<T> {
        let refused = |e| errors::from_sqlite(self.op, e);
        self.tx.execute_batch("SAVEPOINT duly_caller").map_err(refused)?;
        let ran = self.lock_and_check().and_then(|()| run());
        let end = if ran.is_ok() { "RELEASE duly_caller" } else { "ROLLBACK TO duly_caller; RELEASE duly_caller" };
        self.tx.execute_batch(end).map_err(refused)?;
        ran
    }

    /// Takes the write lock and checks that the open file is the one of this store.
    fn lock_and_check(&self) -> Result<()> {
        let refused = |e| errors::from_sqlite(self.op, e);
        // Locks first: a transaction that started with a read cannot get the lock after another connection wrote.
        self.tx
            .execute("UPDATE duly_sequence SET value = value WHERE name = 'next_number'", [])
            .map_err(|e| errors::from_file(self.op, &self.file, e))?;
        if read_format(self.tx).map_err(refused)? != Some(FORMAT.to_string()) {
            return Err(Error::store(
                self.op,
                "the format of the file is not that of this build of duly; use the version that opened the store",
            ));
        }
        // The transaction may have another file open: the one that was at the path before.
        self.store.check_files(self.op, read_store_id(self.tx).map_err(refused)?.as_deref())
    }
}

fn push_in_savepoint(
    tx: &Transaction<'_>,
    reserve: &DiskReserve,
    clock: &Clock,
    history: bool,
    jobs: &[Push],
) -> Result<(Vec<PushResult>, PendingNotifications)> {
    let refused = |e| errors::from_sqlite("push_in", e);
    let queues = QueueNumbers::default();
    let inner = Tx::new(tx, clock.now_micros(), &queues, history).with_disk_reserve(Some(reserve));
    inner.check_disk_room("push_in", disk_reserve::push_bytes(jobs)).map_err(refused)??;
    let pushed = push::push(&inner, jobs).map_err(refused)?.map_err(Error::from)?;
    inner.flush().map_err(refused)?;
    Ok((pushed, inner.into_notifications()))
}
