//! Locks that ignore poison, and named threads.
//!
//! A lock is poisoned if a thread panics while it holds the lock. The locks here guard text that is shown to a user,
//! which is still usable then.

use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Context as _;

pub(crate) trait LockExt<T> {
    /// Locks the mutex, whether or not another holder has panicked.
    fn lock_unpoisoned(&self) -> MutexGuard<'_, T>;
}

impl<T> LockExt<T> for Mutex<T> {
    fn lock_unpoisoned(&self) -> MutexGuard<'_, T> {
        self.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts a thread with this name. It ends on its own.
pub(crate) fn start_thread(name: &str, run: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(run).context("cannot start a thread")?;
    Ok(())
}
