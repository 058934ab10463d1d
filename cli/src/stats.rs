//! `duly stats`: rates, lateness and duration of the last minutes, from the store's history.

use std::time::Duration;

use clap::Args;
use duly::Duly;
use duly::admin::{HistoryQuery, StatCounters};
use serde_json::json;

use crate::output::Format;
use crate::{Setup, store, time};

/// How often `--watch` prints the table.
const REFRESH_INTERVAL: Duration = Duration::from_secs(2);

/// Show rates, lateness and duration of the last minutes
///
/// A percentile with ~ is an estimate: attempts are counted by ranges of their lateness and duration.
#[derive(Debug, Args)]
pub(crate) struct StatsArgs {
    /// Only this queue
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
    /// The number of minutes to include, at most a day
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=i64::from(duly::bounds::HISTORY_MINUTES_MAX)))]
    minutes: u32,
    /// Repeat every two seconds until interrupted
    #[arg(long)]
    watch: bool,
}

pub(crate) async fn run(verb: StatsArgs, setup: &Setup) -> anyhow::Result<()> {
    let duly = store::open_existing(setup).await?;
    loop {
        print_stats(&duly, &verb, setup).await?;
        if !verb.watch {
            return Ok(());
        }
        tokio::time::sleep(REFRESH_INTERVAL).await;
    }
}

async fn print_stats(duly: &Duly, verb: &StatsArgs, setup: &Setup) -> anyhow::Result<()> {
    let history = duly.queues().history(HistoryQuery::last_minutes(verb.minutes).queue(verb.queue.clone())).await?;
    let queues = history.by_queue();
    let row = |queue: &str, counters: &StatCounters| {
        let percentile = |q: f64| [&counters.lateness, &counters.duration].map(|histogram| histogram.quantile(q));
        let ([late, took], [late_99, took_99]) = (percentile(0.5), percentile(0.99));
        let format = |time: Option<Duration>| time.map(time::format_duration).unwrap_or_default();
        let StatCounters { pushed, done, retried, buried, released, cancelled, taken_back, .. } = counters;
        let counts = [pushed, done, retried, buried, released, cancelled, taken_back];
        let [pushed, done, retried, buried, released, cancelled, taken_back] = counts.map(u64::to_string);
        let rate = format!("{:.1}/s", counters.done as f64 / (f64::from(verb.minutes) * 60.0));
        let times = [late, late_99, took, took_99].map(format);
        let [late, late_99, took, took_99] = times;
        let queue = queue.to_owned();
        [queue, pushed, done, rate, retried, buried, released, cancelled, taken_back, late, late_99, took, took_99]
    };
    match setup.out.format {
        Format::Json | Format::Ndjson => {
            let millis = |time: Option<Duration>| time.map(|time| time.as_secs_f64() * 1e3);
            let rows = queues.iter().map(|(queue, counters)| {
                json!({
                    "queue": queue, "minutes": verb.minutes,
                    "pushed": counters.pushed, "done": counters.done, "retried": counters.retried, "buried": counters.buried,
                    "released": counters.released, "cancelled": counters.cancelled, "taken_back": counters.taken_back,
                    "lateness_ms": {"p50": millis(counters.lateness.quantile(0.5)), "p99": millis(counters.lateness.quantile(0.99))},
                    "duration_ms": {"p50": millis(counters.duration.quantile(0.5)), "p99": millis(counters.duration.quantile(0.99))},
                })
            });
            match setup.out.format {
                Format::Json => setup.out.print_json(&rows.collect::<Vec<_>>()),
                _ => rows.into_iter().try_for_each(|row| setup.out.print_json(&row)),
            }
        }
        Format::Table | Format::Wide => {
            let head = [
                "QUEUE",
                "PUSHED",
                "DONE",
                "RATE",
                "RETRIED",
                "BURIED",
                "RELEASED",
                "CANCELLED",
                "TAKEN BACK",
                "LATE ~P50",
                "LATE ~P99",
                "TOOK ~P50",
                "TOOK ~P99",
            ];
            setup.out.print_table(head, queues.iter().map(|(queue, counters)| row(queue, counters)).collect())
        }
    }
}
