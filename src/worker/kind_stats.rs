//! Statistics of attempts by kind. They are buffered as outcomes are recorded and added to the store a few seconds
//! later, so that they cost a settle nothing. A killed process loses its last few seconds.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use crate::job::push::check_name;
use crate::store::{
    AttemptTiming, KIND_STATS_MAX, KindStats, KindStatsQuery, OTHER_KINDS, STAT_NUMBERS, StatCounters, StatsStore,
    Store, timing_indexes,
};
use crate::sync::LockExt;

/// How long statistics are buffered before they are sent.
const FLUSH_DELAY: Duration = Duration::from_secs(5);

/// Statistics that have not been sent yet.
#[derive(Default)]
pub(crate) struct KindStatsBuffer {
    unsent: Mutex<UnsentKindStats>,
}

#[derive(Default)]
struct UnsentKindStats {
    kinds: HashMap<String, Box<[u64; STAT_NUMBERS]>>,
    /// A task to send them has been started.
    flush_scheduled: bool,
}

impl KindStatsBuffer {
    fn lock(&self) -> MutexGuard<'_, UnsentKindStats> {
        self.unsent.lock_unpoisoned()
    }

    /// Counts a recorded attempt, by its duration and in the counter of its outcome.
    pub(crate) fn record(self: &Arc<Self>, store: &Arc<dyn Store>, kind: &str, counter: usize, timing: AttemptTiming) {
        let mut unsent = self.lock();
        let full = unsent.kinds.len() >= KIND_STATS_MAX;
        let kind = if full && !unsent.kinds.contains_key(kind) { OTHER_KINDS } else { kind };
        // Avoids an allocation for known kinds.
        if !unsent.kinds.contains_key(kind) {
            unsent.kinds.insert(kind.to_owned(), Box::new([0; STAT_NUMBERS]));
        }
        if let Some(numbers) = unsent.kinds.get_mut(kind) {
            let indexes = timing_indexes(timing.lateness, timing.duration);
            indexes.into_iter().chain([counter]).for_each(|index| numbers[index] += 1);
        }
        let was_scheduled = std::mem::replace(&mut unsent.flush_scheduled, true);
        // Unlocked first: a task that cannot start drops its `ScheduledFlush` at once, which locks too.
        drop(unsent);
        if !was_scheduled {
            // Weak, so that unsent statistics do not keep the store open.
            tokio::spawn(flush_later(ScheduledFlush(self.clone()), Arc::downgrade(store)));
        }
    }

    /// Sends the buffered statistics. If that fails they are lost, since they are not worth delaying jobs.
    pub(crate) async fn flush(&self, store: &dyn Store) {
        let kinds = std::mem::take(&mut self.lock().kinds);
        if kinds.is_empty() {
            return;
        }
        let to_counters =
            |(kind, numbers): (String, Box<[u64; STAT_NUMBERS]>)| (kind, StatCounters::from_numbers(&numbers));
        if let Err(error) = store.add_kind_stats(kinds.into_iter().map(to_counters).collect()).await {
            tracing::debug!(%error, "statistics by kind were lost");
        }
    }
}

/// Marks a flush as scheduled. If its runtime ends before it runs, the drop lets the next attempt schedule another one.
struct ScheduledFlush(Arc<KindStatsBuffer>);

impl Drop for ScheduledFlush {
    fn drop(&mut self) {
        self.0.lock().flush_scheduled = false;
    }
}

async fn flush_later(scheduled: ScheduledFlush, store: Weak<dyn Store>) {
    tokio::time::sleep(FLUSH_DELAY).await;
    let buffer = scheduled.0.clone();
    // Attempts counted during the flush schedule the next one.
    drop(scheduled);
    if let Some(store) = store.upgrade() {
        buffer.flush(&*store).await;
    }
}

impl crate::client::Duly {
    /// Returns statistics of attempts by kind, by minute or by hour; the current interval is last.
    ///
    /// Workers send them every few seconds and when they stop. An interval has at most 200 kinds; the rest is `(other)`.
    ///
    /// # Errors
    ///
    /// - [`Error::Invalid`](crate::Error::Invalid): the name of the kind is invalid.
    /// - [`Error::Store`](crate::Error::Store): the store cannot be reached.
    /// - [`Error::Unsupported`](crate::Error::Unsupported): the store keeps no statistics.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Ctx, Duly, Push, admin::KindStatsQuery};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// duly.push(Push::new("mail", "{}")).await?;
    /// duly.worker().on_kind("mail", async |_: Ctx| ()).drain().await?;
    /// for total in duly.kind_stats(KindStatsQuery::last_hours(24).sum_intervals()).await? {
    ///     println!("{}: {} done", total.kind, total.counters.done);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn kind_stats(&self, query: KindStatsQuery) -> crate::Result<Vec<KindStats>> {
        if let Some(kind) = query.kind.as_deref().filter(|kind| *kind != OTHER_KINDS) {
            check_name("kind", kind)?;
        }
        self.store.kind_stats(query).await
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
        let count = || duly.kind_stats.record(&duly.store, "mail", 1, AttemptTiming::default());
        first.block_on(async { count() });
        assert!(duly.kind_stats.lock().flush_scheduled);
        drop(first);
        assert!(!duly.kind_stats.lock().flush_scheduled, "the task is gone");
        second.block_on(async { count() });
        assert!(duly.kind_stats.lock().flush_scheduled);
        second.block_on(duly.kind_stats.flush(&*duly.store));
        let points = second.block_on(duly.kind_stats(KindStatsQuery::last_hours(2))).expect("are kept");
        assert_eq!(points.iter().map(|point| point.counters.done).sum::<u64>(), 2, "no attempt is lost");
    }

    #[test]
    fn name_of_other_kinds_is_not_a_valid_kind() {
        assert!(check_name("kind", OTHER_KINDS).is_err());
    }

    fn new_runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
    }
}
