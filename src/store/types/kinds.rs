//! What has happened by kind, hour by hour: gathered by whoever runs attempts, added to the store now and then.

use std::time::SystemTime;

use serde::Serialize;

use crate::store::StatCounters;

/// For how many hours it is kept.
pub const KIND_HOURS_MAX: u32 = 24;
/// Most kinds that are told apart in one hour; attempts of others are counted under [`OTHER_KINDS`].
pub const KIND_STATS_MAX: usize = 200;
/// What those kinds go by that are too many to be told apart: no kind has brackets in its name.
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
    /// What its attempts came to; pushes and jobs taken back are not counted by kind.
    #[serde(flatten)]
    pub counters: StatCounters,
}
