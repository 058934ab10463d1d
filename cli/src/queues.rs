//! `duly queues`: lists, pauses, resumes, clears and removes queues, and sets their capacity.

use clap::{ArgGroup, Subcommand};
use duly::Duly;
use duly::admin::Capacity;
use duly_http::views::QueueView;
use serde_json::json;

use crate::backend::{Backend, BulkTarget};
use crate::escape::escape_text;
use crate::output::{Column, ColumnArgs, List};
use crate::{Setup, audit, bulk, time};

/// List, pause, resume, clear and remove queues, and set their capacity
#[derive(Debug, Subcommand)]
pub(crate) enum QueuesVerb {
    /// List queues with the number of jobs in each state
    Ls {
        #[command(flatten)]
        columns: ColumnArgs,
    },
    /// Set the capacity of a queue: a push beyond it is rejected
    #[command(group(ArgGroup::new("capacity").args(["jobs", "bytes", "none"]).required(true).multiple(true)))]
    Capacity {
        queue: String,
        /// The maximum number of unfinished jobs
        #[arg(long, value_name = "N")]
        jobs: Option<u64>,
        /// The maximum bytes of args of unfinished jobs: 5000000, 5MB or 5MiB
        #[arg(long, value_name = "SIZE", value_parser = parse_size)]
        bytes: Option<u64>,
        /// Remove the capacity
        #[arg(long, conflicts_with_all = ["jobs", "bytes"])]
        none: bool,
    },
    /// Delete all jobs of a queue that are not running
    Clear {
        queue: String,
        /// Only count the jobs
        #[arg(long)]
        dry_run: bool,
    },
    /// Stop claiming from a queue; running jobs continue
    Pause { queue: String },
    /// Remove a queue without jobs, with its settings and statistics; a push creates it again
    ///
    /// Queues that nothing has used for a day are removed automatically, unless they are paused or have a capacity.
    Rm { queue: String },
    /// Claim from a queue again
    Resume {
        queue: String,
        /// Abandon the move of the queue to another store, if it will never end: jobs of its last batch may run in both stores
        #[arg(long)]
        abandon_move: bool,
    },
}

/// The columns of `ls`.
const COLUMNS: &[Column<QueueView>] = &[
    Column::new("QUEUE", |queue| queue.queue.clone()),
    Column::new("PAUSED", |queue| {
        let moving = queue.moving_to.as_ref().map(|to| format!("moving to {to}"));
        moving.unwrap_or_else(|| if queue.paused { "paused".to_owned() } else { String::new() })
    }),
    Column::new("SCHEDULED", |queue| queue.scheduled.to_string()),
    Column::new("READY", |queue| queue.ready.to_string()),
    Column::new("OLDEST", |queue| {
        let oldest = queue.oldest_ms.map(|due| time::now().duration_since(time::from_millis(due)).unwrap_or_default());
        oldest.map(time::format_duration).unwrap_or_default()
    }),
    Column::new("RUNNING", |queue| queue.running.to_string()),
    Column::new("DONE", |queue| queue.done.to_string()),
    Column::new("DEAD", |queue| queue.dead.to_string()),
    Column::wide("CANCELLED", |queue| queue.cancelled.to_string()),
    Column::wide("BYTES", |queue| queue.bytes.to_string()),
    Column::new("CAPACITY", |queue| {
        let capacity = Capacity::unlimited().jobs(queue.capacity_jobs).bytes(queue.capacity_bytes);
        if capacity.is_unlimited() { String::new() } else { capacity.to_string() }
    }),
];

pub(crate) async fn run(verb: QueuesVerb, setup: &Setup) -> anyhow::Result<()> {
    match verb {
        QueuesVerb::Ls { columns } => {
            let list = Backend::open_existing(setup).await?.queues().await?;
            let empty = "no queues: a push creates the first";
            setup.out.print_list(&list, &List { items: &list.queues, columns: COLUMNS, chosen: &columns, empty })
        }
        QueuesVerb::Pause { queue } => {
            let backend = Backend::open_or_create(setup).await?;
            let note = empty_queue_note(&backend, &queue).await;
            let changed = backend.pause_queue(&queue).await?;
            print_state(setup, &queue, true, changed, note)
        }
        QueuesVerb::Capacity { queue, jobs, bytes, none: _ } => {
            set_capacity(setup, &queue, Capacity::unlimited().jobs(jobs).bytes(bytes)).await
        }
        QueuesVerb::Clear { queue, dry_run } => {
            let backend = Backend::open_existing(setup).await?;
            let note = empty_queue_note(&backend, &queue).await;
            if !note.is_empty() {
                setup.out.print_message(&format!("queue {queue} is empty{note}"));
            }
            bulk::confirm_and_run(setup, &backend, BulkTarget::Queue(queue), dry_run).await
        }
        QueuesVerb::Rm { queue } => {
            Backend::open_existing(setup).await?.remove_queue(&queue).await?;
            if setup.out.is_json() {
                return setup.out.print_json(&json!({"queue": queue, "did": "removed"}));
            }
            setup.out.print_message(&format!("queue {queue}: removed"));
            Ok(())
        }
        QueuesVerb::Resume { queue, abandon_move } => resume_queue(setup, &queue, abandon_move).await,
    }
}

