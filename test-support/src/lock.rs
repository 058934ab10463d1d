//! Locks that ignore poison.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks the mutex, whether or not another holder has panicked: one failed assertion must not fail other threads.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
