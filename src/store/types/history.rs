//! Statistics of queues: counted as events happen, kept by minute for a day and by hour for 30 days.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use serde::Serialize;

use crate::job::Outcome;

/// Minutes for which statistics are kept.
pub const HISTORY_MINUTES_MAX: u32 = 24 * 60;
/// Hours for which statistics are kept: 30 days.
pub const HISTORY_HOURS_MAX: u32 = 30 * 24;
/// Buckets of a histogram.
pub const HISTOGRAM_BUCKETS: usize = 28;
/// Upper bound of the first bucket in microseconds. Each bound is twice the previous one; the last bucket has none.
const FIRST_BUCKET_MICROS: u64 = 64;
/// Number of counters, without the histograms.
pub(crate) const COUNTER_COUNT: usize = 7;
/// Number of values in a [`StatCounters`], with the histograms.
pub(crate) const STAT_NUMBERS: usize = COUNTER_COUNT + 2 * HISTOGRAM_BUCKETS;

/// The length of the intervals of a history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Resolution {
    /// Minutes.
    #[default]
    Minute,
    /// Hours.
    Hour,
}

impl Resolution {
    /// Returns the length of an interval.
    #[must_use]
    pub fn interval(self) -> Duration {
        match self {
            Resolution::Minute => Duration::from_secs(60),
            Resolution::Hour => Duration::from_secs(3_600),
        }
    }
}

/// Selects the intervals of a history.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct HistoryQuery {
    /// Only this queue; all queues if `None`.
    pub queue: Option<String>,
    /// The length of the intervals.
    pub resolution: Resolution,
    /// The last intervals, including the current one; 0 means all that are kept.
    pub intervals: u32,
    /// Adds up all queues: a point per interval, with an empty queue.
    pub sum_queues: bool,
}

impl HistoryQuery {
    /// Returns a query for the last minutes of all queues (at most [`HISTORY_MINUTES_MAX`]); 0 means all minutes that
    /// are kept.
    #[must_use]
    pub fn last_minutes(minutes: u32) -> Self {
        HistoryQuery { intervals: minutes, ..HistoryQuery::default() }
    }

    /// Returns a query for the last hours of all queues (at most [`HISTORY_HOURS_MAX`]); 0 means all hours that are
    /// kept.
    #[must_use]
    pub fn last_hours(hours: u32) -> Self {
        HistoryQuery { resolution: Resolution::Hour, intervals: hours, ..HistoryQuery::default() }
    }

    /// Selects only this queue; `None` means all queues.
    #[must_use]
    pub fn queue(self, queue: impl Into<Option<String>>) -> Self {
        HistoryQuery { queue: queue.into(), ..self }
    }

    /// Adds up all queues: the store returns one point per interval, with an empty queue.
    #[must_use]
    pub fn sum_queues(self) -> Self {
        HistoryQuery { sum_queues: true, ..self }
    }
}

/// Statistics: one point per queue and interval with activity, oldest first.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct History {
    /// The current time, by the store's clock.
    #[serde(serialize_with = "crate::clock::as_micros_option")]
    pub now: Option<SystemTime>,
    /// The points.
    pub points: Vec<HistoryPoint>,
}

/// One interval of one queue.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct HistoryPoint {
    /// When the interval began.
    #[serde(serialize_with = "crate::clock::as_micros")]
    pub start: SystemTime,
    /// The queue.
    pub queue: String,
    /// Its counters.
    #[serde(flatten)]
    pub counters: StatCounters,
}

/// Counters of jobs and attempts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct StatCounters {
    /// Jobs pushed.
    pub pushed: u64,
    /// Attempts that ended in an ack.
    pub done: u64,
    /// Attempts that failed and are retried.
    pub retried: u64,
    /// Attempts that failed for good.
    pub buried: u64,
    /// Attempts that ended without counting.
    pub released: u64,
    /// Jobs taken back from dead nodes.
    pub taken_back: u64,
    /// Jobs that ended cancelled, whether they waited or ran. Their attempts are in none of the other outcomes.
    pub cancelled: u64,
    /// How long after its due time each of these attempts started.
    pub lateness: Histogram,
    /// How long each of them took.
    pub duration: Histogram,
}

/// Distribution of values over buckets. Each bound is twice the previous one, which limits the error of a quantile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
#[non_exhaustive]
pub struct Histogram {
    /// The number of values in each bucket.
    pub buckets: [u64; HISTOGRAM_BUCKETS],
}

impl Histogram {
    /// Returns the bucket of a value.
    #[must_use]
    pub fn bucket_of(value: Duration) -> usize {
        let units = u64::try_from(value.as_micros()).unwrap_or(u64::MAX) / FIRST_BUCKET_MICROS;
        (units.checked_ilog2().map_or(0, |log| log as usize + 1)).min(HISTOGRAM_BUCKETS - 1)
    }

    /// Returns the upper bound of a bucket.
    #[must_use]
    pub fn upper_bound(bucket: usize) -> Duration {
        Duration::from_micros(FIRST_BUCKET_MICROS << bucket.min(HISTOGRAM_BUCKETS - 1))
    }

    /// Returns the number of values.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Returns an estimate of the value that a share `q` (0 to 1) of all values does not exceed; `None` without values.
    #[must_use]
    pub fn quantile(&self, q: f64) -> Option<Duration> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let rank = ((q.clamp(0.0, 1.0) * count as f64).ceil() as u64).clamp(1, count);
        let mut seen = 0;
        for (bucket, in_bucket) in self.buckets.iter().enumerate() {
            if seen + in_bucket >= rank {
                let lower = if bucket == 0 { Duration::ZERO } else { Histogram::upper_bound(bucket - 1) };
                let share = (rank - seen) as f64 / (*in_bucket).max(1) as f64;
                return Some(lower + (Histogram::upper_bound(bucket) - lower).mul_f64(share));
            }
            seen += in_bucket;
        }
        None
    }
}

