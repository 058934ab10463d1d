//! `duly queues`: counts by queue, pause and resume, limits, and emptying them.

use clap::{ArgGroup, Subcommand};
use duly::{Duly, Limit};
use serde_json::json;

use crate::escape::safe;
use crate::output::Format;
use crate::{Setup, bulk, store, time};

/// Look at queues, pause and resume them
#[derive(Debug, Subcommand)]
pub(crate) enum Queues {
    /// List queues with the number of jobs in each state
    Ls,
    /// Limit how much may be unfinished in a queue: what is pushed beyond it is refused
    #[command(group(ArgGroup::new("limit").args(["jobs", "bytes", "none"]).required(true).multiple(true)))]
    Limit {
        queue: String,
        /// At most so many jobs
        #[arg(long, value_name = "N")]
        jobs: Option<u64>,
        /// At most so many bytes of args
        #[arg(long, value_name = "N")]
        bytes: Option<u64>,
        /// No limit any more
        #[arg(long, conflicts_with_all = ["jobs", "bytes"])]
        none: bool,
    },
    /// Delete all jobs of a queue that are not running
    Clear {
        queue: String,
        /// Only count them
        #[arg(long)]
        dry_run: bool,
    },
    /// Claim nothing more from a queue; what runs goes on
    Pause { queue: String },
    /// Claim from a queue again
    Resume {
        queue: String,
        /// Also if it is moving to another store and that move will never end: its last batch may then run in both
        #[arg(long)]
        abandon_move: bool,
    },
}

pub(crate) async fn run(verb: Queues, setup: &Setup) -> anyhow::Result<()> {
    match verb {
        Queues::Ls => list(setup).await,
        Queues::Pause { queue } => {
            let duly = store::open_or_make(setup).await?;
            let empty = empty(&duly, &queue).await;
            let changed = duly.pause(&queue).await?;
            tell(setup, &queue, true, changed, empty)
        }
        Queues::Limit { queue, jobs, bytes, none: _ } => limit(setup, &queue, Limit { jobs, bytes }).await,
        Queues::Clear { queue, dry_run } => {
            let duly = store::open(setup).await?;
            let note = empty(&duly, &queue).await;
            if !note.is_empty() {
                setup.out.say(&format!("queue {queue} is empty{note}"));
            }
            bulk::change(setup, duly.clear(queue), "Remove", "removed", dry_run).await
        }
        Queues::Resume { queue, abandon_move } => resume(setup, &queue, abandon_move).await,
    }
}

async fn limit(setup: &Setup, queue: &str, limit: Limit) -> anyhow::Result<()> {
    let duly = store::open_or_make(setup).await?;
    let empty = empty(&duly, queue).await;
    let was = duly.limit(queue, limit).await?;
    if setup.out.is_json() {
        return setup.out.json(&json!({"queue": queue, "limit": limit, "was": was}));
    }
    setup.out.say(&format!("queue {queue}: {limit}; before: {was}{empty}"));
    Ok(())
}

/// A note for who may have mistyped the name of a queue: whether anything is known of it. None where that cannot be told:
/// what was asked for does not fail because another queue is out of reach.
async fn empty(duly: &Duly, queue: &str) -> &'static str {
    let Ok(counts) = duly.counts().await else {
        return "";
    };
    let Some(known) = counts.into_iter().find(|count| count.queue == queue) else {
        return " (nothing was ever pushed to it)";
    };
    let jobs = known.scheduled + known.ready + known.running + known.done + known.dead;
    if jobs == 0 { " (there is no job in it)" } else { "" }
}

async fn resume(setup: &Setup, queue: &str, abandon_move: bool) -> anyhow::Result<()> {
    let duly = store::open(setup).await?;
    let empty = empty(&duly, queue).await;
    let abandoned = abandon_move && duly.abandon_move(queue).await?;
    let changed = duly.resume(queue).await?;
    tell(setup, queue, false, changed || abandoned, empty)?;
    let counts = duly.counts().await?;
    if let Some(moving) = counts.into_iter().find(|count| count.queue == queue).and_then(|count| count.moving) {
        let to = safe(&moving.to);
        setup.out.say(&format!(
            "but it is moving to {to}, and nothing is claimed from it until that has ended: run that `duly move` again if it was interrupted"
        ));
    }
    Ok(())
}

async fn list(setup: &Setup) -> anyhow::Result<()> {
    let duly = store::open(setup).await?;
    let (counts, now) = (duly.counts().await?, duly.now());
    let out = &setup.out;
    match out.format {
        Format::Json => out.json(&counts),
        Format::Ndjson => counts.iter().try_for_each(|count| out.json(count)),
        Format::Table | Format::Wide => {
            let rows = counts.into_iter().map(|c| {
                let numbers = [c.scheduled, c.ready, c.running, c.done, c.dead].map(|n| n.to_string());
                let [scheduled, ready, running, done, dead] = numbers;
                let state = match (&c.moving, c.paused) {
                    (Some(moving), _) => format!("moving to {}", moving.to),
                    (None, true) => "paused".to_owned(),
                    (None, false) => String::new(),
                };
                let oldest = c.oldest.map(|due| time::short(now.duration_since(due).unwrap_or_default()));
                let oldest = oldest.unwrap_or_default();
                let limit = if c.limit.is_none() { String::new() } else { c.limit.to_string() };
                [c.queue, state, scheduled, ready, oldest, running, done, dead, limit]
            });
            let head = ["QUEUE", "PAUSED", "SCHEDULED", "READY", "OLDEST", "RUNNING", "DONE", "DEAD", "LIMIT"];
            out.table(head, rows.collect())
        }
    }
}

fn tell(setup: &Setup, queue: &str, paused: bool, changed: bool, empty: &str) -> anyhow::Result<()> {
    if setup.out.is_json() {
        return setup.out.json(&json!({"queue": queue, "paused": paused, "changed": changed}));
    }
    let word = if paused { "paused" } else { "open" };
    let already = if changed { "" } else { " already" };
    setup.out.say(&format!("queue {queue} is {word}{already}{empty}"));
    Ok(())
}
