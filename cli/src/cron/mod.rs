//! `duly cron`: manages rules that push a job at each tick of a pattern.

mod add;
mod apply;
mod show;

use clap::Subcommand;
use duly::PushResult;
use duly::cron::CronRecord;
use serde_json::json;

use crate::{Setup, audit, input, store};

/// Rules that push a job at each time of a pattern
#[derive(Debug, Subcommand)]
pub(crate) enum CronVerb {
    Add(add::CronAddArgs),
    Apply(apply::CronApplyArgs),
    /// List rules with their next times
    Ls,
    /// Show a rule with all its settings
    Get {
        /// The rule's name
        name: String,
    },
    Next(show::CronNextArgs),
    /// Stop a rule from firing until it is resumed; ticks in between are skipped
    Pause {
        /// The rule's name
        name: String,
    },
    /// Let a paused rule fire again
    Resume {
        /// The rule's name
        name: String,
    },
    /// Push the job of a rule now; its next times do not change
    Trigger {
        /// The rule's name
        name: String,
    },
    /// Delete rules; their jobs stay
    Rm {
        /// Names of rules
        #[arg(required = true)]
        names: Vec<String>,
    },
}

pub(crate) async fn run(verb: CronVerb, setup: &Setup) -> anyhow::Result<()> {
    match verb {
        CronVerb::Add(add) => add.run(setup).await,
        CronVerb::Apply(apply) => apply.run(setup).await,
        CronVerb::Ls => show::list(setup).await,
        CronVerb::Get { name } => show::get(setup, &name).await,
        CronVerb::Next(next) => next.run(setup).await,
        CronVerb::Pause { name } => {
            let duly = store::open_existing(setup).await?;
            let paused = duly.crons().pause(&name).await;
            print_rule(setup, &audit::record(&duly, "cron.pause", name, paused).await?)
        }
        CronVerb::Resume { name } => {
            let duly = store::open_existing(setup).await?;
            let resumed = duly.crons().resume(&name).await;
            print_rule(setup, &audit::record(&duly, "cron.resume", name, resumed).await?)
        }
        CronVerb::Trigger { name } => trigger(setup, &name).await,
        CronVerb::Rm { names } => remove(setup, &names).await,
    }
}

/// Prints a rule: as JSON for scripts, with its next ticks for people.
fn print_rule(setup: &Setup, record: &CronRecord) -> anyhow::Result<()> {
    if setup.out.is_json() {
        return setup.out.print_json(record);
    }
    setup.out.print_line(&format!("cron {}  {}", record.rule.name, show::format_next_ticks(record)?))
}

async fn trigger(setup: &Setup, name: &str) -> anyhow::Result<()> {
    let duly = store::open_existing(setup).await?;
    let pushed = duly.crons().trigger(name).await;
    let pushed = audit::record(&duly, "cron.trigger", name, pushed).await?;
    if let PushResult::Existing(id) = pushed {
        setup.out.print_message(&format!(
            "job {id} of this rule has not ended, and the rule allows no overlap: nothing was pushed"
        ));
    }
    if setup.out.is_json() {
        return setup
            .out
            .print_json(&json!({"id": pushed.id(), "pushed": if pushed.is_new() { "new" } else { "existing" }}));
    }
    setup.out.print_line(&pushed.id().to_string())
}

async fn remove(setup: &Setup, names: &[String]) -> anyhow::Result<()> {
    let duly = store::open_existing(setup).await?;
    if names.len() > 1 && !setup.yes && !input::confirm(&format!("Delete {} rules?", names.len()))? {
        return Ok(());
    }
    for name in names {
        let removed = duly.crons().remove(name).await;
        audit::record(&duly, "cron.remove", name, removed).await?;
    }
    if setup.out.is_json() { setup.out.print_json(&json!({"removed": names})) } else { Ok(()) }
}
