//! The lines of the table: figures, ratios, and goals that are met or missed.

use serde::Serialize;

use crate::stats::Comparison;

/// The unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Unit {
    PerSecond,
    Micros,
    Millis,
    Seconds,
    Percent,
    Bytes,
    Megabytes,
    /// A count of the things that the line names.
    Count,
}

/// The figure of one side.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figure {
    pub(crate) subject: String,
    pub(crate) value: f64,
    pub(crate) unit: Unit,
}

impl Figure {
    pub(crate) fn new(subject: impl Into<String>, value: f64, unit: Unit) -> Self {
        Figure { subject: subject.into(), value, unit }
    }

    pub(crate) fn format_value(&self) -> String {
        let value = self.value;
        if value.is_infinite() {
            return "never".to_owned();
        }
        match self.unit {
            Unit::PerSecond if value < 10.0 => format!("{value:.1}/s"),
            Unit::PerSecond if value >= 10_000.0 => format!("{:.1}k/s", value / 1_000.0),
            Unit::PerSecond => format!("{value:.0}/s"),
            Unit::Micros => format!("{value:.1} us"),
            Unit::Millis => format!("{value:.2} ms"),
            Unit::Seconds => format!("{value:.2} s"),
            Unit::Percent => format!("{value:.2} %"),
            Unit::Bytes => format!("{value:.0} B"),
            Unit::Megabytes => format!("{value:.2} MB"),
            Unit::Count => format!("{value:.1}"),
        }
    }
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct ReportGoal {
    pub(crate) text: String,
    pub(crate) is_met: bool,
}

/// One line of the table.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ReportLine {
    pub(crate) group: &'static str,
    pub(crate) name: String,
    pub(crate) ours: Figure,
    pub(crate) other: Option<Figure>,
    pub(crate) ratio: Option<f64>,
    pub(crate) spread: Option<(f64, f64)>,
    pub(crate) goal: Option<ReportGoal>,
}

impl ReportLine {
    /// Creates a line with only duly's figure.
    pub(crate) fn single(group: &'static str, name: impl Into<String>, value: f64, unit: Unit) -> Self {
        let ours = Figure::new("duly", value, unit);
        ReportLine { group, name: name.into(), ours, other: None, ratio: None, spread: None, goal: None }
    }

    /// Creates a line with the medians of both sides and the median of the ratios per round.
    pub(crate) fn comparison(
        group: &'static str,
        name: impl Into<String>,
        unit: Unit,
        subject: &str,
        pair: &Comparison,
    ) -> Self {
        ReportLine {
            other: Some(Figure::new(subject, pair.theirs.median(), unit)),
            ratio: Some(pair.ratio()),
            spread: Some(pair.spread()),
            ..ReportLine::single(group, name, pair.ours.median(), unit)
        }
    }

    pub(crate) fn compared_to(mut self, subject: &str, value: f64) -> Self {
        self.ratio = Some(self.ours.value / value);
        self.other = Some(Figure::new(subject, value, self.ours.unit));
        self
    }

    pub(crate) fn ratio_at_least(self, min: f64) -> Self {
        let met = self.ratio.is_some_and(|ratio| ratio >= min);
        self.with_goal(format!(">= {min}x"), met)
    }

    pub(crate) fn ratio_at_most(self, max: f64) -> Self {
        let met = self.ratio.is_some_and(|ratio| ratio <= max);
        self.with_goal(format!("<= {max}x"), met)
    }

    pub(crate) fn value_below(self, max: f64) -> Self {
        let goal = Figure { value: max, ..self.ours.clone() };
        let met = self.ours.value < max;
        self.with_goal(format!("< {}", goal.format_value()), met)
    }

    /// Adds a goal or another condition of it; the goal is met if all conditions are.
    pub(crate) fn with_goal(mut self, text: impl Into<String>, met: bool) -> Self {
        let text = text.into();
        self.goal = Some(match self.goal.take() {
            None => ReportGoal { text, is_met: met },
            Some(goal) => ReportGoal { text: format!("{}, {text}", goal.text), is_met: goal.is_met && met },
        });
        self
    }

    fn table_cells(&self) -> [String; 6] {
        let ratio = match (self.ratio, self.spread) {
            (Some(ratio), Some((min, max))) => {
                format!("{} ({}-{})", format_ratio(ratio), format_digits(min), format_digits(max))
            }
            (Some(ratio), None) => format_ratio(ratio),
            (None, _) => "-".to_owned(),
        };
        let other = self.other.as_ref().map(|other| format!("{} {}", other.subject, other.format_value()));
        let goal = self.goal.as_ref();
        [
            self.name.clone(),
            self.ours.format_value(),
            other.unwrap_or_else(|| "-".to_owned()),
            ratio,
            goal.map_or("-", |goal| &goal.text).to_owned(),
            goal.map_or("-", |goal| if goal.is_met { "met" } else { "MISSED" }).to_owned(),
        ]
    }
}

fn format_digits(ratio: f64) -> String {
    match ratio.abs() {
        large if large >= 10.0 => format!("{ratio:.0}"),
        small if small < 0.02 => format!("{ratio:.4}"),
        _ => format!("{ratio:.2}"),
    }
}

pub(crate) fn format_ratio(ratio: f64) -> String {
    format!("{}x", format_digits(ratio))
}

const TABLE_HEAD: [&str; 6] = ["measurement", "duly", "the other side", "ratio (rounds)", "goal", ""];

/// Formats the table as Markdown.
pub(crate) fn format_table(lines: &[ReportLine]) -> String {
    let mut rows = vec![TABLE_HEAD.map(str::to_owned)];
    rows.extend(lines.iter().map(ReportLine::table_cells));
    let widths: Vec<usize> = (0..TABLE_HEAD.len())
        .map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
        .collect();
    let line = |row: &[String; 6]| {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let rule = widths.iter().map(|width| "-".repeat(width + 2)).collect::<Vec<_>>().join("|");
    let body: String = rows[1..].iter().map(line).collect();
    format!("{}|{rule}|\n{body}", line(&rows[0]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_shows_whether_goal_is_met() {
        let mut pair = Comparison::default();
        pair.record(20_000.0, 40_000.0);
        let line = ReportLine::comparison("lifecycle", "batch 10", Unit::PerSecond, "bare loop", &pair);
        let table = format_table(&[line.clone().ratio_at_least(0.35), line.ratio_at_least(0.6)]);
        assert!(
            table.contains("| batch 10    | 20.0k/s | bare loop 40.0k/s | 0.50x (0.50-0.50) | >= 0.35x | met    |")
        );
        assert!(table.contains("| >= 0.6x  | MISSED |"), "{table}");
    }

    #[test]
    fn goal_with_two_conditions_needs_both() {
        let goal = |ours: f64| {
            let mut pair = Comparison::default();
            pair.record(ours, 10.0);
            ReportLine::comparison("list", "a page", Unit::Micros, "few", &pair)
                .ratio_at_most(1.5)
                .value_below(100.0)
                .goal
                .expect("a goal")
        };
        assert_eq!(goal(12.0).text, "<= 1.5x, < 100.0 us");
        assert_eq!([12.0, 16.0, 200.0].map(|ours| goal(ours).is_met), [true, false, false]);
        let mut slow = Comparison::default();
        slow.record(120.0, 100.0);
        let line =
            ReportLine::comparison("list", "a page", Unit::Micros, "few", &slow).ratio_at_most(1.5).value_below(100.0);
        assert!(!line.goal.expect("a goal").is_met, "the second counts too");
    }
}
