//! What attempts of each kind come to: gathered here as outcomes are recorded, added to the store a few seconds later,
//! so that a settle costs no more for it. A process that is killed takes the last seconds of it along.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use crate::job::Outcome;
use crate::store::{
    HistoryTally, KINDS_COUNTED_MAX, KindPoint, OTHER_KINDS, Store, TALLY, Timing, counter_of, places_of,
};

/// How long things are gathered before they are sent.
const EVERY: Duration = Duration::from_secs(5);

/// What has been gathered and not been sent.
#[derive(Default)]
pub(crate) struct Kinds {
    gathered: Mutex<Gathered>,
}

#[derive(Default)]
struct Gathered {
    kinds: HashMap<String, Box<[u64; TALLY]>>,
    /// Somebody will send it.
    sending: bool,
}

impl Kinds {
    fn gathered(&self) -> MutexGuard<'_, Gathered> {
        self.gathered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An attempt of this kind has ended so, and that is recorded.
    pub(crate) fn count(self: &Arc<Self>, store: &Arc<dyn Store>, kind: &str, outcome: &Outcome, timing: Timing) {
        let mut gathered = self.gathered();
        let full = gathered.kinds.len() >= KINDS_COUNTED_MAX;
        let kind = if full && !gathered.kinds.contains_key(kind) { OTHER_KINDS } else { kind };
        // A kind that is known already needs no text of its own.
        if !gathered.kinds.contains_key(kind) {
            gathered.kinds.insert(kind.to_owned(), Box::new([0; TALLY]));
        }
        if let Some(numbers) = gathered.kinds.get_mut(kind) {
            let places = places_of(timing.lateness, timing.duration);
            places.into_iter().chain([counter_of(outcome)]).for_each(|place| numbers[place] += 1);
        }
        let sending = std::mem::replace(&mut gathered.sending, true);
        // A task that cannot start gives its errand back at once.
        drop(gathered);
        if !sending {
            // Weak: what is left to send keeps no store open.
            tokio::spawn(send_later(Errand(self.clone()), Arc::downgrade(store)));
        }
    }

    /// Sends what has been gathered. What cannot be sent is lost: it is not worth holding up a job.
    pub(crate) async fn send(&self, store: &dyn Store) {
        let kinds = std::mem::take(&mut self.gathered().kinds);
        if kinds.is_empty() {
            return;
        }
        let tally = |(kind, numbers): (String, Box<[u64; TALLY]>)| (kind, HistoryTally::from_numbers(&numbers));
        if let Err(error) = store.add_kinds(kinds.into_iter().map(tally).collect()).await {
            tracing::debug!(%error, "what attempts came to is not counted by kind");
        }
    }
}

/// That somebody will send: given back also if the runtime that was to do it ends before, so that the next who counts sees to it.
struct Errand(Arc<Kinds>);

impl Drop for Errand {
    fn drop(&mut self) {
        self.0.gathered().sending = false;
    }
}

async fn send_later(errand: Errand, store: Weak<dyn Store>) {
    tokio::time::sleep(EVERY).await;
    let kinds = errand.0.clone();
    // What is counted while this is sent is for the next.
    drop(errand);
    if let Some(store) = store.upgrade() {
        kinds.send(&*store).await;
    }
}

impl crate::client::Duly {
    /// What attempts of each kind have come to in the last hours (at most 24), hour by hour; the present one is the last.
    ///
    /// Workers tell it every few seconds, and when they stop. Of each hour at most 200 kinds are told apart; the rest is `(other)`.
    pub async fn kinds(&self, hours: u32) -> crate::Result<Vec<KindPoint>> {
        self.store.kinds(hours).await
    }
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use super::*;
    use crate::client::Duly;

    #[test]
    fn an_errand_whose_runtime_has_ended_is_taken_up_by_the_next() {
        let (first, second) = (runtime(), runtime());
        let duly = second.block_on(Duly::open(":memory:")).expect("opens");
        let count = || duly.kinds.count(&duly.store, "mail", &Outcome::Ack, Timing::default());
        first.block_on(async { count() });
        assert!(duly.kinds.gathered().sending);
        drop(first);
        assert!(!duly.kinds.gathered().sending, "nobody will send it any more");
        second.block_on(async { count() });
        assert!(duly.kinds.gathered().sending);
        second.block_on(duly.kinds.send(&*duly.store));
        let points = second.block_on(duly.kinds(1)).expect("are kept");
        assert_eq!(points.iter().map(|point| point.tally.done).sum::<u64>(), 2, "nothing counted before is lost");
    }

    #[test]
    fn no_kind_goes_by_the_name_of_the_rest() {
        assert!(crate::job::push::check_name("kind", OTHER_KINDS).is_err());
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
    }
}
