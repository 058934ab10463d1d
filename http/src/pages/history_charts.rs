//! Charts of the store's history: throughput, lateness, duration, depth.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use super::chart::{Chart, Series, Sparkline, Unit};
use crate::views::unix_micros;
use duly::Duly;
use duly::admin::{Histogram, HistoryQuery, StatCounters};
use duly::{Error, Result};

/// The minutes of a sparkline, without the current one.
const SPARK_MINUTES: u32 = 60;

/// The time range of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Range {
    /// The last five minutes.
    Minutes,
    /// The last hour.
    #[default]
    Hour,
    /// The last day.
    Day,
}

impl Range {
    pub(super) const ALL: [Range; 3] = [Range::Minutes, Range::Hour, Range::Day];

    /// Returns the range with this name, or an hour.
    pub(super) fn parse(name: &str) -> Range {
        Range::ALL.into_iter().find(|range| range.as_str() == name).unwrap_or_default()
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Range::Minutes => "5m",
            Range::Hour => "1h",
            Range::Day => "24h",
        }
    }

    pub(super) fn label(self) -> &'static str {
        match self {
            Range::Minutes => "5 min",
            Range::Hour => "1 hour",
            Range::Day => "24 hours",
        }
    }

    fn minutes(self) -> i64 {
        match self {
            Range::Minutes => 5,
            Range::Hour => 60,
            Range::Day => 24 * 60,
        }
    }

    /// Returns the number of minutes per point of a chart.
    fn interval_minutes(self) -> i64 {
        match self {
            Range::Day => 10,
            _ => 1,
        }
    }

    fn unit_label(self) -> &'static str {
        match self {
            Range::Day => "jobs in 10 minutes; dashed: the current ones so far",
            _ => "jobs a minute; dashed: the current one so far",
        }
    }
}

/// The counts of one interval.
struct Interval {
    /// The start in seconds since 1970.
    at: i64,
    counters: StatCounters,
}

/// The start of a minute, and the counts in it.
type Minute = (SystemTime, StatCounters);

/// Returns the charts of all queues, or of one.
pub(super) async fn charts(duly: &Duly, queue: Option<&str>, range: Range, unfinished: u64) -> Result<Vec<Chart>> {
    // The complete intervals of the range, and the running one.
    let minutes = u32::try_from(range.minutes() + range.interval_minutes())
        .unwrap_or(u32::MAX)
        .min(duly::bounds::HISTORY_MINUTES_MAX);
    let history = match duly.queues().history(HistoryQuery::last_minutes(minutes).queue(queue.map(str::to_owned))).await
    {
        // A store of another system keeps no history; the rest of the page works.
        Err(Error::Unsupported { .. }) => return Ok(Vec::new()),
        history => history?,
    };
    let now = history.now.unwrap_or_else(|| duly.now());
    let minutes: Vec<Minute> = history.points.into_iter().map(|point| (point.minute, point.counters)).collect();
    Ok(build_charts(&intervals(&minutes, now, range), range, unfinished))
}

/// Returns every complete interval of the range, including empty ones, and the running one.
fn intervals(minutes: &[Minute], now: SystemTime, range: Range) -> Vec<Interval> {
    let width = range.interval_minutes() * 60;
    let present = unix_micros(now).div_euclid(1_000_000).div_euclid(width) * width;
    let first = present - range.minutes() * 60;
    let mut intervals: Vec<Interval> = (0..=range.minutes() / range.interval_minutes())
        .map(|at| Interval { at: first + at * width, counters: StatCounters::default() })
        .collect();
    for (minute, counters) in minutes {
        let at = unix_micros(*minute).div_euclid(1_000_000) - first;
        if let Some(interval) = usize::try_from(at.div_euclid(width)).ok().and_then(|at| intervals.get_mut(at)) {
            interval.counters.add(counters);
        }
    }
    intervals
}

fn build_charts(intervals: &[Interval], range: Range, unfinished: u64) -> Vec<Chart> {
    let times: Vec<i64> = intervals.iter().map(|interval| interval.at).collect();
    let series = |name, class, value: &dyn Fn(&StatCounters) -> u64| Series {
        name,
        class,
        values: intervals.iter().map(|interval| Some(value(&interval.counters) as f64)).collect(),
    };
    let quantiles = |of: &dyn Fn(&StatCounters) -> &Histogram| {
        let quantile = |name, q: f64| Series {
            name,
            class: name,
            values: intervals.iter().map(|interval| of(&interval.counters).quantile(q).map(millis)).collect(),
        };
        vec![quantile("p50", 0.5), quantile("p95", 0.95), quantile("p99", 0.99)]
    };
    let throughput = vec![
        series("done", "done", &|counters| counters.done),
        series("pushed", "pushed", &|counters| counters.pushed),
        series("retried", "retried", &|counters| counters.retried),
        series("buried", "buried", &|counters| counters.buried),
        series("cancelled", "cancelled", &|counters| counters.cancelled),
    ];
    let depth = vec![Series { name: "unfinished", class: "ready", values: depths(intervals, unfinished) }];
    let chart = |id, title, unit, unit_label, series| {
        let (times, ends_partial) = (times.clone(), false);
        Chart { id, title, unit, unit_label, times, series, ends_partial }
    };
    let late = quantiles(&|counters| &counters.lateness);
    let took = quantiles(&|counters| &counters.duration);
    vec![
        // The running interval would look like a drop.
        Chart { ends_partial: true, ..chart("throughput", "Throughput", Unit::Jobs, range.unit_label(), throughput) },
        chart("depth", "Depth", Unit::Jobs, "unfinished jobs, up to now", depth),
        chart("lateness", "Lateness", Unit::Millis, "from due to started; estimated percentiles", late),
        chart("duration", "Duration", Unit::Millis, "of an attempt; estimated percentiles", took),
    ]
}

