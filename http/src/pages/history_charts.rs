//! Charts of the store's history: throughput, depth, lateness, duration and failures, of all queues, a queue or a kind.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use super::chart::{Chart, Series, Sparkline, Unit};
use crate::samples::{SAMPLE_SECONDS, SAMPLES_MAX, Window};
use crate::server::App;
use crate::views::unix_micros;
use duly::Duly;
use duly::admin::{Histogram, HistoryQuery, KindStatsQuery, Resolution, StatCounters};
use duly::{Error, Result};

/// The minutes of a sparkline, without the current one.
const SPARK_MINUTES: u32 = 60;
/// The rate of a running interval is projected from the part that has passed, if that is at least this share.
const PROJECTED_SHARE_MIN: f64 = 1.0 / 6.0;

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
    /// The last week.
    Week,
    /// The last 30 days.
    Month,
}

impl Range {
    pub(super) const ALL: [Range; 5] = [Range::Minutes, Range::Hour, Range::Day, Range::Week, Range::Month];

    /// Returns the range with this name, or an hour.
    pub(super) fn parse(name: &str) -> Range {
        Range::ALL.into_iter().find(|range| range.as_str() == name).unwrap_or_default()
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Range::Minutes => "5m",
            Range::Hour => "1h",
            Range::Day => "24h",
            Range::Week => "7d",
            Range::Month => "30d",
        }
    }

    pub(super) fn label(self) -> &'static str {
        match self {
            Range::Minutes => "5 min",
            Range::Hour => "1 h",
            Range::Day => "24 h",
            Range::Week => "7 days",
            Range::Month => "30 days",
        }
    }
}

/// The intervals of a chart: each has the same length, and the last one is running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Grid {
    /// The seconds of an interval.
    step: i64,
    /// The number of complete intervals.
    complete: usize,
    /// The intervals of the store that they consist of.
    resolution: Resolution,
}

impl Grid {
    /// Returns the intervals for a queue. A store keeps as many minutes as a day has, with the running one.
    fn of_queues(range: Range) -> Grid {
        let (step, complete, resolution) = match range {
            Range::Minutes => (60, 5, Resolution::Minute),
            Range::Hour => (60, 60, Resolution::Minute),
            Range::Day => (600, 143, Resolution::Minute),
            Range::Week => (3_600, 168, Resolution::Hour),
            Range::Month => (3_600, 719, Resolution::Hour),
        };
        Grid { step, complete, resolution }
    }

    /// Returns the intervals for a kind, whose minutes are kept for two hours.
    fn of_kinds(range: Range) -> Grid {
        match range {
            Range::Day => Grid { step: 3_600, complete: 24, resolution: Resolution::Hour },
            _ => Grid::of_queues(range),
        }
    }

    /// Returns the number of the store's intervals to read.
    fn stored_intervals(self) -> u32 {
        let seconds = self.step * i64::try_from(self.complete + 1).unwrap_or(i64::MAX);
        let stored = i64::try_from(self.resolution.interval().as_secs()).unwrap_or(i64::MAX);
        u32::try_from(seconds / stored).unwrap_or(u32::MAX)
    }

    /// Describes the interval: `10 s`, `minute`, `10 minutes`, `hour`.
    fn interval_name(self) -> &'static str {
        match self.step {
            SAMPLE_SECONDS => "10 s",
            60 => "minute",
            600 => "10 minutes",
            _ => "hour",
        }
    }
}

/// The counts of one interval.
#[derive(Clone, Debug)]
struct Interval {
    counters: StatCounters,
    /// The part of the interval that was counted: less than 1 for the running interval.
    share: f64,
}

