//! `duly cron apply`: makes the rules of the store match a file.

use std::io::Read as _;
use std::time::Duration;

use clap::Args;
use duly::cron::{CronChange, CronChanges, CronRule};
use duly::{Priority, Push};
use serde::Deserialize;

use crate::backend::Backend;
use crate::exec::COMMAND_KIND;
use crate::exit::{self, CliError};
use crate::output::{GREEN, RED, YELLOW, paint, pluralize};
use crate::{Setup, input, push};

/// The maximum size of a rules file.
const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Make the rules of the store equal to those of a file: add, change, remove
///
/// Prints each change: + a new rule, ~ a changed one, - a removed one. Asks before it removes any.
#[derive(Debug, Args)]
pub(crate) struct CronApplyArgs {
    /// The file with the rules, in TOML; `-` reads stdin
    #[arg(short, long, value_name = "FILE")]
    file: String,

    /// Only print the changes
    #[arg(long)]
    dry_run: bool,

    /// Keep rules that are not in the file
    #[arg(long)]
    no_remove: bool,
}

/// The contents of a rules file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CronFile {
    #[serde(default)]
    cron: Vec<CronFileEntry>,
}

/// One rule of the file. An unknown name is an error: a typo must not silently select a default.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CronFileEntry {
    name: String,
    pattern: String,
    tz: Option<String>,
    kind: Option<String>,
    args: Option<toml::Value>,
    command: Option<Vec<String>>,
    dir: Option<String>,
    queue: Option<String>,
    priority: Option<Priority>,
    max_attempts: Option<u32>,
    timeout: Option<String>,
    keep: Option<String>,
    #[serde(default)]
    tags: Vec<String>,
    missed: Option<String>,
    overlap: Option<String>,
    jitter: Option<String>,
    paused: Option<bool>,
}

impl CronFileEntry {
    fn build_rule(&self) -> anyhow::Result<CronRule> {
        let (kind, args) = match (&self.kind, &self.command) {
            (Some(kind), None) if self.dir.is_none() => {
                (kind.clone(), self.args.as_ref().map_or(Ok(serde_json::Value::Null), toml_to_json)?.to_string())
            }
            (None, Some(argv)) if self.args.is_none() => {
                let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
                (COMMAND_KIND.to_owned(), push::command_job_args(&argv, self.dir.as_deref())?)
            }
            _ => return Err(CliError::new(exit::USAGE, "needs either a kind (with args) or a command (with dir)")),
        };
        push::check_args(&kind, &args, false)?;
        let duration = |text: &Option<String>| text.as_deref().map(parse_duration).transpose();
        let mut job = Push::new(kind, args).tags(self.tags.iter().cloned()).priority(self.priority.unwrap_or_default());
        if let Some(queue) = &self.queue {
            job = job.queue(queue);
        }
        if let Some(attempts) = self.max_attempts {
            job = job.max_attempts(attempts);
        }
        if let Some(timeout) = duration(&self.timeout)? {
            job = job.timeout(timeout);
        }
        if let Some(keep) = duration(&self.keep)? {
            job = job.keep(keep);
        }
        let mut rule = CronRule::new(&self.name, &self.pattern, job)?;
        if let Some(tz) = &self.tz {
            rule = rule.tz(tz);
        }
        if let Some(missed) = &self.missed {
            rule = rule.missed(missed.parse()?);
        }
        if let Some(overlap) = &self.overlap {
            rule = rule.overlap(overlap.parse()?);
        }
        rule = rule.jitter(duration(&self.jitter)?.unwrap_or_default());
        rule.schedule()?;
        Ok(rule)
    }
}

/// Converts args to JSON; rejects values that JSON cannot represent.
fn toml_to_json(value: &toml::Value) -> anyhow::Result<serde_json::Value> {
    let unsupported = |value: &dyn std::fmt::Display| {
        CliError::new(exit::USAGE, format!("args: JSON has no {value}; write it as text, in quotes"))
    };
    Ok(match value {
        toml::Value::Datetime(moment) => return Err(unsupported(&format!("times such as {moment}"))),
        toml::Value::Float(number) => match serde_json::Number::from_f64(*number) {
            Some(number) => number.into(),
            None => return Err(unsupported(number)),
        },
        toml::Value::String(text) => text.as_str().into(),
        toml::Value::Integer(number) => (*number).into(),
        toml::Value::Boolean(flag) => (*flag).into(),
        toml::Value::Array(list) => list.iter().map(toml_to_json).collect::<anyhow::Result<_>>()?,
        toml::Value::Table(fields) => {
            let fields = fields.iter().map(|(name, value)| Ok((name.clone(), toml_to_json(value)?)));
            serde_json::Value::Object(fields.collect::<anyhow::Result<_>>()?)
        }
    })
}

