//! Statistics by minute, queue and kind.

use super::capability;
use crate::error::Result;
use crate::store::*;

capability! {
    /// Counts pushes, attempts and outcomes.
    pub trait StatsStore(stats: "statistics") {
        /// Returns the statistics of the last minutes. Each operation counts its own effects atomically.
        /// They are kept for [`HISTORY_MINUTES_MAX`] minutes.
        async fn history(&self, query: HistoryQuery) -> Result<History>;

        /// Returns the counters of each queue since the store was created, by name. They never decrease.
        async fn queue_totals(&self) -> Result<Vec<(String, StatCounters)>>;

        /// Adds attempt statistics by kind to the current hour. The store keeps at most [`KIND_STATS_MAX`] kinds per
        /// hour; further kinds are counted under [`OTHER_KINDS`].
        async fn add_kind_stats(&self, kinds: Vec<(String, StatCounters)>) -> Result<()>;

        /// Returns the attempt statistics of each kind in the last hours, including the current one, by hour and kind.
        /// At most [`KIND_HOURS_MAX`] hours.
        async fn kind_stats(&self, hours: u32) -> Result<Vec<KindStats>>;
    }
}