/// The name and the counter of a series.
type Event = (&'static str, fn(&StatCounters) -> u64);

/// The intervals of a chart with their counts; `None` if they are unknown.
struct Timeline {
    grid: Grid,
    /// The start of the first interval in seconds since 1970.
    start: i64,
    intervals: Vec<Option<Interval>>,
}

impl Timeline {
    /// Adds up the points of the store. Intervals without points are empty.
    fn of_points(grid: Grid, now: SystemTime, points: impl Iterator<Item = (SystemTime, StatCounters)>) -> Timeline {
        let seconds = unix_micros(now) as f64 / 1e6;
        let present = unix_micros(now).div_euclid(1_000_000).div_euclid(grid.step) * grid.step;
        let start = present - grid.step * i64::try_from(grid.complete).unwrap_or(0);
        let mut intervals = vec![Interval { counters: StatCounters::default(), share: 1.0 }; grid.complete + 1];
        if let Some(running) = intervals.last_mut() {
            running.share = (seconds - present as f64) / grid.step as f64;
        }
        for (at, counters) in points {
            let at = (unix_micros(at).div_euclid(1_000_000) - start).div_euclid(grid.step);
            if let Some(interval) = usize::try_from(at).ok().and_then(|at| intervals.get_mut(at)) {
                interval.counters.add(&counters);
            }
        }
        Timeline { grid, start, intervals: intervals.into_iter().map(Some).collect() }
    }

    /// Arranges the samples of this server.
    fn of_samples(window: Window) -> Timeline {
        let grid = Grid { step: SAMPLE_SECONDS, complete: SAMPLES_MAX, resolution: Resolution::Minute };
        let first = window.present - i64::try_from(SAMPLES_MAX).unwrap_or(0);
        let mut intervals = vec![None; SAMPLES_MAX + 1];
        for sample in window.samples {
            if let Some(interval) = usize::try_from(sample.number - first).ok().and_then(|at| intervals.get_mut(at)) {
                *interval = Some(Interval { counters: sample.counters, share: sample.share });
            }
        }
        Timeline { grid, start: first * SAMPLE_SECONDS, intervals }
    }

    fn series(&self, name: &'static str, class: &'static str, value: impl Fn(&Interval) -> Option<f64>) -> Series {
        let values = self.intervals.iter().map(|interval| interval.as_ref().and_then(&value)).collect();
        Series { name, class, values }
    }

    fn chart(&self, id: &'static str, title: &'static str, unit: Unit, label: &str, series: Vec<Series>) -> Chart {
        Chart {
            id,
            title,
            unit,
            unit_label: label.to_owned(),
            start: self.start,
            step: self.grid.step,
            series,
            ends_partial: false,
            has_totals: false,
        }
    }

    /// Returns the chart of events per interval. The rate of the running interval is projected.
    fn throughput(&self, events: &[Event]) -> Chart {
        let rate = |interval: &Interval, count: fn(&StatCounters) -> u64| {
            (interval.share >= PROJECTED_SHARE_MIN).then(|| count(&interval.counters) as f64 / interval.share)
        };
        let series = events.iter().map(|(name, count)| self.series(name, name, |interval| rate(interval, *count)));
        let label = format!("per {}; dashed: running, projected", self.grid.interval_name());
        let chart = self.chart("throughput", "Throughput", Unit::Jobs, &label, series.collect());
        Chart { ends_partial: true, has_totals: true, ..chart }
    }

    fn percentiles(
        &self,
        id: &'static str,
        title: &'static str,
        label: &str,
        of: fn(&StatCounters) -> &Histogram,
    ) -> Chart {
        let at = |name, q| self.series(name, name, |interval| of(&interval.counters).quantile(q).map(millis));
        let series = vec![at("p50", 0.5), at("p95", 0.95), at("p99", 0.99)];
        self.chart(id, title, Unit::Millis, &format!("{label}; estimated percentiles"), series)
    }

    fn lateness(&self) -> Chart {
        self.percentiles("lateness", "Lateness", "from due to started", |counters| &counters.lateness)
    }

    fn duration(&self) -> Chart {
        self.percentiles("duration", "Duration", "of an attempt", |counters| &counters.duration)
    }

    /// Returns the chart of unfinished jobs at the end of each interval, computed backwards from the current number.
    fn depth(&self, unfinished: u64) -> Chart {
        let mut depth = unfinished as f64;
        let mut depths = Vec::with_capacity(self.intervals.len());
        for interval in self.intervals.iter().rev() {
            depths.push(interval.as_ref().map(|_| depth.max(0.0)));
            if let Some(Interval { counters: StatCounters { pushed, done, buried, cancelled, .. }, .. }) = interval {
                depth -= *pushed as f64 - (done + buried + cancelled) as f64;
            }
        }
        depths.reverse();
        let series = vec![Series { name: "unfinished", class: "ready", values: depths }];
        self.chart("depth", "Depth", Unit::Jobs, "unfinished jobs, up to now", series)
    }

    /// Returns the chart of failed attempts, in percent of all.
    fn failures(&self) -> Chart {
        let failed = self.series("failed", "buried", |interval| {
            let StatCounters { retried, buried, .. } = interval.counters;
            let attempts = interval.counters.attempts();
            (attempts > 0).then(|| (retried + buried) as f64 * 100.0 / attempts as f64)
        });
        self.chart("failures", "Failures", Unit::Percent, "failed attempts, of all that ended", vec![failed])
    }
}

/// The charts of a page.
pub(super) struct Charts {
    pub range: Range,
    /// The length of an interval, and since when there are samples.
    pub note: String,
    pub charts: Vec<Chart>,
}

impl Charts {
    /// Returns the charts of all queues, or of one. A store of another system keeps no history: the rest of its page
    /// works.
    pub(super) async fn of_queues(app: &App, queue: Option<&str>, range: Range, unfinished: u64) -> Result<Charts> {
        let found = match queue_timeline(app, queue, range).await {
            Err(Error::Unsupported { .. }) => None,
            timeline => Some(timeline?),
        };
        let Some(timeline) = found else {
            return Ok(Charts { range, note: String::new(), charts: Vec::new() });
        };
        let charts = vec![
            timeline.throughput(&[
                ("done", |counters| counters.done),
                ("pushed", |counters| counters.pushed),
                ("retried", |counters| counters.retried),
                ("buried", |counters| counters.buried),
                ("cancelled", |counters| counters.cancelled),
            ]),
            timeline.depth(unfinished),
            timeline.lateness(),
            timeline.duration(),
        ];
        Ok(Charts { range, note: describe(&timeline), charts })
    }

    /// Returns the charts of one kind.
    pub(super) async fn of_kind(app: &App, kind: &str, range: Range) -> Result<Charts> {
        let grid = Grid::of_kinds(range);
        let query = match grid.resolution {
            Resolution::Minute => KindStatsQuery::last_minutes(grid.stored_intervals()),
            Resolution::Hour => KindStatsQuery::last_hours(grid.stored_intervals()),
        };
        let points = app.duly.kind_stats(query.kind(kind.to_owned())).await?;
        let points = points.into_iter().map(|point| (point.start, point.counters));
        let timeline = Timeline::of_points(grid, app.duly.now(), points);
        let charts = vec![
            timeline.throughput(&[
                ("done", |counters| counters.done),
                ("retried", |counters| counters.retried),
                ("buried", |counters| counters.buried),
                ("cancelled", |counters| counters.cancelled),
            ]),
            timeline.failures(),
            timeline.lateness(),
            timeline.duration(),
        ];
        Ok(Charts { range, note: describe(&timeline), charts })
    }
}

async fn queue_timeline(app: &App, queue: Option<&str>, range: Range) -> Result<Timeline> {
    if range == Range::Minutes
        && let Some(window) = app.samples.window(&app.duly, queue).await?
    {
        return Ok(Timeline::of_samples(window));
    }
    let grid = Grid::of_queues(range);
    let query = match grid.resolution {
        Resolution::Minute => HistoryQuery::last_minutes(grid.stored_intervals()),
        Resolution::Hour => HistoryQuery::last_hours(grid.stored_intervals()),
    };
    let history = app.duly.queues().history(query.queue(queue.map(str::to_owned)).sum_queues()).await?;
    let now = history.now.unwrap_or_else(|| app.duly.now());
    let points = history.points.into_iter().map(|point| (point.start, point.counters));
    Ok(Timeline::of_points(grid, now, points))
}

/// Describes the length of an interval, and since when there are samples.
fn describe(timeline: &Timeline) -> String {
    let point = format!("one point per {}", timeline.grid.interval_name());
    let complete = &timeline.intervals[..timeline.intervals.len() - 1];
    let missing = complete.iter().take_while(|interval| interval.is_none()).count();
    match missing {
        0 => point,
        _ if missing == complete.len() => format!("{point}, from now on: this server has just begun to collect them"),
        _ => {
            let seconds = i64::try_from(complete.len() - missing).unwrap_or(0) * timeline.grid.step;
            format!("{point}, for the last {seconds} s: since this server began to collect them")
        }
    }
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
        let ago = last - unix_micros(point.start).div_euclid(60_000_000);
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
    use crate::samples::Sample;
    use std::time::UNIX_EPOCH;

    fn at(minute: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_763_269_200 + minute * 60)
    }

    fn point(minute: u64, pushed: u64, done: u64) -> (SystemTime, StatCounters) {
        let mut counters = StatCounters::default();
        (counters.pushed, counters.done) = (pushed, done);
        (at(minute), counters)
    }

    fn timeline(points: &[(SystemTime, StatCounters)], now: SystemTime, range: Range) -> Timeline {
        Timeline::of_points(Grid::of_queues(range), now, points.iter().cloned())
    }

    fn pushed(timeline: &Timeline, at: usize) -> u64 {
        timeline.intervals[at].as_ref().expect("known").counters.pushed
    }

    const PUSHED: [Event; 1] = [("pushed", |counters| counters.pushed)];

    #[test]
    fn minutes_without_events_are_included() {
        let shown = timeline(&[point(0, 3, 1), point(58, 2, 2)], at(60), Range::Hour);
        assert_eq!(shown.intervals.len(), 61, "and the running minute");
        assert_eq!([pushed(&shown, 0), pushed(&shown, 1), pushed(&shown, 58)], [3, 0, 2]);
    }

    #[test]
    fn the_running_interval_is_the_last_one_of_every_range() {
        for range in Range::ALL {
            let shown = timeline(&[point(60 * 24, 3, 1)], at(60 * 24) + Duration::from_secs(30), range);
            assert_eq!(pushed(&shown, shown.intervals.len() - 1), 3, "{range:?}");
            assert!(shown.throughput(&PUSHED).ends_partial);
            assert!(!shown.duration().ends_partial, "percentiles of a part are not lower");
        }
    }

    #[test]
    fn every_range_is_kept_by_the_store() {
        for range in Range::ALL {
            for (grid, minutes, hours) in [(Grid::of_queues(range), 1_440, 720), (Grid::of_kinds(range), 120, 720)] {
                let kept = if grid.resolution == Resolution::Minute { minutes } else { hours };
                assert!(grid.stored_intervals() <= kept, "{range:?}: {grid:?}");
            }
        }
    }

    #[test]
    fn the_rate_of_the_running_interval_is_projected() {
        let last = |seconds| {
            let shown = timeline(&[point(60, 5, 0)], at(60) + Duration::from_secs(seconds), Range::Hour);
            *shown.throughput(&PUSHED).series[0].values.last().expect("not empty")
        };
        assert_eq!(last(30), Some(10.0), "not a drop");
        assert_eq!(last(5), None, "too early to tell");
    }

    #[test]
    fn a_day_is_drawn_in_steps_of_ten_minutes_and_a_month_in_hours() {
        let shown = timeline(&[point(1_430, 1, 0), point(1_431, 1, 0)], at(1_440), Range::Day);
        assert_eq!((shown.intervals.len(), pushed(&shown, 142)), (144, 2));
        let shown = timeline(&[point(0, 1, 0), point(60, 1, 0)], at(30 * 1_440 - 60), Range::Month);
        assert_eq!((shown.intervals.len(), pushed(&shown, 0), pushed(&shown, 1)), (720, 1, 1));
    }

    #[test]
    fn depth_is_computed_backwards_from_now() {
        let shown = timeline(&[point(57, 10, 0), point(58, 0, 4), point(60, 5, 2)], at(60), Range::Hour);
        let depths: Vec<f64> = shown.depth(9).series[0].values.iter().flatten().copied().collect();
        assert_eq!(depths[56..], [0.0, 10.0, 6.0, 6.0, 9.0], "the running minute does not move the past");
    }

    #[test]
    fn samples_begin_when_the_server_starts() {
        let sample = |number, share, pushed| Sample { number, share, counters: point(0, pushed, 0).1 };
        let empty = Timeline::of_samples(Window { present: 100, samples: Vec::new() });
        assert_eq!((empty.intervals.len(), empty.start), (31, 700));
        assert!(describe(&empty).contains("just begun"), "{}", describe(&empty));
        let samples = vec![sample(98, 1.0, 4), sample(99, 2.0, 8), sample(100, 0.5, 3)];
        let shown = Timeline::of_samples(Window { present: 100, samples });
        assert!(describe(&shown).contains("for the last 20 s"), "{}", describe(&shown));
        let values = &shown.throughput(&PUSHED).series[0].values;
        assert_eq!(values[27..], [None, Some(4.0), Some(4.0), Some(6.0)]);
        assert_eq!(shown.depth(10).series[0].values[27..], [None, Some(0.0), Some(7.0), Some(10.0)]);
    }

    #[test]
    fn unknown_ranges_are_an_hour() {
        assert_eq!(Range::parse("24h"), Range::Day);
        assert_eq!(Range::parse("<script>"), Range::Hour);
    }
}
