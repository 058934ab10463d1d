//! Requests to one master that wait until replicas have what was written: a connection each, so many at a time.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::store::redis::conn::RETRY_TIMEOUT;

/// Most connections to one server for requests that wait for its replicas.
const REPLICA_WAIT_CONNECTIONS_MAX: usize = 16;

pub(crate) struct ReplicaWaitPool {
    permits: Semaphore,
    /// Numbers of the connections that nobody uses.
    free_indexes: Mutex<Vec<usize>>,
}

impl Default for ReplicaWaitPool {
    fn default() -> Self {
        ReplicaWaitPool {
            permits: Semaphore::new(REPLICA_WAIT_CONNECTIONS_MAX),
            free_indexes: Mutex::new((0..REPLICA_WAIT_CONNECTIONS_MAX).collect()),
        }
    }
}

impl ReplicaWaitPool {
    /// One of the connections; `None` if none is free for too long.
    pub(crate) async fn acquire(&self) -> Option<ReplicaWaitPermit<'_>> {
        let permit = tokio::time::timeout(RETRY_TIMEOUT, self.permits.acquire()).await.ok()?.ok()?;
        let at = self.free_indexes().pop().unwrap_or(0);
        Some(ReplicaWaitPermit { pool: self, index: at, _permit: permit })
    }

    fn free_indexes(&self) -> MutexGuard<'_, Vec<usize>> {
        self.free_indexes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The use of one of the connections; ends when dropped.
pub(crate) struct ReplicaWaitPermit<'c> {
    pool: &'c ReplicaWaitPool,
    pub(crate) index: usize,
    _permit: SemaphorePermit<'c>,
}

impl Drop for ReplicaWaitPermit<'_> {
    fn drop(&mut self) {
        self.pool.free_indexes().push(self.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_permit_has_own_connection_and_acquire_times_out() {
        let confirming = ReplicaWaitPool::default();
        let mut turns = Vec::new();
        for _ in 0..REPLICA_WAIT_CONNECTIONS_MAX {
            turns.push(confirming.acquire().await.expect("is free"));
        }
        let mut numbers: Vec<usize> = turns.iter().map(|turn| turn.index).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..REPLICA_WAIT_CONNECTIONS_MAX).collect::<Vec<_>>());
        assert!(confirming.acquire().await.is_none(), "all are in use");
        let ended = turns.pop().expect("there is one").index;
        assert_eq!(confirming.acquire().await.map(|turn| turn.index), Some(ended));
    }
}
