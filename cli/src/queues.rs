//! `duly queues`: counts by queue, pause and resume.

use clap::Subcommand;
use serde_json::json;

use crate::escape::safe;
use crate::output::Format;
use crate::{Setup, store};

/// Look at queues, pause and resume them
#[derive(Debug, Subcommand)]
pub(crate) enum Queues {
    /// List queues with the number of jobs in each state
    Ls,
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
            let changed = store::open_or_make(setup).await?.pause(&queue).await?;
            tell(setup, &queue, true, changed)
        }
        Queues::Resume { queue, abandon_move } => resume(setup, &queue, abandon_move).await,
    }
}

async fn resume(setup: &Setup, queue: &str, abandon_move: bool) -> anyhow::Result<()> {
    let duly = store::open(setup).await?;
    let abandoned = abandon_move && duly.abandon_move(queue).await?;
    let changed = duly.resume(queue).await?;
    tell(setup, queue, false, changed || abandoned)?;
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
    let counts = store::open(setup).await?.counts().await?;
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
                [c.queue, state, scheduled, ready, running, done, dead]
            });
            out.table(["QUEUE", "PAUSED", "SCHEDULED", "READY", "RUNNING", "DONE", "DEAD"], rows.collect())
        }
    }
}

fn tell(setup: &Setup, queue: &str, paused: bool, changed: bool) -> anyhow::Result<()> {
    if setup.out.is_json() {
        return setup.out.json(&json!({"queue": queue, "paused": paused, "changed": changed}));
    }
    let word = if paused { "paused" } else { "open" };
    let already = if changed { "" } else { " already" };
    setup.out.say(&format!("queue {queue} is {word}{already}"));
    Ok(())
}
