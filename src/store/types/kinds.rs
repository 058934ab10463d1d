//! Statistics by kind and hour: collected by workers, which add them to the store periodically.

use std::time::SystemTime;

use serde::Serialize;

use crate::store::StatCounters;

/// Hours for which statistics by kind are kept.
pub const KIND_HOURS_MAX: u32 = 24;
/// Most kinds counted separately in one hour; attempts of further kinds are counted under [`OTHER_KINDS`].
pub const KIND_STATS_MAX: usize = 200;
/// Name under which further kinds are counted. It cannot clash: no kind has parentheses in its name.
pub const OTHER_KINDS: &str = "(other)";

/// One hour of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct KindStats {
    /// When the hour began.
    #[serde(serialize_with = "crate::clock::as_micros")]
    pub hour: SystemTime,
    /// The kind.
    pub kind: String,
    /// Counters of its attempts; pushes and taken-back jobs are not counted by kind.
    #[serde(flatten)]
    pub counters: StatCounters,
}
