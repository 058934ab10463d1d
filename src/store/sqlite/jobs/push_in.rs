//! Push inside the user's own transaction: the job is there if, and only if, the user's rows are.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::Transaction;

use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::job::push::{Push, Pushed};
use crate::store::sqlite::jobs::push;
use crate::store::sqlite::nodes::registry::Board;
use crate::store::sqlite::nodes::wake::{News, Waker};
use crate::store::sqlite::tx::{Queues, Tx};
use crate::store::sqlite::{errors, file};

/// What is left to do once the user's transaction is committed: wake a worker.
///
/// Without it the jobs are found by the look that every worker takes once a second.
#[must_use = "call `wake()` after the commit, or the jobs start up to a second late"]
#[derive(Debug)]
pub struct AfterCommit {
    /// What became of the jobs, once the transaction is committed.
    pub pushed: Vec<Pushed>,
    file: PathBuf,
    news: News,
}

impl AfterCommit {
    /// Wakes workers for the jobs; to be called after the commit.
    pub fn wake(self) {
        if let Ok(board) = Board::beside(&self.file, Clock::system()) {
            Waker::new(Arc::new(board)).tell(self.news);
        }
    }
}

/// Pushes jobs inside `tx`, a transaction on the file that this store is in.
pub(crate) fn push_in(
    tx: &Transaction<'_>,
    store: &Path,
    clock: &Clock,
    history: bool,
    jobs: &[Push],
) -> Result<AfterCommit> {
    let refused = |e| errors::refused("push_in", e);
    let store = store.canonicalize().unwrap_or_else(|_| store.to_owned());
    let own = tx.path().map(Path::new).and_then(|path| path.canonicalize().ok());
    if own.as_deref() != Some(store.as_path()) {
        return Err(Error::invalid(
            "transaction",
            format!("is not on {}, the file of this store: open your connection on that file", store.display()),
        ));
    }
    // All or nothing of ours, whatever the user does after an error.
    tx.execute_batch("SAVEPOINT duly_push").map_err(refused)?;
    let pushed = push_all(tx, clock, history, jobs);
    let end = if pushed.is_ok() { "RELEASE duly_push" } else { "ROLLBACK TO duly_push; RELEASE duly_push" };
    tx.execute_batch(end).map_err(refused)?;
    let (pushed, news) = pushed?;
    Ok(AfterCommit { pushed, file: store, news })
}

fn push_all(tx: &Transaction<'_>, clock: &Clock, history: bool, jobs: &[Push]) -> Result<(Vec<Pushed>, News)> {
    let refused = |e| errors::refused("push_in", e);
    // The write lock first: a transaction that begins with a look cannot have it once somebody else has written.
    tx.execute("UPDATE duly_sequence SET value = value WHERE name = 'next_number'", []).map_err(refused)?;
    if file::format_of(tx).map_err(refused)? != Some(file::FORMAT.to_string()) {
        return Err(Error::store("push_in", "the file has another format than this build of duly"));
    }
    let queues = Queues::default();
    let inner = Tx::new(tx, clock.wall(), &queues, history);
    let pushed = push::push(&inner, jobs).map_err(refused)?.map_err(Error::from)?;
    inner.flush().map_err(refused)?;
    Ok((pushed, inner.into_news()))
}
