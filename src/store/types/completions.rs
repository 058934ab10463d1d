//! Being told that jobs have ended, so that nobody who waits for one has to ask for it again and again.

use std::time::Duration;

/// How long a store tells of ends after it was asked to: whoever still waits asks again before that.
pub const COMPLETION_WATCH_DURATION: Duration = Duration::from_secs(60);
/// Most queues of which one node is told.
pub const COMPLETION_QUEUES_MAX: usize = 1_000;
/// Most jobs looked at in one step.
pub const COMPLETION_CHECK_MAX: usize = 500;
