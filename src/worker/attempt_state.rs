//! The state that an attempt shares with its handler, the worker and reports of progress.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::SystemTime;

use crate::job::HeldJob;
use crate::worker::ack_in::AckIn;
use crate::worker::attempt_poll::AttemptPoll;
use crate::worker::cancel::Cancellation;

/// The state of one attempt.
pub(crate) struct AttemptState {
    pub(crate) held: Arc<HeldJob>,
    pub(crate) deadline: SystemTime,
    /// Signals that the attempt should end.
    pub(crate) cancellation: Cancellation,
    /// The reported progress as the bits of an `f64`; NaN if there is none.
    pub(crate) progress: AtomicU64,
    pub(crate) poll: AttemptPoll,
    /// The outcome is known: later reports from leftover parts of the handler are dropped.
    pub(crate) finished: AtomicBool,
    pub(crate) ack_in: AckIn,
}

impl AttemptState {
    pub(crate) fn new(held: HeldJob, deadline: SystemTime) -> Self {
        AttemptState {
            held: Arc::new(held),
            deadline,
            cancellation: Cancellation::default(),
            progress: AtomicU64::new(f64::NAN.to_bits()),
            poll: AttemptPoll::default(),
            finished: AtomicBool::new(false),
            ack_in: AckIn::default(),
        }
    }
}