fn parse_duration(text: &str) -> anyhow::Result<Duration> {
    duly::admin::parse_duration(text).map_err(|reason| CliError::new(exit::USAGE, format!("{text:?}: {reason}")))
}

impl CronApplyArgs {
    pub(super) async fn run(self, setup: &Setup) -> anyhow::Result<()> {
        let entries = self.read_file()?.cron;
        let build_rule = |entry: &CronFileEntry| {
            entry
                .build_rule()
                .map_err(|error| CliError::new(exit::USAGE, format!("{}: rule {}: {error}", self.file, entry.name)))
        };
        let rules: Vec<CronRule> = entries.iter().map(build_rule).collect::<anyhow::Result<_>>()?;
        let backend = Backend::open_or_create(setup).await?;
        let changes = backend.compare_rules(&rules, !self.no_remove).await?;
        print_changes(setup, &changes, self.dry_run)?;
        if self.dry_run {
            return Ok(());
        }
        let removed = changes.values().filter(|change| **change == CronChange::Remove).count();
        let removed_rules = pluralize(removed as u64, "rule", "rules");
        if removed > 0 && !setup.yes && !input::confirm(&format!("Delete {removed_rules}?"))? {
            return Ok(());
        }
        let changed = changes.values().filter(|change| **change != CronChange::Unchanged).count();
        if changed > 0 {
            let target = format!("{} ({})", self.file, pluralize(changed as u64, "rule", "rules"));
            backend.apply_rules(&rules, !self.no_remove, &changes, &target).await?;
        }
        set_paused(&backend, &entries).await
    }

    fn read_file(&self) -> anyhow::Result<CronFile> {
        let mut text = String::new();
        let read = match self.file.as_str() {
            "-" => std::io::stdin().lock().take(FILE_BYTES_MAX + 1).read_to_string(&mut text),
            path => std::fs::File::open(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)),
        };
        read.map_err(|error| CliError::new(exit::USAGE, format!("file: cannot read {}: {error}", self.file)))?;
        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(CliError::new(exit::USAGE, format!("{}: more than {FILE_BYTES_MAX} bytes", self.file)));
        }
        toml::from_str(&text).map_err(|error| CliError::new(exit::USAGE, format!("{}: {error}", self.file)))
    }
}

/// Pauses and resumes rules as the file says. A rule that is in its state already is left alone.
async fn set_paused(backend: &Backend, entries: &[CronFileEntry]) -> anyhow::Result<()> {
    let wanted: Vec<(&str, bool)> =
        entries.iter().filter_map(|entry| Some((entry.name.as_str(), entry.paused?))).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let stored = backend.rules().await?.rules;
    for (name, paused) in wanted {
        if !stored.iter().any(|rule| rule.name == name && rule.paused == paused) {
            backend.set_rule_paused(name, paused).await?;
        }
    }
    Ok(())
}

fn print_changes(setup: &Setup, changes: &CronChanges, dry_run: bool) -> anyhow::Result<()> {
    if setup.out.is_json() {
        return setup.out.print_json(changes);
    }
    for (name, change) in changes {
        let line = match change {
            CronChange::Add => paint(GREEN, format!("+ {name}")),
            CronChange::Update => paint(YELLOW, format!("~ {name}")),
            CronChange::Remove => paint(RED, format!("- {name}")),
            _ => continue,
        };
        setup.out.print_line(&line)?;
    }
    let unchanged = changes.values().filter(|change| **change == CronChange::Unchanged).count();
    let would = if dry_run { "would change" } else { "changed" };
    let changed = pluralize((changes.len() - unchanged) as u64, "rule", "rules");
    setup.out.print_message(&format!("{changed} {would}, {unchanged} unchanged"));
    Ok(())
}
