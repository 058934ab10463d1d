//! Samples of the counters of all queues, every 10 seconds: the points of the finest charts.
//!
//! The store counts by minute. A server that listens itself also keeps the differences between its last readings of the
//! totals, in memory and for 5 minutes. They begin when the server starts.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use duly::admin::StatCounters;
use duly::{CancellationToken, Duly, Error, Result};

use crate::sync::LockExt;
use crate::views::unix_micros;

/// The seconds between two samples.
pub(crate) const SAMPLE_SECONDS: i64 = 10;
/// The number of complete intervals that are kept: 5 minutes.
pub(crate) const SAMPLES_MAX: usize = 30;
/// The most queues with intervals of their own: those with the most events. The rest is only in the sums.
const QUEUES_PER_SAMPLE_MAX: usize = 200;
/// Requests share a reading of the totals that is at most this old.
const READING_SHARED: Duration = Duration::from_secs(1);
const SECOND_MICROS: i64 = 1_000_000;
const SAMPLE_MICROS: i64 = SAMPLE_SECONDS * SECOND_MICROS;

/// The recent samples.
#[derive(Default)]
pub(crate) struct Samples(Mutex<Ring>);

#[derive(Default)]
struct Ring {
    /// A task takes samples.
    is_sampling: bool,
    /// The last reading at the end of an interval.
    last: Option<Reading>,
    /// The last reading for a request.
    newest: Option<Reading>,
    /// The complete intervals, oldest first.
    intervals: VecDeque<SampledInterval>,
}

/// The totals of all queues at a time, by the store's clock in microseconds.
#[derive(Clone)]
struct Reading {
    at: i64,
    totals: BTreeMap<String, StatCounters>,
}

/// The counts between two readings.
#[derive(Clone)]
struct SampledInterval {
    /// When it began, in microseconds.
    from: i64,
    micros: i64,
    sum: StatCounters,
    queues: Vec<(String, StatCounters)>,
}

/// One interval of a window.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    /// The number of the interval, counted from 1970.
    pub(crate) number: i64,
    /// The length, in intervals: about 1, and less for the running interval.
    pub(crate) share: f64,
    pub(crate) counters: StatCounters,
}

/// The last intervals of one queue or of all.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    /// The number of the running interval, counted from 1970.
    pub(crate) present: i64,
    /// The oldest first, the running one last.
    pub(crate) samples: Vec<Sample>,
}

impl Samples {
    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.0.lock_unpoisoned()
    }

    /// Announces that samples are taken from now on, before the first request.
    pub(crate) fn start(&self) {
        self.ring().is_sampling = true;
    }

    /// Takes samples until `stop` is cancelled. A store without totals has none.
    pub(crate) async fn collect(&self, duly: &Duly, stop: &CancellationToken) {
        loop {
            match read_totals(duly).await {
                Ok(reading) => self.ring().record(reading),
                Err(Error::Unsupported { .. }) => {
                    self.ring().is_sampling = false;
                    return;
                }
                Err(error) => tracing::debug!(%error, "a sample is missing: the store does not respond"),
            }
            if stop.run_until_cancelled(tokio::time::sleep(until_next(unix_micros(duly.now())))).await.is_none() {
                return;
            }
        }
    }

    /// Returns the last intervals up to now; `None` if this server takes no samples.
    pub(crate) async fn window(&self, duly: &Duly, queue: Option<&str>) -> Result<Option<Window>> {
        let now = unix_micros(duly.now());
        {
            let ring = self.ring();
            if !ring.is_sampling {
                return Ok(None);
            }
            let shared = i64::try_from(READING_SHARED.as_micros()).unwrap_or(i64::MAX);
            if let Some(newest) = ring.newest.as_ref().filter(|newest| (0..shared).contains(&(now - newest.at))) {
                return Ok(Some(ring.window(newest, queue)));
            }
        }
        let reading = read_totals(duly).await?;
        let mut ring = self.ring();
        let window = ring.window(&reading, queue);
        ring.newest = Some(reading);
        Ok(Some(window))
    }
}

/// Returns the time until the end of the interval; until that of the next one if it ends within a second.
fn until_next(now: i64) -> Duration {
    let rest = SAMPLE_MICROS - now.rem_euclid(SAMPLE_MICROS);
    let rest = if rest < SECOND_MICROS { rest + SAMPLE_MICROS } else { rest };
    Duration::from_micros(rest.unsigned_abs())
}

async fn read_totals(duly: &Duly) -> Result<Reading> {
    let totals = duly.queues().totals().await?;
    Ok(Reading { at: unix_micros(duly.now()), totals: totals.into_iter().collect() })
}

impl Ring {
    /// Records a reading at the end of an interval.
    fn record(&mut self, reading: Reading) {
        if let Some(last) = &self.last {
            if reading.at > last.at {
                self.intervals.push_back(last.until(&reading));
            } else {
                // The clock was set back.
                self.intervals.clear();
            }
        }
        while self.intervals.len() > SAMPLES_MAX {
            self.intervals.pop_front();
        }
        self.last = Some(reading);
    }

