//! The syncs for `durability=second`: the writing thread syncs the WAL once a second instead of each commit.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use tokio::time::Instant;

use crate::clock;

/// How often the file is synced if commits are not: the most that a loss of power can cost.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// Syncs the WAL when that is due.
pub(super) struct WalSync {
    /// `None` if each commit is synced.
    wal: Option<PathBuf>,
    /// The time of the oldest commit that is not synced.
    unsynced_since: Option<Instant>,
}

impl WalSync {
    pub(super) fn new(wal: Option<PathBuf>) -> Self {
        WalSync { wal, unsynced_since: None }
    }

    /// Returns the next task. Syncs when a sync is due, and before the end: closing the file syncs it only if no other
    /// process has it open.
    pub(super) fn next_task<T>(&mut self, tasks: &Receiver<T>) -> Option<T> {
        while let Some(since) = self.unsynced_since {
            match tasks.recv_timeout(SYNC_INTERVAL.saturating_sub(clock::monotonic_now() - since)) {
                Ok(task) => return Some(task),
                Err(RecvTimeoutError::Timeout) => self.sync(),
                Err(RecvTimeoutError::Disconnected) => {
                    self.sync();
                    return None;
                }
            }
        }
        tasks.recv().ok()
    }

    /// Records a commit.
    pub(super) fn record_commit(&mut self) {
        if self.wal.is_none() {
            return;
        }
        let since = *self.unsynced_since.get_or_insert_with(clock::monotonic_now);
        if clock::monotonic_now() - since >= SYNC_INTERVAL {
            self.sync();
        }
    }

    #[cfg(test)]
    pub(super) fn has_unsynced_commit(&self) -> bool {
        self.unsynced_since.is_some()
    }

    fn sync(&mut self) {
        self.unsynced_since = None;
        let synced = self.wal.as_ref().map(|wal| std::fs::File::open(wal).and_then(|wal| wal.sync_data()));
        if let Some(Err(error)) = synced {
            tracing::error!(%error, "the disk did not sync; commits of the last second may be lost");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn last_commit_is_synced_before_the_thread_ends() {
        let dir = tempfile::tempdir().expect("a directory");
        let wal = dir.path().join("duly.db-wal");
        std::fs::write(&wal, "a commit").expect("writes");
        let (sender, tasks) = channel::<()>();
        let mut syncs = WalSync::new(Some(wal));
        syncs.record_commit();
        assert!(syncs.has_unsynced_commit(), "not one by one");
        drop(sender);
        assert!(syncs.next_task(&tasks).is_none(), "there is no more to do");
        assert!(!syncs.has_unsynced_commit());
    }
}
