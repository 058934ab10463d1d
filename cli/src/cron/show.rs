//! `duly cron ls`, `get` and `next`: rules and their times, in words.

use std::time::SystemTime;

use clap::Args;
use duly::{CronRecord, Duly, Schedule};
use serde_json::json;

use crate::escape::{cut, safe};
use crate::exit::{self, Fail};
use crate::output::Format;
use crate::{Setup, store, time};

/// How many times are shown in one line.
const SHORT: usize = 3;
/// Most times that are shown at all.
const NEXT_MAX: u64 = 10_000;
/// Args in a table are cut to this many characters.
const ARGS_CHARS_MAX: usize = 40;

/// Say when a rule fires next, and what changing clocks do to it
///
/// With --pattern it needs no store: `duly cron next --pattern '30 2 * * *' --tz Europe/Berlin`.
#[derive(Debug, Args)]
pub(crate) struct Next {
    /// The rule's name
    #[arg(required_unless_present = "pattern", conflicts_with_all = ["pattern", "tz"])]
    name: Option<String>,

    /// A pattern instead of a rule
    #[arg(long)]
    pattern: Option<String>,

    /// The time zone of the pattern
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    tz: String,

    /// How many times
    #[arg(short = 'n', long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=NEXT_MAX))]
    count: u64,

    /// From this moment on instead of now, local time: '2026-03-28 09:00', or RFC 3339
    #[arg(long, value_name = "MOMENT", value_parser = time::parse_moment)]
    from: Option<SystemTime>,
}

impl Next {
    pub(super) async fn run(self, setup: &Setup) -> anyhow::Result<()> {
        let (schedule, paused) = match (&self.name, &self.pattern) {
            (Some(name), _) => {
                let record = find(&store::open(setup).await?, name).await?;
                (record.rule.schedule()?, record.paused)
            }
            (None, pattern) => (Schedule::parse(pattern.as_deref().unwrap_or_default(), &self.tz)?, false),
        };
        let from = self.from.unwrap_or_else(time::now);
        let count = usize::try_from(self.count).unwrap_or(usize::MAX);
        let ticks: Vec<SystemTime> = schedule.after(from).take(count).collect();
        if setup.out.is_json() {
            let shown = |tick: &SystemTime| json!({"at": time::micros(*tick), "shown": schedule.shown(*tick), "note": schedule.oddity(*tick)});
            return setup.out.json(&ticks.iter().map(shown).collect::<Vec<_>>());
        }
        setup.out.say(&format!("{} ({})", schedule.in_words(), schedule.zone()));
        if paused {
            setup.out.say("but it is paused: nothing fires until `duly cron resume`");
        }
        for tick in ticks {
            let note = schedule.oddity(tick).map_or(String::new(), |note| format!("  ({note})"));
            setup.out.line(&format!("{}  {}{note}", schedule.shown(tick), time::distance(tick)))?;
        }
        Ok(())
    }
}

async fn find(duly: &Duly, name: &str) -> anyhow::Result<CronRecord> {
    let none = || Fail::new(exit::NOT_FOUND, format!("no cron rule {} in the store", safe(name)));
    duly.cron_get(name).await?.ok_or_else(none)
}

/// `next: Mon 2026-11-16 03:00 CET, ...`
pub(super) fn next_in_short(record: &CronRecord) -> anyhow::Result<String> {
    if record.paused {
        return Ok("paused".to_owned());
    }
    let schedule = record.rule.schedule()?;
    let from = record.next.unwrap_or_else(time::now);
    let later = schedule.after(from).take(SHORT - 1);
    let ticks: Vec<String> = record.next.into_iter().chain(later).map(|tick| schedule.shown(tick)).collect();
    Ok(format!("next: {}", ticks.join(", ")))
}

pub(super) async fn list(setup: &Setup) -> anyhow::Result<()> {
    let records = store::open(setup).await?.crons().await?;
    match setup.out.format {
        Format::Json => return setup.out.json(&records),
        Format::Ndjson => return records.iter().try_for_each(|record| setup.out.json(record)),
        Format::Table | Format::Wide => {}
    }
    let rows = records.iter().map(row).collect();
    setup.out.table(["NAME", "PATTERN", "ZONE", "NEXT", "LAST", "QUEUE", "KIND", "ARGS"], rows)
}

fn row(record: &CronRecord) -> [String; 8] {
    let rule = &record.rule;
    let next = match record.next {
        _ if record.paused => "paused".to_owned(),
        _ if record.held => "waits for the run before".to_owned(),
        Some(next) => time::distance(next),
        None => "never".to_owned(),
    };
    let last = record.last.map_or("-".to_owned(), time::distance);
    let args = cut(&rule.args, ARGS_CHARS_MAX);
    [rule.name.clone(), rule.pattern.clone(), rule.tz.clone(), next, last, rule.queue.clone(), rule.kind.clone(), args]
}

pub(super) async fn get(setup: &Setup, name: &str) -> anyhow::Result<()> {
    let record = find(&store::open(setup).await?, name).await?;
    if setup.out.is_json() {
        return setup.out.json(&record);
    }
    let rule = &record.rule;
    let schedule = rule.schedule()?;
    let moment = |at: Option<SystemTime>| {
        at.map_or("-".to_owned(), |at| format!("{} ({})", schedule.shown(at), time::distance(at)))
    };
    let lines = [
        ("name", rule.name.clone()),
        ("pattern", format!("{}  {}", rule.pattern, schedule.in_words())),
        ("zone", rule.tz.clone()),
        (
            "state",
            if record.paused {
                "paused"
            } else if record.held {
                "waits for the run before"
            } else {
                "active"
            }
            .into(),
        ),
        ("next", moment(record.next)),
        ("last", moment(record.last)),
        ("last job", record.last_job().map_or("-".to_owned(), |id| id.to_string())),
        ("queue", rule.queue.clone()),
        ("kind", rule.kind.clone()),
        ("args", rule.args.clone()),
        ("missed", rule.missed.to_string()),
        ("overlap", rule.overlap.to_string()),
        ("jitter", if rule.jitter.is_zero() { "-".to_owned() } else { time::exact(rule.jitter) }),
    ];
    for (name, value) in lines {
        setup.out.line(&format!("{name:<10}{}", safe(&value)))?;
    }
    Ok(())
}
