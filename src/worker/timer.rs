//! An alarm that rings within a fraction of a millisecond. The runtime's own timers count in whole milliseconds,
//! and a due moment should not wait for the next one.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::clock;
use crate::error::{Error, Result};

/// One alarm clock with a thread of its own; ends when dropped.
pub(super) struct Timer(Arc<TimerShared>);

struct TimerShared {
    state: Mutex<TimerState>,
    /// The alarm was set to an earlier moment, or is not needed any more.
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
        std::thread::Builder::new()
            .name("duly-alarm".into())
            .spawn(move || thread.run())
            .map_err(|e| Error::store("run", format!("cannot start a thread: {e}")))?;
        Ok(Timer(shared))
    }

    /// Sets it to this moment, or off.
    pub(super) fn set(&self, at: Option<Instant>) {
        let mut state = self.0.lock();
        let earlier = match (at, state.deadline) {
            (Some(new), Some(old)) => new < old,
            (new, None) => new.is_some(),
            (None, Some(_)) => false,
        };
        state.deadline = at;
        drop(state);
        if earlier {
            self.0.changed.notify_one();
        }
    }

    /// Resolves when it rings.
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
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(at) => match at.checked_duration_since(clock::monotonic_now()).filter(|left| !left.is_zero()) {
                    Some(left) => self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
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
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn timer_expires_at_its_deadline_and_not_before() {
        let alarm = Timer::start().expect("starts");
        let at = clock::monotonic_now() + Duration::from_millis(20);
        alarm.set(Some(clock::monotonic_now() + Duration::from_secs(3600)));
        alarm.set(Some(at));
        tokio::time::timeout(Duration::from_secs(10), alarm.expired()).await.expect("in time");
        assert!(clock::monotonic_now() >= at);
    }

    #[tokio::test]
    async fn cleared_timer_does_not_expire() {
        let alarm = Timer::start().expect("starts");
        alarm.set(Some(clock::monotonic_now() + Duration::from_millis(20)));
        alarm.set(None);
        assert!(tokio::time::timeout(Duration::from_millis(60), alarm.expired()).await.is_err());
    }
}
