//! Locks that ignore poison, and named threads.
//!
//! A lock is poisoned if a thread panics while it holds the lock. duly holds a lock only for short updates of maps,
//! lists and counters, so the value is still usable after a panic.
//! Passing the panic on to every later holder would turn one failed attempt into a process without heartbeats.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::error::{Error, Result};

pub(crate) trait LockExt<T> {
    /// Locks the mutex, whether or not another holder has panicked.
    fn lock_unpoisoned(&self) -> MutexGuard<'_, T>;
}

impl<T> LockExt<T> for Mutex<T> {
    fn lock_unpoisoned(&self) -> MutexGuard<'_, T> {
        self.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for a notification, at most this long if there is a limit.
pub(crate) fn wait_on<'a, T>(
    condition: &Condvar,
    guard: MutexGuard<'a, T>,
    timeout: Option<Duration>,
) -> MutexGuard<'a, T> {
    match timeout {
        None => condition.wait(guard).unwrap_or_else(PoisonError::into_inner),
        Some(timeout) => condition.wait_timeout(guard, timeout).unwrap_or_else(PoisonError::into_inner).0,
    }
}

/// Starts a thread with this name. `op` is the operation that needs it; its error names the cause.
pub(crate) fn start_thread(
    op: &'static str,
    name: &str,
    run: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>> {
    spawn_thread(name, run).map_err(|error| start_error(op, &error))
}

/// Starts a thread with this name, for callers that give the error a context of their own.
pub(crate) fn spawn_thread(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(run)
}

/// Builds a runtime that runs on the one thread that blocks on it.
pub(crate) fn build_thread_runtime(op: &'static str) -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| start_error(op, &error))
}

fn start_error(op: &'static str, error: &std::io::Error) -> Error {
    Error::store(op, format!("cannot start a thread: {error}; raise the limit of threads, or end other processes"))
}