impl StatCounters {
    /// Adds other counters to these.
    pub fn add(&mut self, other: &StatCounters) {
        let mut numbers = self.to_numbers();
        numbers.iter_mut().zip(other.to_numbers()).for_each(|(sum, more)| *sum = sum.saturating_add(more));
        *self = StatCounters::from_numbers(&numbers);
    }

    /// Returns what was counted since an earlier reading of the same counters.
    #[must_use]
    pub fn since(&self, earlier: &StatCounters) -> StatCounters {
        let mut numbers = self.to_numbers();
        numbers.iter_mut().zip(earlier.to_numbers()).for_each(|(count, before)| *count = count.saturating_sub(before));
        StatCounters::from_numbers(&numbers)
    }

    /// Returns the number of attempts that ended with an outcome. Attempts at jobs that ended cancelled have none.
    #[must_use]
    pub fn attempts(&self) -> u64 {
        self.done + self.retried + self.buried + self.released
    }

    /// Returns all values in one array: the counters, the lateness, the duration.
    pub(crate) fn to_numbers(&self) -> [u64; STAT_NUMBERS] {
        let mut out = [0; STAT_NUMBERS];
        let StatCounters { pushed, done, retried, buried, released, taken_back, cancelled, .. } = *self;
        let counters = [pushed, done, retried, buried, released, taken_back, cancelled];
        out[..COUNTER_COUNT].copy_from_slice(&counters);
        out[COUNTER_COUNT..COUNTER_COUNT + HISTOGRAM_BUCKETS].copy_from_slice(&self.lateness.buckets);
        out[COUNTER_COUNT + HISTOGRAM_BUCKETS..].copy_from_slice(&self.duration.buckets);
        out
    }

    pub(crate) fn from_numbers(numbers: &[u64; STAT_NUMBERS]) -> Self {
        let [pushed, done, retried, buried, released, taken_back, cancelled] =
            [0, 1, 2, 3, 4, 5, 6].map(|index: usize| numbers[index]);
        let mut counters =
            StatCounters { pushed, done, retried, buried, released, taken_back, cancelled, ..Default::default() };
        counters.lateness.buckets.copy_from_slice(&numbers[COUNTER_COUNT..COUNTER_COUNT + HISTOGRAM_BUCKETS]);
        counters.duration.buckets.copy_from_slice(&numbers[COUNTER_COUNT + HISTOGRAM_BUCKETS..]);
        counters
    }
}

/// Index of pushed jobs in the array of numbers.
pub(crate) const PUSHED_INDEX: usize = 0;
pub(crate) const TAKEN_BACK_INDEX: usize = 5;
pub(crate) const CANCELLED_INDEX: usize = 6;

/// Returns the index of an outcome in the array of numbers.
pub(crate) fn outcome_index(outcome: &Outcome) -> usize {
    match outcome {
        Outcome::Ack => 1,
        Outcome::Retry { .. } => 2,
        Outcome::Bury { .. } => 3,
        Outcome::Release { .. } => 4,
    }
}

/// Returns the indexes of a lateness and a duration in the array of numbers.
pub(crate) fn timing_indexes(lateness: Duration, duration: Duration) -> [usize; 2] {
    [COUNTER_COUNT + Histogram::bucket_of(lateness), COUNTER_COUNT + HISTOGRAM_BUCKETS + Histogram::bucket_of(duration)]
}

impl History {
    /// Returns the sum of all points.
    #[must_use]
    pub fn total(&self) -> StatCounters {
        let mut sum = StatCounters::default();
        self.points.iter().for_each(|point| sum.add(&point.counters));
        sum
    }

    /// Returns the sum for each queue, by name.
    #[must_use]
    pub fn by_queue(&self) -> BTreeMap<&str, StatCounters> {
        let mut queues = BTreeMap::<&str, StatCounters>::new();
        for point in &self.points {
            queues.entry(&point.queue).or_default().add(&point.counters);
        }
        queues
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantile_lies_within_the_bounds_of_its_bucket() {
        let mut histogram = Histogram::default();
        for millis in 1..=1_000u64 {
            histogram.buckets[Histogram::bucket_of(Duration::from_millis(millis))] += 1;
        }
        let half = histogram.quantile(0.5).expect("not empty").as_secs_f64();
        assert!((0.25..=1.0).contains(&half), "{half}");
        assert_eq!(Histogram::default().quantile(0.5), None);
        assert!(histogram.quantile(1.0) >= histogram.quantile(0.0));
    }

    proptest! {
        #[test]
        fn every_value_lies_below_the_bound_of_its_bucket(micros in 0u64..1 << 60) {
            let value = Duration::from_micros(micros);
            let bucket = Histogram::bucket_of(value);
            prop_assert!(bucket == HISTOGRAM_BUCKETS - 1 || value < Histogram::upper_bound(bucket));
            prop_assert!(bucket == 0 || value >= Histogram::upper_bound(bucket - 1));
        }

        #[test]
        fn counters_round_trip_through_numbers(numbers in proptest::collection::vec(0u64..1 << 40, STAT_NUMBERS)) {
            let numbers: [u64; STAT_NUMBERS] = numbers.try_into().expect("as many");
            prop_assert_eq!(StatCounters::from_numbers(&numbers).to_numbers(), numbers);
        }
    }
}
