//! Notices commits of other programs, so that their rows in the inbox become jobs within milliseconds.
//!
//! On Linux, the kernel reports every write to the WAL (inotify). It does so before the commit is visible, but the writer
//! of that commit holds the write lock until then. The watch therefore asks for a write transaction: it waits for the
//! lock, and sees the rows.
//!
//! duly's own commits are reported too. After reports without a row in the inbox, the watch waits longer before it asks
//! again, so a busy store gets at most 20 such transactions a second. They write nothing.

use std::io;
use std::path::Path;

/// The watch of a store. Dropping it ends its thread.
#[derive(Debug)]
pub(in crate::store::sqlite) struct InboxWatch {
    #[cfg(target_os = "linux")]
    _thread: linux::WatchThread,
}

impl InboxWatch {
    /// Starts to watch the WAL. `request` asks for a write transaction, and returns whether the last one found rows;
    /// `None` if that request is still on its way.
    #[cfg(target_os = "linux")]
    pub(in crate::store::sqlite) fn start(
        wal: &Path,
        request: impl FnMut() -> Option<bool> + Send + 'static,
    ) -> io::Result<Option<Self>> {
        Ok(Some(InboxWatch { _thread: linux::WatchThread::start(wal, request)? }))
    }

    /// Elsewhere, the claims of idle workers at each heartbeat find the rows.
    #[cfg(not(target_os = "linux"))]
    pub(in crate::store::sqlite) fn start(
        _wal: &Path,
        _request: impl FnMut() -> Option<bool> + Send + 'static,
    ) -> io::Result<Option<Self>> {
        Ok(None)
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::io::{self, PipeReader, PipeWriter};
    use std::os::fd::OwnedFd;
    use std::path::Path;
    use std::thread::JoinHandle;
    use std::time::Duration;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::fs::inotify;

    use crate::clock;
    use crate::sync::spawn_thread;

    /// How long to wait after a report: the commit needs this long anyway, and a burst of commits is one request.
    const PAUSE_MIN: Duration = Duration::from_millis(1);
    /// The longest wait, while the file is written all the time.
    const PAUSE_MAX: Duration = Duration::from_millis(50);
    /// Bytes of reports to read at once. They only say that the WAL was written.
    const REPORT_BYTES_MAX: usize = 4_096;

    #[derive(Debug)]
    pub(super) struct WatchThread {
        /// Closing it ends the thread.
        stop: Option<PipeWriter>,
        thread: Option<JoinHandle<()>>,
    }

    impl WatchThread {
        pub(super) fn start(wal: &Path, request: impl FnMut() -> Option<bool> + Send + 'static) -> io::Result<Self> {
            let reports = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
            inotify::add_watch(&reports, wal, inotify::WatchFlags::MODIFY)?;
            let (stopped, stop) = io::pipe()?;
            let thread = spawn_thread("duly-inbox", move || watch(&reports, &stopped, request))?;
            Ok(WatchThread { stop: Some(stop), thread: Some(thread) })
        }
    }

    impl Drop for WatchThread {
        fn drop(&mut self) {
            self.stop = None;
            if let Some(thread) = self.thread.take() {
                // Its panic has been reported.
                let _ = thread.join();
            }
        }
    }

    fn watch(reports: &OwnedFd, stopped: &PipeReader, mut request: impl FnMut() -> Option<bool>) {
        let mut pause = PAUSE_MIN;
        // Rows that were inserted before the watch began.
        let mut is_due = true;
        loop {
            if !is_due {
                let quiet_since = clock::monotonic_now();
                if wait_for_report(reports, stopped) {
                    return;
                }
                if clock::monotonic_now() - quiet_since > PAUSE_MAX {
                    pause = PAUSE_MIN;
                }
            }
            if wait(&[stopped_fd(stopped)], Some(pause)) {
                return;
            }
            // Read before the request: a later report belongs to a later commit.
            let mut buffer = [0_u8; REPORT_BYTES_MAX];
            while rustix::io::read(reports, &mut buffer).is_ok_and(|bytes| bytes == REPORT_BYTES_MAX) {}
            let found = request();
            is_due = found.is_none();
            pause = if found == Some(true) { PAUSE_MIN } else { (pause * 2).min(PAUSE_MAX) };
        }
    }

    /// Waits for a write to the WAL. Returns whether the watch must end instead.
    fn wait_for_report(reports: &OwnedFd, stopped: &PipeReader) -> bool {
        let mut fds = [stopped_fd(stopped), PollFd::new(reports, PollFlags::IN)];
        loop {
            match poll(&mut fds, None) {
                Ok(_) if !fds[0].revents().is_empty() => return true,
                Ok(_) if !fds[1].revents().is_empty() => return false,
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return true,
            }
        }
    }

    fn stopped_fd(stopped: &PipeReader) -> PollFd<'_> {
        PollFd::new(stopped, PollFlags::IN)
    }

    /// Waits for one of these descriptors. Returns whether one is ready.
    fn wait(fds: &[PollFd<'_>; 1], at_most: Option<Duration>) -> bool {
        let timeout =
            at_most.map(|time| Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: time.subsec_nanos().into() });
        let mut fds = fds.clone();
        poll(&mut fds, timeout.as_ref()).is_ok_and(|ready| ready > 0)
    }
}
