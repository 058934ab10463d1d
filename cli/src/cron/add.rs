//! `duly cron add`: creates or replaces a rule.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use duly::cron::{CronRule, Missed, Overlap};

use crate::backend::Backend;
use crate::exit::{self, CliError};
use crate::{Setup, push};

const NAMED_PATTERNS: &str = "named patterns are @hourly, @daily, @weekly, @monthly and @yearly";

/// Store a rule: a pattern, and the job to push at each of its times
///
/// A pattern has five fields (minute hour day month weekday), or six with the seconds first.
/// Adding the same rule again changes nothing; a different rule with the same name replaces it and keeps due ticks.
/// Workers of the rule's queue fire it, so at least one must run.
#[derive(Debug, Args)]
pub(crate) struct CronAddArgs {
    /// The rule's name
    name: String,

    /// The pattern, such as '0 3 * * *'
    pattern: String,

    /// The time zone of the pattern, such as Europe/Berlin
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    tz: String,

    /// Names the handler that runs the job
    #[arg(long, required_unless_present = "command", conflicts_with = "command")]
    kind: Option<String>,

    /// The args for the handler, as JSON
    #[arg(long, value_name = "JSON", requires = "kind", allow_negative_numbers = true)]
    args: Option<String>,

    /// A command with its arguments; runs in the current directory
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,

    /// The policy for ticks without a worker: skip, once (one run for all), all:N (a run for each of the last N)
    #[arg(long, value_name = "POLICY", default_value_t = Missed::default())]
    missed: Missed,

    /// The policy while an earlier job of the rule is unfinished: allow, skip, queue, replace
    #[arg(long, value_name = "POLICY", default_value_t = Overlap::default())]
    overlap: Overlap,

    /// The longest random delay of each job after its tick: 30s, 5m
    #[arg(long, value_name = "DURATION", value_parser = duly::admin::parse_duration)]
    jitter: Option<Duration>,

    #[command(flatten)]
    options: push::JobOptions,
}

impl CronAddArgs {
    pub(super) async fn run(self, setup: &Setup) -> anyhow::Result<()> {
        let is_named = self.pattern.starts_with('@');
        // Rejects invalid patterns before a store file is created.
        let checked = self.build_rule().and_then(|rule| rule.schedule().map(|_| rule).map_err(Into::into));
        let rule = checked.map_err(|error| match is_named && exit::exit_code(&error) == exit::USAGE {
            true => CliError::new(exit::USAGE, format!("{error}; {NAMED_PATTERNS}")),
            false => error,
        })?;
        let rule = Backend::open_or_create(setup).await?.save_rule(rule).await?;
        super::print_rule(setup, &rule)
    }

    fn build_rule(self) -> anyhow::Result<CronRule> {
        let (kind, args) = match self.kind {
            Some(kind) => (kind, self.args.unwrap_or_else(|| "null".to_owned())),
            None => push::resolve_kind_and_args(None, None, &self.command)?,
        };
        push::check_args(&kind, &args, false)?;
        let rule = CronRule::new(self.name, self.pattern, self.options.build_push(kind, args))?;
        Ok(rule.tz(self.tz).missed(self.missed).overlap(self.overlap).jitter(self.jitter.unwrap_or_default()))
    }
}
