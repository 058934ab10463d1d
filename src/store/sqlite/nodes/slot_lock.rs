//! The lock of a slot: held while its node lives.

use std::fs::{File, TryLockError};
use std::os::fd::{AsFd, BorrowedFd};

/// A locked file. The kernel unlocks it when the process ends, for any reason.
#[derive(Debug)]
pub(crate) struct SlotLock(File);

impl SlotLock {
    /// Locks a file, unless another handle has locked it.
    pub(crate) fn try_new(file: File) -> Result<Self, TryLockError> {
        file.try_lock().map(|()| SlotLock(file))
    }
}

impl AsFd for SlotLock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for SlotLock {
    /// Unlocks explicitly. Closing is not enough: a child process that is just being started shares the handle until it
    /// runs its program, and would keep the lock for that long.
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_lock_is_free_although_a_child_shares_its_handle() {
        let file = tempfile::NamedTempFile::new().expect("creates a file");
        let open = || File::open(file.path()).expect("opens");
        let handle = open();
        let shared_with_child = handle.try_clone().expect("clones");
        let lock = SlotLock::try_new(handle).expect("locks");
        SlotLock::try_new(open()).expect_err("is locked");
        drop(lock);
        SlotLock::try_new(open()).expect("is free");
        drop(shared_with_child);
    }
}
