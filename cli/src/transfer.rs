//! `duly move`: transfers all jobs from one store to another, with a progress bar.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use anyhow::Context as _;
use clap::Args;
use duly::admin::{QueueTransferReport, StoreUrl, TransferProgress};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

use crate::exit::{self, CliError};
use crate::output::{Format, Output, pluralize};
use crate::sync::LockExt;
use crate::{Setup, audit, store};

/// The queue, the bar, the counts and the remaining time.
const BAR_TEMPLATE: &str = "{msg:20!} [{bar:30}] {human_pos}/{human_len} jobs, {eta} left";

/// Move all jobs from one store to another
///
/// Moves one queue after the other. No job of a queue is claimed while it moves, and running jobs end first.
/// If the command is interrupted, run it again: no job is lost or duplicated.
#[derive(Debug, Args)]
pub(crate) struct MoveArgs {
    /// The source store, as for --store
    #[arg(long, value_name = "URL", env = "DULY_FROM", hide_env_values = true)]
    from: String,
    /// The target store; a file is created if it does not exist
    #[arg(long, value_name = "URL", env = "DULY_TO", hide_env_values = true)]
    to: String,
    /// Only this queue; may be repeated
    #[arg(long, value_name = "NAME")]
    queue: Vec<String>,
    /// Move although live processes of another program, such as Sidekiq, take jobs from these queues
    #[arg(long)]
    force: bool,
}

/// The report for scripts.
#[derive(Serialize)]
struct TransferSummary<'m> {
    moved: u64,
    queues: &'m [QueueTransferReport],
}

pub(crate) async fn run(verb: MoveArgs, setup: &Setup) -> anyhow::Result<()> {
    if setup.store_flag.is_some() {
        return Err(CliError::new(exit::USAGE, "move takes --from and --to, not --store"));
    }
    // Parses the target URL before any store file is created.
    let to = StoreUrl::parse(&verb.to).context("--to")?;
    let source =
        store::open_existing_at(setup, &verb.from, "give the store that the jobs are in").await.context("--from")?;
    let target = store::open_or_create_at(setup, &verb.to).await.context("--to")?;
    let target_text = describe_move(&verb, &to);
    let printer = ProgressPrinter::new(setup.out);
    let mut transfer = source.transfer_to(&target);
    for queue in verb.queue {
        transfer = transfer.queue(queue);
    }
    if verb.force {
        transfer = transfer.allow_foreign_processes();
    }
    let (bar, moved) = (printer.bar.clone(), printer.moved.clone());
    let transfer = transfer.on_progress(move |progress| printer.update(progress)).run();
    let (mut interrupted, mut terminated) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let run = async {
        tokio::select! {
            biased;
            _ = interrupted.recv() => Err(interrupted_error(&bar)),
            _ = terminated.recv() => Err(interrupted_error(&bar)),
            result = transfer => {
                bar.finish_and_clear();
                result.inspect(|queues| moved.store(count_moved(queues), Ordering::Relaxed)).map_err(Into::into)
            }
        }
    };
    let count = || Some(moved.load(Ordering::Relaxed));
    let result = audit::record_steps(&[&source, &target], "queues.move", &target_text, run, count).await;
    print_report(&setup.out, &result?, &to)
}

/// Returns what moves, and from where to where, for the audit logs of both stores.
fn describe_move(verb: &MoveArgs, to: &StoreUrl) -> String {
    let from = StoreUrl::parse(&verb.from).map(|from| from.to_string()).unwrap_or_default();
    let queues = if verb.queue.is_empty() { "all queues".to_owned() } else { verb.queue.join(", ") };
    format!("{queues} from {from} to {to}")
}

fn interrupted_error(bar: &ProgressBar) -> anyhow::Error {
    bar.abandon();
    CliError::new(exit::FAILURE, "interrupted; the queue stays marked as moving: run the same command again to go on")
}

/// Shows the progress on stderr.
struct ProgressPrinter {
    out: Output,
    bar: ProgressBar,
    /// The jobs that have moved so far.
    moved: Arc<AtomicU64>,
    /// The last queue with a message about running jobs.
    waiting_queue: Mutex<String>,
}

impl ProgressPrinter {
    fn new(out: Output) -> Self {
        let bar = match std::io::stderr().is_terminal() && !out.is_quiet() {
            true => ProgressBar::new(0),
            false => ProgressBar::hidden(),
        };
        let style = ProgressStyle::with_template(BAR_TEMPLATE).unwrap_or_else(|_| ProgressStyle::default_bar());
        ProgressPrinter { out, bar: bar.with_style(style), moved: Arc::default(), waiting_queue: Mutex::default() }
    }

    fn update(&self, progress: &TransferProgress<'_>) {
        self.moved.store(progress.moved, Ordering::Relaxed);
        self.bar.set_length(progress.total);
        self.bar.set_position(progress.moved);
        self.bar.set_message(progress.queue.to_owned());
        let mut waiting = self.waiting_queue.lock_unpoisoned();
        if progress.is_waiting && *waiting != progress.queue {
            progress.queue.clone_into(&mut waiting);
            let message = format!("waiting for running jobs of queue {} to end", progress.queue);
            self.bar.suspend(|| self.out.print_message(&message));
        }
    }
}

fn count_moved(queues: &[QueueTransferReport]) -> u64 {
    queues.iter().map(QueueTransferReport::total).sum()
}

fn print_report(out: &Output, queues: &[QueueTransferReport], to: &StoreUrl) -> anyhow::Result<()> {
    let total = count_moved(queues);
    match out.format {
        Format::Json => out.print_json(&TransferSummary { moved: total, queues })?,
        Format::Ndjson => queues.iter().try_for_each(|queue| out.print_json(queue))?,
        Format::Table | Format::Wide | Format::Name => {
            let rows = queues.iter().filter(|queue| queue.total() > 0).map(|q| {
                let numbers = [q.ready, q.scheduled, q.dead, q.cancelled, q.done].map(|n| n.to_string());
                let [ready, scheduled, dead, cancelled, done] = numbers;
                [q.queue.clone(), ready, scheduled, dead, cancelled, done]
            });
            out.print_table(["QUEUE", "READY", "SCHEDULED", "DEAD", "CANCELLED", "DONE"], rows.collect())?;
        }
    }
    let sum = |field: fn(&QueueTransferReport) -> u64| queues.iter().map(field).sum::<u64>();
    let (present, buried) = (sum(|queue| queue.already_present), sum(|queue| queue.buried));
    if present > 0 {
        out.print_message(&format!(
            "{present} jobs were skipped: the target has jobs with their ids, or had them a short time ago"
        ));
    }
    let remaining = sum(|queue| queue.remaining);
    if remaining > 0 {
        out.print_message(&format!(
            "{remaining} entries stayed in the source: they cannot be read, or were added meanwhile"
        ));
    }
    if buried > 0 {
        out.print_message(&format!("{buried} jobs are dead in the target: other jobs there have their unique keys"));
    }
    let rules = sum(|queue| queue.cron_rules);
    if rules > 0 {
        out.print_message(&format!("{} moved too", pluralize(rules, "cron rule has", "cron rules have")));
    }
    out.print_message(&format!("moved {total} jobs to {}", crate::escape::escape_text(&to.to_string())));
    Ok(())
}
