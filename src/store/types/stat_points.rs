//! Reads statistics: which intervals a query selects, and the points that a store collects for it.

use std::collections::BTreeMap;
use std::time::SystemTime;

use crate::clock::{Micros, from_micros};
use crate::store::{
    HISTORY_HOURS_MAX, HISTORY_MINUTES_MAX, History, HistoryPoint, HistoryQuery, KIND_HOURS_MAX, KIND_MINUTES_MAX,
    KindStats, KindStatsQuery, Resolution, STAT_NUMBERS, StatCounters,
};

/// Counters as a store keeps them.
type Numbers = [u64; STAT_NUMBERS];

impl Resolution {
    /// The length of an interval.
    pub(crate) const fn micros(self) -> Micros {
        match self {
            Resolution::Minute => 60_000_000,
            Resolution::Hour => 3_600_000_000,
        }
    }

    /// Returns the number of the interval that contains a time, counted from 1970.
    pub(crate) fn number_at(self, at: Micros) -> i64 {
        at.div_euclid(self.micros())
    }

    fn start_of(self, number: i64) -> SystemTime {
        from_micros(number.saturating_mul(self.micros()))
    }

    /// Returns the number of intervals to read. 0 means all of the minutes or hours that are kept.
    fn count(self, wanted: u32, minutes_kept: u32, hours_kept: u32) -> u32 {
        let kept = match self {
            Resolution::Minute => minutes_kept,
            Resolution::Hour => hours_kept,
        };
        if wanted == 0 { kept } else { wanted.min(kept) }
    }
}

impl HistoryQuery {
    /// Returns the number of intervals to read.
    pub(crate) fn count(&self) -> u32 {
        self.resolution.count(self.intervals, HISTORY_MINUTES_MAX, HISTORY_HOURS_MAX)
    }

    /// Returns the number of the first interval to read.
    pub(crate) fn first(&self, now: Micros) -> i64 {
        self.resolution.number_at(now) - i64::from(self.count()) + 1
    }
}

impl KindStatsQuery {
    /// Returns the number of intervals to read.
    pub(crate) fn count(&self) -> u32 {
        self.resolution.count(self.intervals, KIND_MINUTES_MAX, KIND_HOURS_MAX)
    }

    /// Returns the number of the first interval to read.
    pub(crate) fn first(&self, now: Micros) -> i64 {
        self.resolution.number_at(now) - i64::from(self.count()) + 1
    }
}

/// Collects the points of a history. Counters of the same interval are added up.
pub(crate) struct HistoryPoints {
    resolution: Resolution,
    sum_queues: bool,
    points: BTreeMap<(i64, String), Numbers>,
}

impl HistoryPoints {
    pub(crate) fn new(query: &HistoryQuery) -> Self {
        let HistoryQuery { resolution, sum_queues, .. } = *query;
        HistoryPoints { resolution, sum_queues, points: BTreeMap::new() }
    }

    pub(crate) fn add(&mut self, number: i64, queue: &str, counters: &Numbers) {
        if *counters != [0; STAT_NUMBERS] {
            let queue = if self.sum_queues { String::new() } else { queue.to_owned() };
            add_numbers(self.points.entry((number, queue)).or_insert([0; STAT_NUMBERS]), counters);
        }
    }

    pub(crate) fn into_history(self, now: Micros) -> History {
        let point = |((number, queue), counters)| HistoryPoint {
            start: self.resolution.start_of(number),
            queue,
            counters: StatCounters::from_numbers(&counters),
        };
        History { now: Some(from_micros(now)), points: self.points.into_iter().map(point).collect() }
    }
}

/// Collects statistics by kind.
pub(crate) struct KindPoints {
    resolution: Resolution,
    /// The number of the first interval, if all are added up.
    summed_from: Option<i64>,
    points: BTreeMap<(i64, String), Numbers>,
}

impl KindPoints {
    pub(crate) fn new(query: &KindStatsQuery, first: i64) -> Self {
        let summed_from = query.sum_intervals.then_some(first);
        KindPoints { resolution: query.resolution, summed_from, points: BTreeMap::new() }
    }

    pub(crate) fn add(&mut self, number: i64, kind: String, counters: &Numbers) {
        let key = (self.summed_from.unwrap_or(number), kind);
        add_numbers(self.points.entry(key).or_insert([0; STAT_NUMBERS]), counters);
    }

    pub(crate) fn into_stats(self) -> Vec<KindStats> {
        let point = |((number, kind), counters)| KindStats {
            start: self.resolution.start_of(number),
            kind,
            counters: StatCounters::from_numbers(&counters),
        };
        self.points.into_iter().map(point).collect()
    }
}

fn add_numbers(sums: &mut Numbers, more: &Numbers) {
    sums.iter_mut().zip(more).for_each(|(sum, more)| *sum = sum.saturating_add(*more));
}