/// Returns the number of unfinished jobs at the end of each interval, computed backwards from the current number.
fn depths(intervals: &[Interval], unfinished: u64) -> Vec<Option<f64>> {
    let mut depth = unfinished as f64;
    let mut depths = Vec::with_capacity(intervals.len());
    for interval in intervals.iter().rev() {
        depths.push(Some(depth.max(0.0)));
        let StatCounters { pushed, done, buried, cancelled, .. } = &interval.counters;
        let grown = *pushed as f64 - (done + buried + cancelled) as f64;
        depth -= grown;
    }
    depths.reverse();
    depths
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1_000.0
}

/// Returns the jobs done in the last hour, by queue, as sparklines.
pub(super) async fn sparklines(duly: &Duly) -> HashMap<String, Sparkline> {
    let Ok(history) = duly.queues().history(HistoryQuery::last_minutes(SPARK_MINUTES + 1)).await else {
        return HashMap::new();
    };
    let minutes = usize::try_from(SPARK_MINUTES).unwrap_or(usize::MAX);
    let last = history.now.map_or(0, |now| unix_micros(now).div_euclid(60_000_000));
    let mut done: HashMap<String, Vec<u64>> = HashMap::new();
    for point in history.points {
        let ago = last - unix_micros(point.minute).div_euclid(60_000_000);
        let Some(at) = usize::try_from(ago).ok().and_then(|ago| minutes.checked_sub(ago)).filter(|at| *at < minutes)
        else {
            continue;
        };
        done.entry(point.queue).or_insert_with(|| vec![0; minutes])[at] += point.counters.done;
    }
    done.into_iter().map(|(queue, done)| (queue, Sparkline::new("l-done", "done", &done))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    fn at(minute: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_763_270_400 + minute * 60)
    }

    fn point(minute: u64, pushed: u64, done: u64) -> Minute {
        let mut counters = StatCounters::default();
        (counters.pushed, counters.done) = (pushed, done);
        (at(minute), counters)
    }

    #[test]
    fn minutes_without_events_are_included() {
        let shown = intervals(&[point(0, 3, 1), point(58, 0, 2)], at(60), Range::Hour);
        assert_eq!(shown.len(), 61, "and the running minute");
        assert_eq!((shown[0].counters.pushed, shown[58].counters.done), (3, 2));
        assert_eq!(shown[1].counters, StatCounters::default());
    }

    #[test]
    fn the_running_interval_is_the_last_one_of_every_range() {
        for range in Range::ALL {
            let shown = intervals(&[point(1_440, 3, 1)], at(1_440), range);
            assert_eq!(shown.last().expect("not empty").counters.pushed, 3);
            let charts = build_charts(&shown, range, 3);
            assert_eq!(
                charts.iter().filter(|chart| chart.ends_partial).map(|chart| chart.id).collect::<Vec<_>>(),
                ["throughput"]
            );
        }
    }

    #[test]
    fn a_day_is_drawn_in_steps_of_ten_minutes() {
        let shown = intervals(&[point(1_430, 1, 0), point(1_431, 1, 0)], at(1_440), Range::Day);
        assert_eq!(shown.len(), 145, "and the running ones");
        assert_eq!(shown[143].counters.pushed, 2);
    }

    #[test]
    fn depth_is_computed_backwards_from_now() {
        let shown = intervals(&[point(57, 10, 0), point(58, 0, 4), point(60, 5, 2)], at(60), Range::Hour);
        let depths: Vec<f64> = depths(&shown, 9).into_iter().flatten().collect();
        assert_eq!(depths[56..], [0.0, 10.0, 6.0, 6.0, 9.0], "the running minute does not move the past");
    }

    #[test]
    fn unknown_ranges_are_an_hour() {
        assert_eq!(Range::parse("24h"), Range::Day);
        assert_eq!(Range::parse("<script>"), Range::Hour);
    }
}
