//! Push inside the caller's own transaction: the jobs are committed if and only if the caller's rows are.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::Transaction;

use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::job::push::{Push, PushResult};
use crate::store::sqlite::jobs::push;
use crate::store::sqlite::nodes::registry::NodeRegistry;
use crate::store::sqlite::nodes::wake::{Notifier, PendingNotifications};
use crate::store::sqlite::tx::{QueueNumbers, Tx};
use crate::store::sqlite::{errors, file};

/// The work that remains after the caller's commit: waking a worker.
///
/// Without it, workers find the jobs at their next check, within a second.
#[must_use = "call `wake()` after the commit, or the jobs start up to a second late"]
#[derive(Debug)]
pub struct AfterCommit {
    /// The result for each job, valid once the transaction is committed.
    pub pushed: Vec<PushResult>,
    file: PathBuf,
    notifications: PendingNotifications,
}

impl AfterCommit {
    /// Wakes workers for the jobs. Call it after the commit.
    pub fn wake(self) {
        if let Ok(registry) = NodeRegistry::open(&self.file, Clock::system()) {
            Notifier::new(Arc::new(registry)).deliver(self.notifications);
        }
    }
}

/// Pushes jobs inside `tx`, a transaction on the file of this store.
pub(crate) fn push_in(
    tx: &Transaction<'_>,
    store: &Path,
    clock: &Clock,
    history: bool,
    jobs: &[Push],
) -> Result<AfterCommit> {
    let refused = |e| errors::from_sqlite("push_in", e);
    let store = store.canonicalize().unwrap_or_else(|_| store.to_owned());
    let own = tx.path().map(Path::new).and_then(|path| path.canonicalize().ok());
    if own.as_deref() != Some(store.as_path()) {
        return Err(Error::invalid(
            "transaction",
            format!("must be on {}, the file of this store; open your connection on that file", store.display()),
        ));
    }
    // A savepoint makes the push all or nothing, even if the caller commits after an error.
    tx.execute_batch("SAVEPOINT duly_push").map_err(refused)?;
    let pushed = push_in_savepoint(tx, clock, history, jobs);
    let end = if pushed.is_ok() { "RELEASE duly_push" } else { "ROLLBACK TO duly_push; RELEASE duly_push" };
    tx.execute_batch(end).map_err(refused)?;
    let (pushed, notifications) = pushed?;
    Ok(AfterCommit { pushed, file: store, notifications })
}

fn push_in_savepoint(
    tx: &Transaction<'_>,
    clock: &Clock,
    history: bool,
    jobs: &[Push],
) -> Result<(Vec<PushResult>, PendingNotifications)> {
    let refused = |e| errors::from_sqlite("push_in", e);
    // Takes the write lock first: a transaction that started with a read cannot get it after another connection wrote.
    tx.execute("UPDATE duly_sequence SET value = value WHERE name = 'next_number'", []).map_err(refused)?;
    if file::read_format(tx).map_err(refused)? != Some(file::FORMAT.to_string()) {
        return Err(Error::store(
            "push_in",
            "the file has another format than this build of duly; use the same version",
        ));
    }
    let queues = QueueNumbers::default();
    let inner = Tx::new(tx, clock.now_micros(), &queues, history);
    let pushed = push::push(&inner, jobs).map_err(refused)?.map_err(Error::from)?;
    inner.flush().map_err(refused)?;
    Ok((pushed, inner.into_notifications()))
}
