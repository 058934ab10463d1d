//! Charts of time series as plain SVG, visible without scripts. The script replaces them by charts with axes and a
//! cursor. Pure.

use std::ops::Range;
use std::time::Duration;

use super::display;

/// The size of a chart.
const WIDTH: f64 = 600.0;
const HEIGHT: f64 = 180.0;
/// The most points of a line without the script; those of longer series are averaged.
const LINE_POINTS_MAX: usize = 240;
/// The size of a sparkline.
const SPARK_WIDTH: f64 = 100.0;
const SPARK_HEIGHT: f64 = 20.0;

/// The unit of a chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Jobs.
    Jobs,
    /// Milliseconds.
    Millis,
    /// Parts of a hundred.
    Percent,
}

impl Unit {
    fn as_str(self) -> &'static str {
        match self {
            Unit::Jobs => "jobs",
            Unit::Millis => "ms",
            Unit::Percent => "percent",
        }
    }

    /// Formats a value with its unit.
    pub(super) fn format(self, value: f64) -> String {
        match self {
            Unit::Jobs => display::count(value.max(0.0).round() as u64),
            Unit::Millis => display::duration(Duration::from_secs_f64((value.max(0.0) / 1_000.0).min(1e15))),
            Unit::Percent if value == 0.0 => "0 %".to_owned(),
            Unit::Percent => format!("{value:.1} %"),
        }
    }
}

impl std::fmt::Display for Unit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One series of a chart.
#[derive(Clone, Debug)]
pub(super) struct Series {
    pub name: &'static str,
    /// The CSS class, for the colour.
    pub class: &'static str,
    /// A value for each time; `None` if nothing was measured.
    pub values: Vec<Option<f64>>,
}

/// Series with the same times and the same unit.
#[derive(Clone, Debug)]
pub(super) struct Chart {
    pub id: &'static str,
    pub title: &'static str,
    pub unit: Unit,
    pub unit_label: String,
    /// The start of the first interval in seconds since 1970.
    pub start: i64,
    /// The seconds of an interval.
    pub step: i64,
    pub series: Vec<Series>,
    /// The last interval is still running: its line is dashed, and the legend shows the one before.
    pub ends_partial: bool,
    /// The values can be added up.
    pub has_totals: bool,
}

/// A series in numbers.
pub(super) struct SeriesNumbers {
    pub name: &'static str,
    pub last: String,
    pub lowest: String,
    pub highest: String,
    pub total: String,
}

impl Chart {
    /// Returns the greatest value of all series.
    fn max_value(&self) -> f64 {
        self.series.iter().flat_map(|series| series.values.iter().flatten()).fold(0.0, |top, value| top.max(*value))
    }

    /// Returns the complete intervals of a series as the points of an SVG polyline.
    pub(super) fn points(&self, series: &Series) -> String {
        self.points_in(series, 0..self.complete(series))
    }

    /// Returns the line to the running interval, or an empty text.
    pub(super) fn partial_points(&self, series: &Series) -> String {
        match self.ends_partial {
            true => self.points_in(series, self.complete(series).saturating_sub(1)..series.values.len()),
            false => String::new(),
        }
    }

    /// Returns the points of these intervals, at their place in the whole chart.
    fn points_in(&self, series: &Series, shown: Range<usize>) -> String {
        let values = series.values.iter().enumerate().map(|(at, value)| value.filter(|_| shown.contains(&at)));
        points(&values.collect::<Vec<_>>(), self.max_value(), WIDTH, HEIGHT)
    }

    /// Returns the number of complete intervals.
    fn complete(&self, series: &Series) -> usize {
        series.values.len().saturating_sub(usize::from(self.ends_partial))
    }

    /// Formats the most recent value of a series, without the running interval.
    pub(super) fn last(&self, series: &Series) -> String {
        let complete = series.values.iter().take(self.complete(series));
        self.format(complete.rev().flatten().next().copied())
    }

    fn format(&self, value: Option<f64>) -> String {
        value.map_or_else(|| "–".to_owned(), |value| self.unit.format(value))
    }

    /// Returns the series in numbers, without the running interval.
    pub(super) fn numbers(&self) -> Vec<SeriesNumbers> {
        let numbers = |series: &Series| {
            let known = || series.values[..self.complete(series)].iter().flatten().copied();
            SeriesNumbers {
                name: series.name,
                last: self.last(series),
                lowest: self.format(known().reduce(f64::min)),
                highest: self.format(known().reduce(f64::max)),
                total: self.unit.format(known().sum()),
            }
        };
        self.series.iter().map(numbers).collect()
    }

    /// Returns a description for screen readers.
    pub(super) fn description(&self) -> String {
        let series: Vec<String> =
            self.series.iter().map(|series| format!("{} {}", series.name, self.last(series))).collect();
        format!("{}: {}", self.title, series.join(", "))
    }

    /// Returns the series as JSON, for the script.
    pub(super) fn data(&self) -> String {
        let series: Vec<_> = self
            .series
            .iter()
            .map(|series| {
                let values: Vec<_> = series.values.iter().map(|value| value.map(short_number)).collect();
                serde_json::json!({ "name": series.name, "class": series.class, "values": values })
            })
            .collect();
        serde_json::json!({ "start": self.start, "step": self.step, "series": series, "partial": self.ends_partial })
            .to_string()
    }
}

/// Returns a number with at most two decimals, and none if it is whole.
fn short_number(value: f64) -> serde_json::Number {
    let rounded = (value * 100.0).round() / 100.0;
    let whole = (rounded.fract() == 0.0 && rounded.abs() < 1e15).then(|| serde_json::Number::from(rounded as i64));
    whole.or_else(|| serde_json::Number::from_f64(rounded)).unwrap_or_else(|| serde_json::Number::from(0))
}

