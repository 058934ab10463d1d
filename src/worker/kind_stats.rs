//! What attempts of each kind come to: gathered here as outcomes are recorded, added to the store a few seconds later,
//! so that a settle costs no more for it. A process that is killed takes the last seconds of it along.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use crate::job::Outcome;
use crate::store::{
    AttemptTiming, KIND_STATS_MAX, KindStats, OTHER_KINDS, STAT_NUMBERS, StatCounters, Store, outcome_index,
    timing_indexes,
};

/// How long things are gathered before they are sent.
const FLUSH_DELAY: Duration = Duration::from_secs(5);

/// What has been gathered and not been sent.
#[derive(Default)]
pub(crate) struct KindStatsBuffer {
    unsent: Mutex<UnsentKindStats>,
}

#[derive(Default)]
struct UnsentKindStats {
    kinds: HashMap<String, Box<[u64; STAT_NUMBERS]>>,
    /// Somebody will send it.
    flush_scheduled: bool,
}

impl KindStatsBuffer {
    fn lock(&self) -> MutexGuard<'_, UnsentKindStats> {
        self.unsent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An attempt of this kind has ended so, and that is recorded.
    pub(crate) fn record(
        self: &Arc<Self>,
        store: &Arc<dyn Store>,
        kind: &str,
        outcome: &Outcome,
        timing: AttemptTiming,
    ) {
        let mut gathered = self.lock();
        let full = gathered.kinds.len() >= KIND_STATS_MAX;
        let kind = if full && !gathered.kinds.contains_key(kind) { OTHER_KINDS } else { kind };
        // A kind that is known already needs no text of its own.
        if !gathered.kinds.contains_key(kind) {
            gathered.kinds.insert(kind.to_owned(), Box::new([0; STAT_NUMBERS]));
        }
        if let Some(numbers) = gathered.kinds.get_mut(kind) {
            let places = timing_indexes(timing.lateness, timing.duration);
            places.into_iter().chain([outcome_index(outcome)]).for_each(|place| numbers[place] += 1);
        }
        let sending = std::mem::replace(&mut gathered.flush_scheduled, true);
        // A task that cannot start gives its errand back at once.
        drop(gathered);
        if !sending {
            // Weak: what is left to send keeps no store open.
            tokio::spawn(flush_later(ScheduledFlush(self.clone()), Arc::downgrade(store)));
        }
    }

    /// Sends what has been gathered. What cannot be sent is lost: it is not worth holding up a job.
    pub(crate) async fn flush(&self, store: &dyn Store) {
        let kinds = std::mem::take(&mut self.lock().kinds);
        if kinds.is_empty() {
            return;
        }
        let tally = |(kind, numbers): (String, Box<[u64; STAT_NUMBERS]>)| (kind, StatCounters::from_numbers(&numbers));
        if let Err(error) = store.add_kind_stats(kinds.into_iter().map(tally).collect()).await {
            tracing::debug!(%error, "what attempts came to is not counted by kind");
        }
    }
}

/// That somebody will send: given back also if the runtime that was to do it ends before, so that the next who counts sees to it.
struct ScheduledFlush(Arc<KindStatsBuffer>);

impl Drop for ScheduledFlush {
    fn drop(&mut self) {
        self.0.lock().flush_scheduled = false;
    }
}

async fn flush_later(errand: ScheduledFlush, store: Weak<dyn Store>) {
    tokio::time::sleep(FLUSH_DELAY).await;
    let kinds = errand.0.clone();
    // What is counted while this is sent is for the next.
    drop(errand);
    if let Some(store) = store.upgrade() {
        kinds.flush(&*store).await;
    }
}

impl crate::client::Duly {
    /// What attempts of each kind have come to in the last hours (at most 24), hour by hour; the present one is the last.
    ///
    /// Workers tell it every few seconds, and when they stop. Of each hour at most 200 kinds are told apart; the rest is `(other)`.
    pub async fn kind_stats(&self, hours: u32) -> crate::Result<Vec<KindStats>> {
        self.store.kind_stats(hours).await
    }
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use super::*;
    use crate::client::Duly;

    #[test]
    fn flush_of_a_stopped_runtime_is_scheduled_again() {
        let (first, second) = (new_runtime(), new_runtime());
        let duly = second.block_on(Duly::open(":memory:")).expect("opens");
        let count = || duly.kind_stats.record(&duly.store, "mail", &Outcome::Ack, AttemptTiming::default());
        first.block_on(async { count() });
        assert!(duly.kind_stats.lock().flush_scheduled);
        drop(first);
        assert!(!duly.kind_stats.lock().flush_scheduled, "nobody will send it any more");
        second.block_on(async { count() });
        assert!(duly.kind_stats.lock().flush_scheduled);
        second.block_on(duly.kind_stats.flush(&*duly.store));
        let points = second.block_on(duly.kind_stats(1)).expect("are kept");
        assert_eq!(points.iter().map(|point| point.counters.done).sum::<u64>(), 2, "nothing counted before is lost");
    }

    #[test]
    fn name_of_other_kinds_is_not_a_valid_kind() {
        assert!(crate::job::push::check_name("kind", OTHER_KINDS).is_err());
    }

    fn new_runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
    }
}
