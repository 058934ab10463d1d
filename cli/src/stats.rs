//! `duly stats`: rates, lateness and duration of the last minutes, from the store's history.

use std::time::Duration;

use clap::Args;
use duly_http::views::QueueStatsView;
use serde::Serialize;

use crate::backend::Backend;
use crate::output::{Column, ColumnArgs, List, pluralize};
use crate::{Setup, time};

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
    #[command(flatten)]
    columns: ColumnArgs,
}

pub(crate) async fn run(verb: StatsArgs, setup: &Setup) -> anyhow::Result<()> {
    let backend = Backend::open_existing(setup).await?;
    loop {
        print_stats(&backend, &verb, setup).await?;
        if !verb.watch {
            return Ok(());
        }
        tokio::time::sleep(REFRESH_INTERVAL).await;
    }
}

/// The sums of one queue.
#[derive(Serialize)]
#[serde(transparent)]
struct StatsRow {
    sums: QueueStatsView,
    #[serde(skip)]
    minutes: u32,
}

/// The columns of the table.
const COLUMNS: &[Column<StatsRow>] = &[
    Column::new("QUEUE", |row| row.sums.queue.clone()),
    Column::new("PUSHED", |row| row.sums.pushed.to_string()),
    Column::new("DONE", |row| row.sums.done.to_string()),
    Column::new("RATE", |row| format!("{:.1}/s", row.sums.done as f64 / (f64::from(row.minutes) * 60.0))),
    Column::new("RETRIED", |row| row.sums.retried.to_string()),
    Column::new("BURIED", |row| row.sums.buried.to_string()),
    Column::new("RELEASED", |row| row.sums.released.to_string()),
    Column::new("CANCELLED", |row| row.sums.cancelled.to_string()),
    Column::new("TAKEN BACK", |row| row.sums.taken_back.to_string()),
    Column::new("LATE ~P50", |row| format_millis(row.sums.lateness.p50_ms)),
    Column::new("LATE ~P99", |row| format_millis(row.sums.lateness.p99_ms)),
    Column::new("TOOK ~P50", |row| format_millis(row.sums.duration.p50_ms)),
    Column::new("TOOK ~P99", |row| format_millis(row.sums.duration.p99_ms)),
];

async fn print_stats(backend: &Backend, verb: &StatsArgs, setup: &Setup) -> anyhow::Result<()> {
    let stats = backend.queue_stats(verb.minutes, verb.queue.as_deref()).await?;
    let empty = format!("nothing happened in the last {}", pluralize(verb.minutes.into(), "minute", "minutes"));
    let row = |sums: &QueueStatsView| StatsRow { sums: sums.clone(), minutes: verb.minutes };
    let rows: Vec<StatsRow> = stats.queues.iter().map(row).collect();
    let list = List { items: &rows, columns: COLUMNS, chosen: &verb.columns, empty: &empty };
    setup.out.print_list(&stats, &list)
}

fn format_millis(ms: Option<f64>) -> String {
    ms.map(|ms| time::format_duration(Duration::from_secs_f64(ms.max(0.0) / 1e3))).unwrap_or_default()
}
