//! How long the writing thread waits for more operations before it commits a group.
//!
//! A commit waits for a sync of the disk, and every operation of a group shares that sync. With 64 pushing tasks, groups
//! make pushes 17 times as fast as with one task (benchmark `push`, 83,100 against 5,002 per second). Operations that
//! wait for the thread always join the group. The window decides only whether to wait for callers that are about to
//! return. Benchmark `push` shows its gain, against a build in which [`GroupCommitWindow::wait_for_task`] returns `None`:
//! 64 tasks push 1.16 times as fast with it.

use std::sync::mpsc::Receiver;
use std::time::Duration;

use tokio::time::Instant;

use crate::adaptive_wait::AdaptiveWait;
use crate::clock;

/// How long to wait for more operations if the last transaction had several: larger groups need fewer syncs.
pub(super) const GROUP_WAIT: Duration = Duration::from_micros(100);

/// The expected size of a group: the size of the last one, and sometimes more, because two waves of callers may merge.
///
/// Waiting is worth it only if the callers return sooner than another commit would take. Slower callers, for example
/// over a network, are better served in two waves: one is on its way while the other is committed.
#[derive(Default)]
pub(super) struct GroupCommitWindow {
    pub(super) expected_size: usize,
    /// Whether to wait for more than expected.
    extra_wait: AdaptiveWait,
    /// Whether the expected callers come soon enough.
    expected_wait: AdaptiveWait,
    /// The duration of the last commit.
    pub(super) last_commit_time: Duration,
}

/// The wait of one group.
#[derive(Default)]
pub(super) struct GroupWait {
    /// The end of the wait.
    deadline: Option<Instant>,
    /// The size of the group when it started to wait for more than expected.
    size_at_extra_wait: Option<usize>,
    /// The wait is over.
    is_over: bool,
}

impl GroupCommitWindow {
    /// Waits briefly for more work, if that is worth it for a group of this size.
    pub(super) fn wait_for_task<T>(&mut self, tasks: &Receiver<T>, group: usize, wait: &mut GroupWait) -> Option<T> {
        if wait.is_over || (wait.deadline.is_none() && !self.expected_wait.should_wait()) {
            wait.is_over = true;
            return None;
        }
        let is_expected = group < self.expected_size;
        if !is_expected && (group < 2 || (wait.size_at_extra_wait.is_none() && !self.extra_wait.should_wait())) {
            return None;
        }
        if !is_expected {
            wait.size_at_extra_wait.get_or_insert(group);
        }
        let now = clock::monotonic_now();
        let deadline = *wait.deadline.get_or_insert(now + (self.last_commit_time / 2).max(GROUP_WAIT));
        let remaining = deadline.saturating_duration_since(now);
        if remaining.is_zero() {
            wait.is_over = true;
            self.expected_wait.record_arrivals(0);
            return None;
        }
        tasks.recv_timeout(remaining.min(GROUP_WAIT)).ok()
    }

    /// Records the final size of the group.
    pub(super) fn record_group(&mut self, group: usize, wait: &GroupWait) {
        self.expected_size = group;
        if wait.deadline.is_some() && !wait.is_over {
            self.expected_wait.record_arrivals(group);
        }
        if let Some(at) = wait.size_at_extra_wait {
            self.extra_wait.record_arrivals(group - at);
        }
    }
}
