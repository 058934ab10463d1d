//! Statistics by kind: collected by workers, which add them to the store periodically.

use std::time::SystemTime;

use serde::Serialize;

use crate::store::{Resolution, StatCounters};

/// Minutes for which statistics by kind are kept.
pub const KIND_MINUTES_MAX: u32 = 2 * 60;
/// Hours for which statistics by kind are kept: 30 days.
pub const KIND_HOURS_MAX: u32 = 30 * 24;
/// Most kinds counted separately in one interval; attempts of further kinds are counted under [`OTHER_KINDS`].
pub const KIND_STATS_MAX: usize = 200;
/// Name under which further kinds are counted. It cannot clash: no kind has parentheses in its name.
pub const OTHER_KINDS: &str = "(other)";

/// Selects statistics by kind.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct KindStatsQuery {
    /// Only this kind; all kinds if `None`.
    pub kind: Option<String>,
    /// The length of the intervals.
    pub resolution: Resolution,
    /// The last intervals, including the current one; 0 means all that are kept.
    pub intervals: u32,
    /// Adds up all intervals: a point per kind, which starts with the first interval.
    pub sum_intervals: bool,
}

impl KindStatsQuery {
    /// Returns a query for the last minutes (at most [`KIND_MINUTES_MAX`]); 0 means all minutes that are kept.
    #[must_use]
    pub fn last_minutes(minutes: u32) -> Self {
        KindStatsQuery { intervals: minutes, ..KindStatsQuery::default() }
    }

    /// Returns a query for the last hours (at most [`KIND_HOURS_MAX`]); 0 means all hours that are kept.
    #[must_use]
    pub fn last_hours(hours: u32) -> Self {
        KindStatsQuery { resolution: Resolution::Hour, intervals: hours, ..KindStatsQuery::default() }
    }

    /// Selects only this kind; `None` means all kinds.
    #[must_use]
    pub fn kind(self, kind: impl Into<Option<String>>) -> Self {
        KindStatsQuery { kind: kind.into(), ..self }
    }

    /// Adds up all intervals: the store returns one point per kind, which starts with the first interval.
    #[must_use]
    pub fn sum_intervals(self) -> Self {
        KindStatsQuery { sum_intervals: true, ..self }
    }
}

/// One interval of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct KindStats {
    /// When the interval began.
    #[serde(serialize_with = "crate::clock::as_micros")]
    pub start: SystemTime,
    /// The kind.
    pub kind: String,
    /// Counters of its attempts; pushes and taken-back jobs are not counted by kind.
    #[serde(flatten)]
    pub counters: StatCounters,
}
