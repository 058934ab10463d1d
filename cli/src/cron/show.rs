//! `duly cron ls`, `get` and `next`: prints rules and their ticks.

use std::time::{Duration, SystemTime};

use clap::Args;
use duly::cron::Schedule;
use duly_http::views::{Preview, RuleView};

use crate::backend::Backend;
use crate::escape::{escape_text, truncate};
use crate::exit::{self, CliError};
use crate::output::{Column, ColumnArgs, List};
use crate::{Setup, time};

/// Ticks that are printed in one line.
const SHORT_LIST_TICKS: usize = 3;
/// The most ticks that `next` prints.
const NEXT_TICKS_MAX: u64 = 10_000;
/// The longest args in a table.
const ARGS_CHARS_MAX: usize = 40;

/// Print the next times of a rule, with notes about clock changes
///
/// With --pattern it needs no store: `duly cron next --pattern '30 2 * * *' --tz Europe/Berlin`.
#[derive(Debug, Args)]
pub(crate) struct CronNextArgs {
    /// The rule's name
    #[arg(required_unless_present = "pattern", conflicts_with_all = ["pattern", "tz"])]
    name: Option<String>,

    /// A pattern instead of a rule
    #[arg(long)]
    pattern: Option<String>,

    /// The time zone of the pattern
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    tz: String,

    /// The number of times
    #[arg(short = 'n', long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=NEXT_TICKS_MAX))]
    count: u64,

    /// The start time instead of now, in the zone of the pattern: '2026-03-28 09:00', or RFC 3339
    #[arg(long, value_name = "MOMENT")]
    from: Option<String>,
}

impl CronNextArgs {
    pub(super) async fn run(self, setup: &Setup) -> anyhow::Result<()> {
        let (schedule, paused) = match (&self.name, &self.pattern) {
            (Some(name), _) => {
                let rule = Backend::open_existing(setup).await?.rule(name).await?;
                (Schedule::parse(&rule.pattern, &rule.tz)?, rule.paused)
            }
            (None, pattern) => (Schedule::parse(pattern.as_deref().unwrap_or_default(), &self.tz)?, false),
        };
        let from = match &self.from {
            Some(text) => time::parse_time_in_zone(text, schedule.zone_name())
                .map_err(|reason| CliError::new(exit::USAGE, format!("from: {reason}")))?,
            None => time::now(),
        };
        let count = usize::try_from(self.count).unwrap_or(usize::MAX);
        let ticks: Vec<SystemTime> = schedule.ticks_after(from).take(count).collect();
        if setup.out.is_json() {
            return setup.out.print_json(&Preview::new(&schedule, &ticks));
        }
        setup.out.print_message(&format!("{} ({})", schedule.describe(), schedule.zone_name()));
        if paused {
            setup.out.print_message("but it is paused: nothing fires until `duly cron resume`");
        }
        for tick in ticks {
            let note = schedule.dst_note(tick).map_or(String::new(), |note| format!("  ({note})"));
            setup.out.print_line(&format!(
                "{}  {}{note}",
                schedule.format_in_zone(tick),
                time::format_relative(tick)
            ))?;
        }
        Ok(())
    }
}

/// Formats the next ticks in one line.
pub(super) fn format_next_ticks(rule: &RuleView) -> anyhow::Result<String> {
    if rule.paused {
        return Ok("paused".to_owned());
    }
    let schedule = Schedule::parse(&rule.pattern, &rule.tz)?;
    let ticks = rule.next_ms.iter().take(SHORT_LIST_TICKS).map(|ms| schedule.format_in_zone(time::from_millis(*ms)));
    Ok(format!("next: {}", ticks.collect::<Vec<_>>().join(", ")))
}

/// The columns of `ls`.
const COLUMNS: &[Column<RuleView>] = &[
    Column::new("NAME", |rule| rule.name.clone()),
    Column::new("PATTERN", |rule| rule.pattern.clone()),
    Column::new("ZONE", |rule| rule.tz.clone()),
    Column::new("NEXT", |rule| match rule.next_ms.first() {
        _ if rule.paused => "paused".to_owned(),
        _ if rule.waiting => "waits for the previous run".to_owned(),
        Some(next) => time::format_relative(time::from_millis(*next)),
        None => "never".to_owned(),
    }),
    Column::new("LAST", |rule| {
        rule.last_ms.map_or("-".to_owned(), |last| time::format_relative(time::from_millis(last)))
    }),
    Column::new("QUEUE", |rule| rule.queue.clone()),
    Column::new("KIND", |rule| rule.kind.clone()),
    Column::wide("PRIORITY", |rule| rule.priority.clone()),
    Column::wide("MISSED", |rule| rule.missed.clone()),
    Column::wide("OVERLAP", |rule| rule.overlap.clone()),
    Column::new("ARGS", |rule| truncate(rule.args.as_ref().map_or("", |args| args.get()), ARGS_CHARS_MAX)),
];

pub(super) async fn list(setup: &Setup, columns: &ColumnArgs) -> anyhow::Result<()> {
    let list = Backend::open_existing(setup).await?.rules().await?;
    let empty = "no cron rules: `duly cron add` makes the first";
    setup.out.print_list(&list, &List { items: &list.rules, columns: COLUMNS, chosen: columns, empty })
}

pub(super) async fn get(setup: &Setup, name: &str) -> anyhow::Result<()> {
    let rule = Backend::open_existing(setup).await?.rule(name).await?;
    if setup.out.is_json() {
        return setup.out.print_json(&rule);
    }
    let schedule = Schedule::parse(&rule.pattern, &rule.tz)?;
    let format_tick = |tick: Option<i64>| match tick.map(time::from_millis) {
        Some(tick) => format!("{} ({})", schedule.format_in_zone(tick), time::format_relative(tick)),
        None => "-".to_owned(),
    };
    let state = match (rule.paused, rule.waiting) {
        (true, _) => "paused",
        (false, true) => "waits for the previous run",
        (false, false) => "active",
    };
    let duration = |ms: u64| time::format_duration_exact(Duration::from_millis(ms));
    let optional = |text: String| if text.is_empty() { "-".to_owned() } else { text };
    let lines = [
        ("name", rule.name.clone()),
        ("pattern", format!("{}  {}", rule.pattern, rule.description)),
        ("zone", rule.tz.clone()),
        ("state", state.to_owned()),
        ("next", format_tick(rule.next_ms.first().copied())),
        ("last", format_tick(rule.last_ms)),
        ("last job", rule.last_job.clone().unwrap_or_else(|| "-".to_owned())),
        ("queue", rule.queue.clone()),
        ("kind", rule.kind.clone()),
        ("args", rule.args.as_ref().map_or("not shown to this token", |args| args.get()).to_owned()),
        ("priority", rule.priority.clone()),
        ("attempts", format!("at most {}", rule.max_attempts)),
        ("timeout", duration(rule.timeout_ms)),
        ("keep", rule.keep_ms.map_or("as the store says".to_owned(), duration)),
        ("tags", optional(rule.tags.join(" "))),
        ("missed", rule.missed.clone()),
        ("overlap", rule.overlap.clone()),
        ("jitter", optional(duration(rule.jitter_ms))),
    ];
    for (name, value) in lines {
        setup.out.print_line(&format!("{name:<10}{}", escape_text(&value)))?;
    }
    Ok(())
}
