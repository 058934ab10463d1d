//! The subscriptions of a local node: wakes and notifications.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;

use crate::store::sqlite::peers::messages::Reading;
use crate::store::{Heard, Wake};

/// Most pending notifications of a node. The last one is reserved for the report that some were dropped.
pub(crate) const HEARD_MAX: usize = 1_024;

/// The subscriptions of a local node. One thread serves both kinds if other processes can notify the node.
#[derive(Default)]
pub(crate) struct Ears(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    wakes: Option<mpsc::Sender<Wake>>,
    hears: Option<mpsc::Sender<Heard>>,
    /// The node receives broadcasts.
    all: bool,
    /// Reads messages from the bus; the listener thread takes it.
    reading: Option<Reading>,
    /// The listener thread is running.
    listened: bool,
}

impl Ears {
    pub(crate) fn start_waking(&self, wakes: mpsc::Sender<Wake>) {
        self.inner().wakes = Some(wakes);
    }

    pub(crate) fn stop_waking(&self) {
        self.inner().wakes = None;
    }

    /// Starts to deliver notifications. `reading` adds messages of other processes; `None` keeps an earlier one.
    pub(crate) fn start_hearing(&self, hears: mpsc::Sender<Heard>, all: bool, reading: Option<Reading>) {
        let mut inner = self.inner();
        inner.all = all;
        inner.hears = Some(hears);
        if reading.is_some() {
            inner.reading = reading;
        }
    }

    pub(crate) fn stop_hearing(&self) {
        let mut inner = self.inner();
        inner.hears = None;
        inner.reading = None;
    }

    pub(crate) fn hears(&self) -> bool {
        self.inner().hears.as_ref().is_some_and(|hears| !hears.is_closed())
    }

    pub(crate) fn hears_all(&self) -> bool {
        self.inner().all
    }

    /// Returns how many notifications fit before one is dropped.
    pub(crate) fn room(&self) -> usize {
        self.inner().hears.as_ref().map_or(0, |hears| hears.capacity().saturating_sub(1))
    }

    pub(crate) fn take_reading(&self) -> Option<Reading> {
        self.inner().reading.take()
    }

    /// Delivers a wake. Returns whether the node is subscribed.
    pub(crate) fn wake(&self, wake: Wake) -> bool {
        let inner = self.inner();
        let Some(wakes) = inner.wakes.as_ref().filter(|wakes| !wakes.is_closed()) else {
            return false;
        };
        // A full channel already has enough wakes.
        let _ = wakes.try_send(wake);
        true
    }

    /// Delivers a notification. Returns whether the node is subscribed, even if the notification was dropped for lack
    /// of room.
    pub(crate) fn tell(&self, heard: Heard) -> bool {
        let inner = self.inner();
        let Some(hears) = inner.hears.as_ref().filter(|hears| !hears.is_closed()) else {
            return false;
        };
        match hears.capacity() {
            0 => {}
            1 => drop(hears.try_send(Heard::Gap)),
            _ => drop(hears.try_send(heard)),
        }
        true
    }

    /// Returns whether the caller must start the listener thread.
    pub(crate) fn begin_listening(&self) -> bool {
        !std::mem::replace(&mut self.inner().listened, true)
    }

    pub(crate) fn stop_listening(&self) {
        self.inner().listened = false;
    }

    /// Returns whether no subscription is left. If so, the calling listener thread must end.
    pub(crate) fn rest(&self) -> bool {
        let mut inner = self.inner();
        let waking = inner.wakes.as_ref().is_some_and(|wakes| !wakes.is_closed());
        let hearing = inner.hears.as_ref().is_some_and(|hears| !hears.is_closed());
        inner.listened = waking || hearing;
        !inner.listened
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_overflows_is_told_once_there_is_room() {
        let (hears, mut heard) = mpsc::channel(4);
        let ears = Ears::default();
        assert!(!ears.tell(Heard::Gap), "not subscribed");
        ears.start_hearing(hears, true, None);
        for i in 0..9 {
            assert!(ears.tell(Heard::Message(vec![i])));
        }
        let all: Vec<_> = std::iter::from_fn(|| heard.try_recv().ok()).collect();
        let message = |i| Heard::Message(vec![i]);
        assert_eq!(all, [message(0), message(1), message(2), Heard::Gap]);
        assert!(ears.tell(message(9)));
        assert_eq!(heard.try_recv(), Ok(message(9)));
    }

    #[test]
    fn a_thread_rests_when_both_have_gone() {
        let ears = Ears::default();
        let ((wakes, woken), (hears, heard)) = (mpsc::channel(1), mpsc::channel(1));
        ears.start_waking(wakes);
        ears.start_hearing(hears, true, None);
        assert!(ears.begin_listening() && !ears.begin_listening());
        drop(woken);
        assert!(!ears.rest());
        drop(heard);
        assert!(ears.rest() && ears.begin_listening());
    }
}
