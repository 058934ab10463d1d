//! Statistics by minute, queue and kind.

use super::capability;
use crate::error::Result;
use crate::store::*;

capability! {
    /// Counts pushes, attempts and outcomes.
    pub trait StatsStore(stats: "statistics") {
        /// Returns the statistics of the last minutes or hours. Each operation counts its own effects atomically, in the
        /// current minute. Minutes are kept for [`HISTORY_MINUTES_MAX`] minutes, and are added to their hours when they
        /// are over. Hours are kept for [`HISTORY_HOURS_MAX`] hours. An event is in exactly one minute and one hour.
        async fn history(&self, query: HistoryQuery) -> Result<History>;

        /// Returns the counters of each queue since the store was created, by name. They never decrease.
        async fn queue_totals(&self) -> Result<Vec<(String, StatCounters)>>;

        /// Adds attempt statistics by kind to the current minute and hour. The store keeps at most [`KIND_STATS_MAX`]
        /// kinds per interval; further kinds are counted under [`OTHER_KINDS`].
        async fn add_kind_stats(&self, kinds: Vec<(String, StatCounters)>) -> Result<()>;

        /// Returns the attempt statistics of each kind in the last intervals, including the current one, by interval
        /// and kind. At most [`KIND_MINUTES_MAX`] minutes or [`KIND_HOURS_MAX`] hours are kept.
        async fn kind_stats(&self, query: KindStatsQuery) -> Result<Vec<KindStats>>;
    }
}
