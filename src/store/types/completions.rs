//! Watching for completed jobs, so that waiting callers need not poll.

use std::time::Duration;

/// How long a watch lasts; a caller that still waits renews it before that.
pub const COMPLETION_WATCH_DURATION: Duration = Duration::from_secs(60);
/// Most queues that one node watches.
pub const COMPLETION_QUEUES_MAX: usize = 1_000;
/// Most jobs checked in one operation.
pub const COMPLETION_CHECK_MAX: usize = 500;
