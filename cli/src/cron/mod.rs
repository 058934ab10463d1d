//! `duly cron`: rules that push a job at each time of a pattern.

mod add;
mod apply;
mod show;

use clap::Subcommand;
use duly::{CronRecord, Pushed};
use serde_json::json;

use crate::{Setup, input, store};

/// Rules that push a job at each time of a pattern
#[derive(Debug, Subcommand)]
pub(crate) enum Cron {
    Add(add::Add),
    Apply(apply::Apply),
    /// List rules with their next times
    Ls,
    /// Show everything that is known of a rule
    Get {
        /// The rule's name
        name: String,
    },
    Next(show::Next),
    /// Let a rule fire no more until it is resumed; what it misses meanwhile is not made up for
    Pause {
        /// The rule's name
        name: String,
    },
    /// Let a paused rule fire again
    Resume {
        /// The rule's name
        name: String,
    },
    /// Push a rule's job now; its times stay as they are
    Trigger {
        /// The rule's name
        name: String,
    },
    /// Delete rules; jobs that they have pushed stay
    Rm {
        /// Names of rules
        #[arg(required = true)]
        names: Vec<String>,
    },
}

pub(crate) async fn run(verb: Cron, setup: &Setup) -> anyhow::Result<()> {
    match verb {
        Cron::Add(add) => add.run(setup).await,
        Cron::Apply(apply) => apply.run(setup).await,
        Cron::Ls => show::list(setup).await,
        Cron::Get { name } => show::get(setup, &name).await,
        Cron::Next(next) => next.run(setup).await,
        Cron::Pause { name } => tell(setup, &store::open(setup).await?.pause_cron(&name).await?),
        Cron::Resume { name } => tell(setup, &store::open(setup).await?.resume_cron(&name).await?),
        Cron::Trigger { name } => trigger(setup, &name).await,
        Cron::Rm { names } => remove(setup, &names).await,
    }
}

/// A rule as it is now: as JSON for scripts, its next times for people.
fn tell(setup: &Setup, record: &CronRecord) -> anyhow::Result<()> {
    if setup.out.is_json() {
        return setup.out.json(record);
    }
    setup.out.line(&format!("cron {}  {}", record.rule.name, show::next_in_short(record)?))
}

async fn trigger(setup: &Setup, name: &str) -> anyhow::Result<()> {
    let pushed = store::open(setup).await?.trigger_cron(name).await?;
    if let Pushed::Existing(id) = pushed {
        setup.out.say(&format!("job {id} of this rule has not ended, and no two may overlap: nothing was pushed"));
    }
    if setup.out.is_json() {
        return setup.out.json(&json!({"id": pushed.id(), "pushed": if pushed.is_new() { "new" } else { "existing" }}));
    }
    setup.out.line(&pushed.id().to_string())
}

async fn remove(setup: &Setup, names: &[String]) -> anyhow::Result<()> {
    let duly = store::open(setup).await?;
    if names.len() > 1 && !setup.yes && !input::confirmed(&format!("Delete {} rules?", names.len()))? {
        return Ok(());
    }
    for name in names {
        duly.remove_cron(name).await?;
    }
    if setup.out.is_json() { setup.out.json(&json!({"removed": names})) } else { Ok(()) }
}
