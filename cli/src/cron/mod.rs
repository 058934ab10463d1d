//! `duly cron`: manages rules that push a job at each tick of a pattern.

mod add;
mod apply;
mod show;

use clap::Subcommand;
use duly_http::views::RuleView;
use serde_json::json;

use crate::backend::Backend;
use crate::escape::escape_text;
use crate::output::ColumnArgs;
use crate::{Setup, input};

/// Rules that push a job at each time of a pattern
#[derive(Debug, Subcommand)]
pub(crate) enum CronVerb {
    Add(add::CronAddArgs),
    Apply(apply::CronApplyArgs),
    /// List rules with their next times
    Ls {
        #[command(flatten)]
        columns: ColumnArgs,
    },
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
        CronVerb::Ls { columns } => show::list(setup, &columns).await,
        CronVerb::Get { name } => show::get(setup, &name).await,
        CronVerb::Next(next) => next.run(setup).await,
        CronVerb::Pause { name } => set_paused(setup, &name, true).await,
        CronVerb::Resume { name } => set_paused(setup, &name, false).await,
        CronVerb::Trigger { name } => trigger(setup, &name).await,
        CronVerb::Rm { names } => remove(setup, &names).await,
    }
}

async fn set_paused(setup: &Setup, name: &str, paused: bool) -> anyhow::Result<()> {
    let rule = Backend::open_existing(setup).await?.set_rule_paused(name, paused).await?;
    print_rule(setup, &rule)
}

/// Prints a rule: as JSON for scripts, with its next ticks for people.
fn print_rule(setup: &Setup, rule: &RuleView) -> anyhow::Result<()> {
    if setup.out.is_json() {
        return setup.out.print_json(rule);
    }
    let line = format!("cron {}  {}", rule.name, show::format_next_ticks(rule)?);
    setup.out.print_line(&escape_text(&line))
}

async fn trigger(setup: &Setup, name: &str) -> anyhow::Result<()> {
    let pushed = Backend::open_existing(setup).await?.trigger_rule(name).await?;
    if pushed.pushed == "existing" {
        setup.out.print_message(&format!(
            "job {} of this rule has not ended, and the rule allows no overlap: nothing was pushed",
            escape_text(&pushed.id)
        ));
    }
    if setup.out.is_json() {
        return setup.out.print_json(&pushed);
    }
    setup.out.print_line(&escape_text(&pushed.id))
}

async fn remove(setup: &Setup, names: &[String]) -> anyhow::Result<()> {
    let backend = Backend::open_existing(setup).await?;
    if names.len() > 1 && !setup.yes && !input::confirm(&format!("Delete {} rules?", names.len()))? {
        return Ok(());
    }
    for name in names {
        backend.remove_rule(name).await?;
    }
    if setup.out.is_json() { setup.out.print_json(&json!({"removed": names})) } else { Ok(()) }
}