/// A small chart without axes.
#[derive(Clone, Debug, Default)]
pub(super) struct Sparkline {
    pub class: &'static str,
    pub line: String,
    pub area: String,
    pub description: String,
}

impl Sparkline {
    /// Returns a sparkline of these values, newest last.
    pub(super) fn new(class: &'static str, name: &str, values: &[u64]) -> Sparkline {
        let drawn: Vec<Option<f64>> = values.iter().map(|value| Some(*value as f64)).collect();
        let top = drawn.iter().flatten().fold(1.0f64, |top, value| top.max(*value));
        let line = points(&drawn, top, SPARK_WIDTH, SPARK_HEIGHT);
        let area = match line.is_empty() {
            true => String::new(),
            false => format!("0,{SPARK_HEIGHT} {line} {SPARK_WIDTH},{SPARK_HEIGHT}"),
        };
        let last = values.last().copied().unwrap_or(0);
        Sparkline { class, line, area, description: format!("{name}: {} in the last minute", display::count(last)) }
    }
}

/// Returns the values as points from left to right, with the greatest at the top. The inner points of a level line are
/// left out.
fn points(values: &[Option<f64>], top: f64, width: f64, height: f64) -> String {
    let step = width / (values.len().max(2) - 1) as f64;
    let stride = values.len().div_ceil(LINE_POINTS_MAX).max(1);
    let mut points: Vec<(String, String)> = Vec::new();
    for (chunk, first) in values.chunks(stride).zip((0..).step_by(stride)) {
        let known: Vec<f64> = chunk.iter().flatten().copied().collect();
        let Some(at) = chunk.iter().position(Option::is_some) else { continue };
        let value = known.iter().sum::<f64>() / known.len() as f64;
        let x = (first + at) as f64 * step;
        let y = if top > 0.0 { (height - 1.0) - (height - 2.0) * (value / top).clamp(0.0, 1.0) } else { height - 1.0 };
        let y = format!("{y:.1}");
        if let [.., (_, before), (_, last)] = &*points
            && *before == y
            && *last == y
        {
            points.pop();
        }
        points.push((format!("{x:.1}"), y));
    }
    let points: Vec<String> = points.into_iter().map(|(x, y)| format!("{x},{y}")).collect();
    points.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn chart(values: Vec<Option<f64>>) -> Chart {
        Chart {
            id: "x",
            title: "Lateness",
            unit: Unit::Millis,
            unit_label: String::new(),
            start: 0,
            step: 60,
            series: vec![Series { name: "p95", class: "p95", values }],
            ends_partial: false,
            has_totals: false,
        }
    }

    #[test]
    fn the_running_interval_has_a_line_of_its_own() {
        let chart = Chart { ends_partial: true, ..chart(vec![Some(10.0), Some(5.0), Some(1.0)]) };
        assert_eq!(chart.points(&chart.series[0]), "0.0,1.0 300.0,90.0");
        assert_eq!(chart.partial_points(&chart.series[0]), "300.0,90.0 600.0,161.2");
        assert_eq!(chart.last(&chart.series[0]), "5 ms", "the last complete one");
    }

    #[test]
    fn lines_go_from_edge_to_edge_and_leave_gaps_out() {
        let chart = chart(vec![Some(0.0), None, Some(10.0)]);
        assert_eq!(chart.points(&chart.series[0]), "0.0,179.0 600.0,1.0");
        assert_eq!(chart.description(), "Lateness: p95 10 ms");
    }

    #[test]
    fn long_and_level_lines_have_few_points() {
        let chart = chart((0..720).map(|at| Some(f64::from(at % 7))).collect());
        assert!(chart.points(&chart.series[0]).split(' ').count() <= LINE_POINTS_MAX);
        let level = self::chart(vec![Some(0.0), Some(0.0), Some(0.0), Some(0.0), Some(2.0)]);
        assert_eq!(level.points(&level.series[0]), "0.0,179.0 450.0,179.0 600.0,1.0");
    }

    #[test]
    fn numbers_leave_the_running_interval_out() {
        let chart = Chart { ends_partial: true, ..chart(vec![Some(10.0), None, Some(5.0), Some(1.0)]) };
        let numbers = &chart.numbers()[0];
        assert_eq!([&*numbers.last, &numbers.lowest, &numbers.highest], ["5 ms", "5 ms", "10 ms"]);
        assert!(chart.data().contains("[10,null,5,1]"), "whole numbers are short: {}", chart.data());
    }

    #[test]
    fn a_series_without_values_shows_a_dash() {
        let chart = chart(vec![None, None]);
        assert_eq!((chart.points(&chart.series[0]).as_str(), chart.last(&chart.series[0]).as_str()), ("", "–"));
    }

    proptest! {
        #[test]
        fn every_point_is_in_the_box(values in proptest::collection::vec(proptest::option::of(0.0f64..1e12), 0..100)) {
            let chart = chart(values);
            for point in chart.points(&chart.series[0]).split(' ').filter(|point| !point.is_empty()) {
                let (x, y) = point.split_once(',').expect("a pair");
                prop_assert!((0.0..=600.0).contains(&x.parse::<f64>().expect("a number")));
                prop_assert!((0.0..=180.0).contains(&y.parse::<f64>().expect("a number")));
            }
            let _ = serde_json::from_str::<serde_json::Value>(&chart.data()).expect("JSON");
        }
    }
}
