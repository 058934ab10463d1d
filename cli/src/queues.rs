//! `duly queues`: lists, pauses, resumes, clears and removes queues, and sets their capacity.

use clap::{ArgGroup, Subcommand};
use duly::Duly;
use duly::admin::Capacity;
use serde_json::json;

use crate::audit::BulkAction;
use crate::escape::escape_text;
use crate::output::Format;
use crate::{Setup, audit, bulk, store, time};

/// List, pause, resume, clear and remove queues, and set their capacity
#[derive(Debug, Subcommand)]
pub(crate) enum QueuesVerb {
    /// List queues with the number of jobs in each state
    Ls,
    /// Set the capacity of a queue: a push beyond it is rejected
    #[command(group(ArgGroup::new("capacity").args(["jobs", "bytes", "none"]).required(true).multiple(true)))]
    Capacity {
        queue: String,
        /// The maximum number of unfinished jobs
        #[arg(long, value_name = "N")]
        jobs: Option<u64>,
        /// The maximum bytes of args of unfinished jobs
        #[arg(long, value_name = "N")]
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

pub(crate) async fn run(verb: QueuesVerb, setup: &Setup) -> anyhow::Result<()> {
    match verb {
        QueuesVerb::Ls => list_queues(setup).await,
        QueuesVerb::Pause { queue } => {
            let duly = store::open_or_create(setup).await?;
            let note = empty_queue_note(&duly, &queue).await;
            let paused = duly.queues().pause(&queue).await;
            let changed = audit::record(&duly, "queues.pause", &queue, paused).await?;
            print_state(setup, &queue, true, changed, note)
        }
        QueuesVerb::Capacity { queue, jobs, bytes, none: _ } => {
            set_capacity(setup, &queue, Capacity::unlimited().jobs(jobs).bytes(bytes)).await
        }
        QueuesVerb::Clear { queue, dry_run } => {
            let duly = store::open_existing(setup).await?;
            let note = empty_queue_note(&duly, &queue).await;
            if !note.is_empty() {
                setup.out.print_message(&format!("queue {queue} is empty{note}"));
            }
            let (name, target) = ("queues.clear", Some(queue.clone()));
            let action = BulkAction { duly: &duly, name, filter: None, target };
            bulk::confirm_and_run(setup, action, duly.queues().clear(queue), "Remove", "removed", dry_run).await
        }
        QueuesVerb::Rm { queue } => {
            let duly = store::open_existing(setup).await?;
            let removed = duly.queues().remove(&queue).await;
            audit::record(&duly, "queues.remove", &queue, removed).await?;
            if setup.out.is_json() {
                return setup.out.print_json(&json!({"queue": queue, "did": "removed"}));
            }
            setup.out.print_message(&format!("queue {queue}: removed"));
            Ok(())
        }
        QueuesVerb::Resume { queue, abandon_move } => resume_queue(setup, &queue, abandon_move).await,
    }
}

async fn set_capacity(setup: &Setup, queue: &str, capacity: Capacity) -> anyhow::Result<()> {
    let duly = store::open_or_create(setup).await?;
    let note = empty_queue_note(&duly, queue).await;
    let set = duly.queues().set_capacity(queue, capacity).await;
    let previous = audit::record(&duly, "queues.edit", queue, set).await?;
    if setup.out.is_json() {
        return setup.out.print_json(&json!({"queue": queue, "capacity": capacity, "was": previous}));
    }
    setup.out.print_message(&format!("queue {queue}: {capacity}; before: {previous}{note}"));
    Ok(())
}

/// Returns a note for a queue that is empty or unknown, in case its name is mistyped.
///
/// Returns no note if the counts are unavailable: the verb must not fail because another queue is unreachable.
async fn empty_queue_note(duly: &Duly, queue: &str) -> &'static str {
    let Ok(counts) = duly.queues().counts().await else {
        return "";
    };
    let Some(count) = counts.into_iter().find(|count| count.queue == queue) else {
        return " (nothing was ever pushed to it)";
    };
    let jobs = count.scheduled + count.ready + count.running + count.done + count.dead + count.cancelled;
    if jobs == 0 { " (there is no job in it)" } else { "" }
}

async fn resume_queue(setup: &Setup, queue: &str, abandon_move: bool) -> anyhow::Result<()> {
    let duly = store::open_existing(setup).await?;
    let note = empty_queue_note(&duly, queue).await;
    let abandoned = abandon_move && abandon_transfer(&duly, queue).await?;
    let resumed = duly.queues().resume(queue).await;
    let changed = audit::record(&duly, "queues.resume", queue, resumed).await?;
    print_state(setup, queue, false, changed || abandoned, note)?;
    let counts = duly.queues().counts().await?;
    if let Some(moving) = counts.into_iter().find(|count| count.queue == queue).and_then(|count| count.moving) {
        let to = escape_text(&moving.to);
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

async fn list_queues(setup: &Setup) -> anyhow::Result<()> {
    let duly = store::open_existing(setup).await?;
    let (counts, now) = (duly.queues().counts().await?, duly.now());
    let out = &setup.out;
    match out.format {
        Format::Json => out.print_json(&counts),
        Format::Ndjson => counts.iter().try_for_each(|count| out.print_json(count)),
        Format::Table | Format::Wide => {
            let rows = counts.into_iter().map(|c| {
                let numbers = [c.scheduled, c.ready, c.running, c.done, c.dead].map(|n| n.to_string());
                let [scheduled, ready, running, done, dead] = numbers;
                let state = match (&c.moving, c.paused) {
                    (Some(moving), _) => format!("moving to {}", moving.to),
                    (None, true) => "paused".to_owned(),
                    (None, false) => String::new(),
                };
                let oldest =
                    c.oldest_ready.map(|due| time::format_duration(now.duration_since(due).unwrap_or_default()));
                let oldest = oldest.unwrap_or_default();
                let capacity = if c.capacity.is_unlimited() { String::new() } else { c.capacity.to_string() };
                [c.queue, state, scheduled, ready, oldest, running, done, dead, capacity]
            });
            let head = ["QUEUE", "PAUSED", "SCHEDULED", "READY", "OLDEST", "RUNNING", "DONE", "DEAD", "CAPACITY"];
            out.print_table(head, rows.collect())
        }
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
