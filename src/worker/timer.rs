//! A timer with a precision of a fraction of a millisecond. The runtime's timers count in whole milliseconds, which
//! would delay due jobs.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::clock;
use crate::error::Result;
use crate::sync::{LockExt, start_thread, wait_on};

/// A timer with its own thread, which ends when the timer is dropped.
pub(super) struct Timer(Arc<TimerShared>);

struct TimerShared {
    state: Mutex<TimerState>,
    /// The deadline was moved forward, or the timer was dropped.
    changed: Condvar,
    expired: Notify,
}

#[derive(Default)]
struct TimerState {
    deadline: Option<Instant>,
    stopped: bool,
}

impl Timer {
    pub(super) fn start() -> Result<Self> {
        let shared = Arc::new(TimerShared { state: Mutex::default(), changed: Condvar::new(), expired: Notify::new() });
        let thread = shared.clone();
        start_thread("run", "duly-timer", move || thread.run())?;
        Ok(Timer(shared))
    }

    /// Sets or clears the deadline.
    pub(super) fn set(&self, deadline: Option<Instant>) {
        let mut state = self.0.lock();
        let is_earlier = match (deadline, state.deadline) {
            (Some(new), Some(old)) => new < old,
            (new, None) => new.is_some(),
            (None, Some(_)) => false,
        };
        state.deadline = deadline;
        drop(state);
        if is_earlier {
            self.0.changed.notify_one();
        }
    }

    /// Waits until the deadline has passed.
    pub(super) async fn expired(&self) {
        self.0.expired.notified().await;
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.0.lock().stopped = true;
        self.0.changed.notify_one();
    }
}

impl TimerShared {
    fn run(&self) {
        let mut state = self.lock();
        while !state.stopped {
            state = match state.deadline {
                None => wait_on(&self.changed, state, None),
                Some(at) => match at.checked_duration_since(clock::monotonic_now()).filter(|rest| !rest.is_zero()) {
                    Some(rest) => wait_on(&self.changed, state, Some(rest)),
                    None => {
                        state.deadline = None;
                        self.expired.notify_one();
                        state
                    }
                },
            };
        }
    }

    fn lock(&self) -> MutexGuard<'_, TimerState> {
        self.state.lock_unpoisoned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn timer_expires_at_its_deadline_and_not_before() {
        let timer = Timer::start().expect("starts");
        let at = clock::monotonic_now() + Duration::from_millis(20);
        timer.set(Some(clock::monotonic_now() + Duration::from_secs(3600)));
        timer.set(Some(at));
        tokio::time::timeout(Duration::from_secs(10), timer.expired()).await.expect("in time");
        assert!(clock::monotonic_now() >= at);
    }

    #[tokio::test]
    async fn cleared_timer_does_not_expire() {
        let timer = Timer::start().expect("starts");
        timer.set(Some(clock::monotonic_now() + Duration::from_millis(20)));
        timer.set(None);
        assert!(tokio::time::timeout(Duration::from_millis(60), timer.expired()).await.is_err());
    }
}
