//! Whether a handler is being polled: one that is polled for long blocks its thread.

use std::sync::atomic::{AtomicU8, Ordering};

/// Whether the handler of an attempt is being polled, which blocks its thread.
#[derive(Default)]
pub(crate) struct AttemptPoll(AtomicU8);

/// The last event of an attempt's task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PollState {
    NeverPolled,
    Polling,
    Pending,
}

impl AttemptPoll {
    pub(crate) fn set(&self, state: PollState) {
        self.0.store(state as u8, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> PollState {
        let states = [PollState::NeverPolled, PollState::Polling, PollState::Pending];
        let current = self.0.load(Ordering::Relaxed);
        states.into_iter().find(|state| *state as u8 == current).unwrap_or(PollState::Pending)
    }
}
