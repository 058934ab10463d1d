//! `duly cron ls`, `get` and `next`: prints rules and their ticks.

use std::time::SystemTime;

use clap::Args;
use duly::Duly;
use duly::cron::{CronRecord, Schedule};
use serde_json::json;

use crate::escape::{escape_text, truncate};
use crate::exit::{self, CliError};
use crate::output::Format;
use crate::{Setup, store, time};

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

    /// The start time instead of now, in local time: '2026-03-28 09:00', or RFC 3339
    #[arg(long, value_name = "MOMENT", value_parser = time::parse_time)]
    from: Option<SystemTime>,
}

impl CronNextArgs {
    pub(super) async fn run(self, setup: &Setup) -> anyhow::Result<()> {
        let (schedule, paused) = match (&self.name, &self.pattern) {
            (Some(name), _) => {
                let record = find_rule(&store::open_existing(setup).await?, name).await?;
                (record.rule.schedule()?, record.paused)
            }
            (None, pattern) => (Schedule::parse(pattern.as_deref().unwrap_or_default(), &self.tz)?, false),
        };
        let from = self.from.unwrap_or_else(time::now);
        let count = usize::try_from(self.count).unwrap_or(usize::MAX);
        let ticks: Vec<SystemTime> = schedule.ticks_after(from).take(count).collect();
        if setup.out.is_json() {
            let to_json = |tick: &SystemTime| json!({"at": time::to_micros(*tick), "shown": schedule.format_in_zone(*tick), "note": schedule.dst_note(*tick)});
            return setup.out.print_json(&ticks.iter().map(to_json).collect::<Vec<_>>());
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

async fn find_rule(duly: &Duly, name: &str) -> anyhow::Result<CronRecord> {
    let not_found = || {
        CliError::new(
            exit::NOT_FOUND,
            format!("cron rule {} not found; `duly cron ls` lists the rules", escape_text(name)),
        )
    };
    duly.crons().get(name).await?.ok_or_else(not_found)
}

/// Formats as `next: Mon 2026-11-16 03:00 CET, ...`.
pub(super) fn format_next_ticks(record: &CronRecord) -> anyhow::Result<String> {
    if record.paused {
        return Ok("paused".to_owned());
    }
    let schedule = record.rule.schedule()?;
    let from = record.next.unwrap_or_else(time::now);
    let later = schedule.ticks_after(from).take(SHORT_LIST_TICKS - 1);
    let ticks: Vec<String> = record.next.into_iter().chain(later).map(|tick| schedule.format_in_zone(tick)).collect();
    Ok(format!("next: {}", ticks.join(", ")))
}

pub(super) async fn list(setup: &Setup) -> anyhow::Result<()> {
    let records = store::open_existing(setup).await?.crons().list().await?;
    match setup.out.format {
        Format::Json => return setup.out.print_json(&records),
        Format::Ndjson => return records.iter().try_for_each(|record| setup.out.print_json(record)),
        Format::Table | Format::Wide => {}
    }
    let rows = records.iter().map(table_row).collect();
    setup.out.print_table(["NAME", "PATTERN", "ZONE", "NEXT", "LAST", "QUEUE", "KIND", "ARGS"], rows)
}

fn table_row(record: &CronRecord) -> [String; 8] {
    let rule = &record.rule;
    let next = match record.next {
        _ if record.paused => "paused".to_owned(),
        _ if record.waiting => "waits for the previous run".to_owned(),
        Some(next) => time::format_relative(next),
        None => "never".to_owned(),
    };
    let last = record.last.map_or("-".to_owned(), time::format_relative);
    let args = truncate(&rule.args, ARGS_CHARS_MAX);
    [rule.name.clone(), rule.pattern.clone(), rule.tz.clone(), next, last, rule.queue.clone(), rule.kind.clone(), args]
}

pub(super) async fn get(setup: &Setup, name: &str) -> anyhow::Result<()> {
    let record = find_rule(&store::open_existing(setup).await?, name).await?;
    if setup.out.is_json() {
        return setup.out.print_json(&record);
    }
    let rule = &record.rule;
    let schedule = rule.schedule()?;
    let format_tick = |tick: Option<SystemTime>| match tick {
        Some(tick) => format!("{} ({})", schedule.format_in_zone(tick), time::format_relative(tick)),
        None => "-".to_owned(),
    };
    let lines = [
        ("name", rule.name.clone()),
        ("pattern", format!("{}  {}", rule.pattern, schedule.describe())),
        ("zone", rule.tz.clone()),
        (
            "state",
            if record.paused {
                "paused"
            } else if record.waiting {
                "waits for the previous run"
            } else {
                "active"
            }
            .into(),
        ),
        ("next", format_tick(record.next)),
        ("last", format_tick(record.last)),
        ("last job", record.last_job().map_or("-".to_owned(), |id| id.to_string())),
        ("queue", rule.queue.clone()),
        ("kind", rule.kind.clone()),
        ("args", rule.args.clone()),
        ("missed", rule.missed.to_string()),
        ("overlap", rule.overlap.to_string()),
        ("jitter", if rule.jitter.is_zero() { "-".to_owned() } else { time::format_duration_exact(rule.jitter) }),
    ];
    for (name, value) in lines {
        setup.out.print_line(&format!("{name:<10}{}", escape_text(&value)))?;
    }
    Ok(())
}
