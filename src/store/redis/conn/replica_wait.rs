//! Requests to one master that wait until replicas have what was written: a connection each, so many at a time.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::store::redis::conn::PATIENCE;

/// Most connections to one server for requests that wait for its replicas.
const CONFIRMING_MAX: usize = 16;

pub(crate) struct Confirming {
    permits: Semaphore,
    /// Numbers of the connections that nobody uses.
    free: Mutex<Vec<usize>>,
}

impl Default for Confirming {
    fn default() -> Self {
        Confirming { permits: Semaphore::new(CONFIRMING_MAX), free: Mutex::new((0..CONFIRMING_MAX).collect()) }
    }
}

impl Confirming {
    /// One of the connections; `None` if none is free for too long.
    pub(crate) async fn turn(&self) -> Option<Turn<'_>> {
        let permit = tokio::time::timeout(PATIENCE, self.permits.acquire()).await.ok()?.ok()?;
        let at = self.free().pop().unwrap_or(0);
        Some(Turn { of: self, at, _permit: permit })
    }

    fn free(&self) -> MutexGuard<'_, Vec<usize>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The use of one of the connections; ends when dropped.
pub(crate) struct Turn<'c> {
    of: &'c Confirming,
    pub(crate) at: usize,
    _permit: SemaphorePermit<'c>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.of.free().push(self.at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_has_a_connection_of_its_own_and_nobody_waits_for_ever() {
        let confirming = Confirming::default();
        let mut turns = Vec::new();
        for _ in 0..CONFIRMING_MAX {
            turns.push(confirming.turn().await.expect("is free"));
        }
        let mut numbers: Vec<usize> = turns.iter().map(|turn| turn.at).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..CONFIRMING_MAX).collect::<Vec<_>>());
        assert!(confirming.turn().await.is_none(), "all are in use");
        let ended = turns.pop().expect("there is one").at;
        assert_eq!(confirming.turn().await.map(|turn| turn.at), Some(ended));
    }
}
