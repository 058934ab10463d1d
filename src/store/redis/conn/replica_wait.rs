//! A pool of connections to one master for requests that wait for replicas (`WAIT`), one request per connection.

use std::sync::{Mutex, MutexGuard};

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::store::redis::conn::RETRY_TIMEOUT;
use crate::sync::LockExt;

/// Maximum connections to one server that wait for its replicas.
const REPLICA_WAIT_CONNECTIONS_MAX: usize = 16;

pub(crate) struct ReplicaWaitPool {
    permits: Semaphore,
    /// Indexes of the unused connections.
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
    /// Acquires a connection; returns `None` if none becomes free in time.
    pub(crate) async fn acquire(&self) -> Option<ReplicaWaitPermit<'_>> {
        let permit = tokio::time::timeout(RETRY_TIMEOUT, self.permits.acquire()).await.ok()?.ok()?;
        let index = self.free_indexes().pop().unwrap_or(0);
        Some(ReplicaWaitPermit { pool: self, index, _permit: permit })
    }

    fn free_indexes(&self) -> MutexGuard<'_, Vec<usize>> {
        self.free_indexes.lock_unpoisoned()
    }
}

/// The use of one connection; returns it to the pool when dropped.
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
        let pool = ReplicaWaitPool::default();
        let mut permits = Vec::new();
        for _ in 0..REPLICA_WAIT_CONNECTIONS_MAX {
            permits.push(pool.acquire().await.expect("is free"));
        }
        let mut numbers: Vec<usize> = permits.iter().map(|permit| permit.index).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..REPLICA_WAIT_CONNECTIONS_MAX).collect::<Vec<_>>());
        assert!(pool.acquire().await.is_none(), "all are in use");
        let freed = permits.pop().expect("there is one").index;
        assert_eq!(pool.acquire().await.map(|permit| permit.index), Some(freed));
    }
}
