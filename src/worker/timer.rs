//! An alarm that rings within a fraction of a millisecond. The runtime's own timers count in whole milliseconds,
//! and a due moment should not wait for the next one.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::clock;
use crate::error::{Error, Result};

/// One alarm clock with a thread of its own; ends when dropped.
pub(super) struct Alarm(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// The alarm was set to an earlier moment, or is not needed any more.
    changed: Condvar,
    rung: Notify,
}

#[derive(Default)]
struct State {
    at: Option<Instant>,
    over: bool,
}

impl Alarm {
    pub(super) fn start() -> Result<Self> {
        let shared = Arc::new(Shared { state: Mutex::default(), changed: Condvar::new(), rung: Notify::new() });
        let thread = shared.clone();
        std::thread::Builder::new()
            .name("duly-alarm".into())
            .spawn(move || thread.keep())
            .map_err(|e| Error::store("run", format!("cannot start a thread: {e}")))?;
        Ok(Alarm(shared))
    }

    /// Sets it to this moment, or off.
    pub(super) fn set(&self, at: Option<Instant>) {
        let mut state = self.0.lock();
        let earlier = match (at, state.at) {
            (Some(new), Some(old)) => new < old,
            (new, None) => new.is_some(),
            (None, Some(_)) => false,
        };
        state.at = at;
        drop(state);
        if earlier {
            self.0.changed.notify_one();
        }
    }

    /// Resolves when it rings.
    pub(super) async fn rings(&self) {
        self.0.rung.notified().await;
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        self.0.lock().over = true;
        self.0.changed.notify_one();
    }
}

impl Shared {
    fn keep(&self) {
        let mut state = self.lock();
        while !state.over {
            state = match state.at {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(at) => match at.checked_duration_since(clock::tick()).filter(|left| !left.is_zero()) {
                    Some(left) => self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
                    None => {
                        state.at = None;
                        self.rung.notify_one();
                        state
                    }
                },
            };
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn rings_at_its_moment_and_not_before() {
        let alarm = Alarm::start().expect("starts");
        let at = clock::tick() + Duration::from_millis(20);
        alarm.set(Some(clock::tick() + Duration::from_secs(3600)));
        alarm.set(Some(at));
        tokio::time::timeout(Duration::from_secs(10), alarm.rings()).await.expect("in time");
        assert!(clock::tick() >= at);
    }

    #[tokio::test]
    async fn set_off_it_is_silent() {
        let alarm = Alarm::start().expect("starts");
        alarm.set(Some(clock::tick() + Duration::from_millis(20)));
        alarm.set(None);
        assert!(tokio::time::timeout(Duration::from_millis(60), alarm.rings()).await.is_err());
    }
}