    fn window(&self, newest: &Reading, queue: Option<&str>) -> Window {
        let running = self.last.as_ref().filter(|last| newest.at > last.at).map(|last| last.until(newest));
        let samples = self.intervals.iter().chain(&running).map(|interval| interval.sample(queue)).collect();
        Window { present: newest.at.div_euclid(SAMPLE_MICROS), samples }
    }
}

impl Reading {
    /// Returns the counts from this reading to a later one.
    fn until(&self, later: &Reading) -> SampledInterval {
        let mut sum = StatCounters::default();
        let mut queues = Vec::new();
        for (queue, counters) in &later.totals {
            let counted = self.totals.get(queue).map_or_else(|| counters.clone(), |before| counters.since(before));
            if counted != StatCounters::default() {
                sum.add(&counted);
                queues.push((queue.clone(), counted));
            }
        }
        queues.sort_by_key(|(_, counted)| std::cmp::Reverse(counted.pushed + counted.attempts()));
        queues.truncate(QUEUES_PER_SAMPLE_MAX);
        SampledInterval { from: self.at, micros: later.at - self.at, sum, queues }
    }
}

impl SampledInterval {
    fn sample(&self, queue: Option<&str>) -> Sample {
        let counters = match queue {
            None => self.sum.clone(),
            Some(queue) => {
                let own = self.queues.iter().find(|(name, _)| name == queue);
                own.map(|(_, counters)| counters.clone()).unwrap_or_default()
            }
        };
        // A reading may be a little early.
        let number = (self.from + SECOND_MICROS).div_euclid(SAMPLE_MICROS);
        Sample { number, share: self.micros as f64 / SAMPLE_MICROS as f64, counters }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(seconds: i64, queues: &[(&str, u64)]) -> Reading {
        let count = |(queue, done): &(&str, u64)| {
            let mut counters = StatCounters::default();
            counters.done = *done;
            ((*queue).to_owned(), counters)
        };
        Reading { at: seconds * SECOND_MICROS, totals: queues.iter().map(count).collect() }
    }

    fn done(window: &Window) -> Vec<(i64, u64)> {
        window.samples.iter().map(|sample| (sample.number, sample.counters.done)).collect()
    }

    #[test]
    fn samples_are_the_differences_of_readings() {
        let mut ring = Ring::default();
        assert_eq!(done(&ring.window(&reading(99, &[("a", 5)]), None)), [], "starts empty");
        ring.record(reading(100, &[("a", 5)]));
        ring.record(reading(110, &[("a", 7), ("b", 1)]));
        ring.record(reading(120, &[("a", 7), ("b", 1)]));
        let window = ring.window(&reading(124, &[("a", 17), ("b", 1)]), None);
        assert_eq!((done(&window), window.present), (vec![(10, 3), (11, 0), (12, 10)], 12));
        assert!((window.samples[2].share - 0.4).abs() < 1e-9, "the running interval");
        assert_eq!(done(&ring.window(&reading(124, &[("a", 7)]), Some("b"))), [(10, 1), (11, 0), (12, 0)]);
    }

    #[test]
    fn samples_are_bounded() {
        let mut ring = Ring::default();
        let names: Vec<String> = (0..QUEUES_PER_SAMPLE_MAX + 50).map(|n| format!("q{n:03}")).collect();
        for n in 0..100 {
            let totals: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), n)).collect();
            ring.record(reading(n as i64 * SAMPLE_SECONDS, &totals));
        }
        assert_eq!(ring.intervals.len(), SAMPLES_MAX);
        assert!(ring.intervals.iter().all(|interval| interval.queues.len() == QUEUES_PER_SAMPLE_MAX));
        assert_eq!(ring.intervals[0].sum.done, names.len() as u64, "the sum has all queues");
    }

    #[test]
    fn samples_are_taken_at_the_end_of_an_interval() {
        let at = |seconds: f64| until_next((seconds * 1e6) as i64).as_secs_f64();
        assert_eq!([at(100.0), at(103.5), at(109.0)], [10.0, 6.5, 1.0]);
        assert!((at(109.9) - 10.1).abs() < 1e-6, "a timer that was early makes no tiny interval");
    }

    #[test]
    fn samples_survive_removed_queues_and_clocks_that_are_set() {
        let mut ring = Ring::default();
        ring.record(reading(100, &[("a", 5), ("b", 3)]));
        ring.record(reading(110, &[("b", 1)]));
        assert_eq!(done(&ring.window(&reading(110, &[("b", 1)]), None)), [(10, 0)]);
        ring.record(reading(50, &[("b", 2)]));
        assert_eq!(done(&ring.window(&reading(55, &[("b", 4)]), None)), [(5, 2)], "starts again");
    }
}