/// Parses a number of bytes: `5000000`, `5MB` or `5MiB`.
fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let unit: u64 = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" => 1_000,
        "kib" => 1 << 10,
        "m" | "mb" => 1_000_000,
        "mib" => 1 << 20,
        "g" | "gb" => 1_000_000_000,
        "gib" => 1 << 30,
        _ => return Err(NOT_A_SIZE.to_owned()),
    };
    text[..digits].parse::<u64>().ok().and_then(|number| number.checked_mul(unit)).ok_or_else(|| NOT_A_SIZE.to_owned())
}

const NOT_A_SIZE: &str = "not a size; write 5000000, 5MB or 5MiB";

async fn set_capacity(setup: &Setup, queue: &str, capacity: Capacity) -> anyhow::Result<()> {
    let backend = Backend::open_or_create(setup).await?;
    let note = empty_queue_note(&backend, queue).await;
    let previous = backend.set_queue_capacity(queue, capacity).await?;
    if setup.out.is_json() {
        return setup.out.print_json(&json!({"queue": queue, "capacity": capacity, "was": previous}));
    }
    setup.out.print_message(&format!("queue {queue}: {capacity}; before: {previous}{note}"));
    Ok(())
}

/// Returns a note for a queue that is empty or unknown, in case its name is mistyped.
///
/// Returns no note if the counts are unavailable: the verb must not fail because another queue is unreachable.
async fn empty_queue_note(backend: &Backend, queue: &str) -> &'static str {
    let Ok(found) = backend.find_queue(queue).await else {
        return "";
    };
    let Some(queue) = found else {
        return " (nothing was ever pushed to it)";
    };
    let jobs = queue.scheduled + queue.ready + queue.running + queue.done + queue.dead + queue.cancelled;
    if jobs == 0 { " (there is no job in it)" } else { "" }
}

async fn resume_queue(setup: &Setup, queue: &str, abandon_move: bool) -> anyhow::Result<()> {
    let backend = Backend::open_existing(setup).await?;
    let note = empty_queue_note(&backend, queue).await;
    let abandoned =
        abandon_move && abandon_transfer(backend.require_store("queues resume --abandon-move")?, queue).await?;
    let changed = backend.resume_queue(queue).await?;
    print_state(setup, queue, false, changed || abandoned, note)?;
    if let Some(to) = backend.find_queue(queue).await?.and_then(|found| found.moving_to) {
        let to = escape_text(&to);
        setup.out.print_message(&format!(
            "but it is moving to {to}, and nothing is claimed from it until that has ended: run that `duly move` again if it was interrupted"
        ));
    }
    Ok(())
}

/// Abandons the move of a queue, if it is moving. Returns whether it was.
async fn abandon_transfer(duly: &Duly, queue: &str) -> duly::Result<bool> {
    match duly.abandon_transfer(queue).await {
        Ok(false) => Ok(false),
        abandoned => audit::record(duly, "queues.abandon_move", queue, abandoned).await,
    }
}

fn print_state(setup: &Setup, queue: &str, paused: bool, changed: bool, note: &str) -> anyhow::Result<()> {
    if setup.out.is_json() {
        return setup.out.print_json(&json!({"queue": queue, "paused": paused, "changed": changed}));
    }
    let word = if paused { "paused" } else { "open" };
    let already = if changed { "" } else { " already" };
    setup.out.print_message(&format!("queue {queue} is {word}{already}{note}"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed() {
        let cases = [("0", 0), ("5000000", 5_000_000), ("5MB", 5_000_000), ("5 mib", 5 << 20), ("2GiB", 2 << 30)];
        for (text, bytes) in cases {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "5X", "MB", "-1", "1.5MB", "99999999999999999999", "18446744073709551615k"] {
            assert_eq!(parse_size(text), Err(NOT_A_SIZE.to_owned()), "{text}");
        }
    }
}
