//! Locks that ignore poison.
//!
//! A lock is poisoned if a thread panics while it holds the lock. Each lock here guards a short update of a cache or
//! a counter, so the value is still usable, and one failed request must not fail all later ones.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) trait LockExt<T> {
    /// Locks the mutex, whether or not another holder has panicked.
    fn lock_unpoisoned(&self) -> MutexGuard<'_, T>;
}

impl<T> LockExt<T> for Mutex<T> {
    fn lock_unpoisoned(&self) -> MutexGuard<'_, T> {
        self.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
