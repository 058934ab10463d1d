//! `duly push`: pushes one job.

use std::ffi::OsString;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use clap::{ArgGroup, Args};
use duly::bounds::ARGS_BYTES_MAX;
use duly::job::{UniqueConflict, UniqueScope};
use duly::{JobId, Priority};
use duly_http::views::PushedView;
use serde::Deserialize;
use serde_json::json;

use crate::Setup;
use crate::backend::Backend;
use crate::escape::{escape_text, truncate};
use crate::exec::COMMAND_KIND;
use crate::exit::{self, CliError};
use crate::{input, time, wait};

/// The longest part of args in an error.
const SHOWN_CHARS_MAX: usize = 40;

/// Push a job: a kind with its args, or a command to run
///
/// `duly push KIND [JSON]` pushes a job of any kind; JSON defaults to `null`, and `-` reads it from stdin.
/// `duly push -- COMMAND ARGS...` pushes a job of the kind `command`, which `duly work` runs directly, without a shell,
/// in the directory in which it was pushed.
/// Prints the id of the job.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("when").args(["after", "at"])))]
pub(crate) struct PushArgs {
    /// Names the handler that runs the job
    #[arg(required_unless_present_any = ["command", "bulk"], conflicts_with = "command")]
    kind: Option<String>,

    /// The args for the handler, as JSON; `-` reads them from stdin
    #[arg(value_name = "JSON", conflicts_with = "command", allow_negative_numbers = true)]
    args: Option<String>,

    /// A command with its arguments; runs without a shell
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,

    /// The delay from now: 10m, 1h30m, 7d
    #[arg(long = "in", id = "after", value_name = "DURATION", allow_hyphen_values = true, value_parser = duly::admin::parse_duration)]
    after: Option<Duration>,

    /// The due time, in local time: '2026-12-01 09:00', 14:30, 'tomorrow 9:00', or RFC 3339
    #[arg(long, value_name = "MOMENT", value_parser = time::parse_time)]
    at: Option<SystemTime>,

    #[command(flatten)]
    options: JobOptions,

    /// The unique key: pushes nothing if an unfinished job of the same kind and queue has it
    #[arg(long, value_name = "KEY")]
    unique: Option<String>,

    /// Share the unique key with jobs of other kinds in the queue
    #[arg(long, requires = "unique")]
    across_kinds: bool,

    /// Replace a waiting job with the same unique key
    #[arg(long, requires = "unique")]
    replace: bool,

    /// The id of the job: pushing it again changes nothing; with --bulk the ids of all lines derive from it
    #[arg(long, value_name = "UUID")]
    id: Option<JobId>,

    /// Push many jobs from stdin, one per line. With KIND, a line is the args of a job; without it, an object with `kind`,
    /// `args` and any of these options: queue, priority, in, at, unique, unique_scope, replace, id,
    /// max_attempts, timeout, keep, tags, traceparent
    #[arg(long, conflicts_with_all = ["args", "command", "unique", "wait"])]
    bulk: bool,

    /// Wait until the job is done (exit code 0) or dead (exit code 1)
    #[arg(long)]
    wait: bool,

    /// The longest wait (then exit code 124)
    #[arg(long, value_name = "DURATION", requires = "wait", value_parser = duly::admin::parse_duration)]
    wait_timeout: Option<Duration>,
}

// The options of a job that a push and a cron rule have in common. A doc comment would replace the help of the verbs.
#[derive(Debug, Args)]
pub(crate) struct JobOptions {
    /// The queue
    #[arg(long, value_name = "NAME", default_value = duly::bounds::DEFAULT_QUEUE)]
    queue: String,

    /// The priority: low, normal, high, critical
    #[arg(long, value_name = "PRIORITY", default_value_t = Priority::Normal)]
    priority: Priority,

    /// The number of failed attempts after which the job is dead
    #[arg(long, value_name = "N", default_value_t = duly::bounds::DEFAULT_MAX_ATTEMPTS)]
    max_attempts: u32,

    /// The timeout of one attempt
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = duly::admin::parse_duration)]
    timeout: Duration,

    /// How long the job is kept when it is done [default: the store's setting, 1d]
    #[arg(long, value_name = "DURATION", value_parser = duly::admin::parse_duration)]
    keep: Option<Duration>,

    /// A tag to find the job by; may be repeated
    #[arg(long = "tag", value_name = "WORD")]
    tags: Vec<String>,
}

impl JobOptions {
    /// Returns a job with these options.
    pub(crate) fn build_push(&self, kind: String, args: String) -> duly::Push {
        let job = duly::Push::new(kind, args)
            .queue(&self.queue)
            .priority(self.priority)
            .max_attempts(self.max_attempts)
            .timeout(self.timeout)
            .tags(self.tags.iter().cloned());
        match self.keep {
            Some(keep) => job.keep(keep),
            None => job,
        }
    }
}

pub(crate) async fn run(verb: PushArgs, setup: &Setup) -> anyhow::Result<()> {
    if verb.bulk && verb.kind.as_deref() == Some("-") {
        let reason = "--bulk reads stdin in any case: leave out the -, or name the kind that all lines are args of";
        return Err(CliError::new(exit::USAGE, reason));
    }
    if verb.bulk {
        let kind = verb.kind.clone().unwrap_or_default();
        let id = verb.id.unwrap_or_else(JobId::fresh);
        let base = || verb.build_push(kind.clone(), "null".to_owned());
        return crate::ndjson::run(base, verb.kind.is_some(), id, setup).await;
    }
    let (kind, args) = resolve_kind_and_args(verb.kind.clone(), verb.args.clone(), &verb.command)?;
    check_args(&kind, &args, verb.args.is_some())?;
    let backend = Backend::open_or_create(setup).await?;
    let pushed = backend.push(verb.build_push(kind, args)).await?;
    // A response without an id does not prove that the job was pushed.
    let id: JobId = pushed.id.parse().context("the server did not name the job that it has pushed")?;
    let existing = pushed.pushed == "existing";
    // Only improves the message, so a failed query is ignored.
    let gone = existing && verb.id.is_some() && matches!(backend.find_job(id).await, Ok(None));
    let printed = verb.print_result(setup, &backend, &pushed, gone);
    printed.with_context(|| format!("the job was pushed with the id {id}, but the result could not be printed"))?;
    if verb.wait {
        // An existing job may be gone, and its outcome with it.
        let origin = if existing { wait::JobOrigin::GivenById } else { wait::JobOrigin::JustPushed };
        let job = wait::wait_until_final(&backend, id, verb.wait_timeout, origin).await?;
        wait::print_result(setup, job)?;
    }
    Ok(())
}

/// Rejects args that no worker could use: text that is not JSON, and `command` jobs without a command.
pub(crate) fn check_args(kind: &str, args: &str, were_given: bool) -> anyhow::Result<()> {
    let parsed = serde_json::from_str::<serde::de::IgnoredAny>(args);
    // The push itself reports args that are nested too deep.
    if let Err(error) = parsed.as_ref().map(drop)
        && !error.to_string().contains("recursion limit")
    {
        let shown = escape_text(&truncate(args, SHOWN_CHARS_MAX)).into_owned();
        let hint = match were_given && is_plain_word(args) {
            true => format!(
                "to run a command, write `duly push -- {} {shown}`; to push text, '\"{shown}\"'",
                escape_text(kind)
            ),
            false => "write a JSON value such as '{\"to\":\"ada\"}' or '\"text\"'".to_owned(),
        };
        return Err(CliError::new(exit::USAGE, format!("args: not JSON: {error}; {hint}")));
    }
    if kind != COMMAND_KIND {
        return Ok(());
    }
    let argv = serde_json::from_str::<PushedCommand>(args).map(|args| args.argv).unwrap_or_default();
    match argv.first() {
        Some(program) if !program.is_empty() => Ok(()),
        _ => Err(CliError::new(
            exit::USAGE,
            "a job of the kind command needs a program to run; write it at the end: `-- PROGRAM ARGS...`",
        )),
    }
}

/// The part of the args of a `command` job that must be there.
#[derive(Deserialize)]
struct PushedCommand {
    argv: Vec<String>,
}

/// Returns whether a text that is not JSON may be an argument of a command.
fn is_plain_word(text: &str) -> bool {
    !text.trim_start().starts_with(['{', '[', '"'])
}

/// Returns the args of a `command` job, which runs in `dir` or else in the current directory.
pub(crate) fn command_job_args(argv: &[&str], dir: Option<&str>) -> anyhow::Result<String> {
    if let Some(dir) = dir {
        return Ok(json!({"argv": argv, "dir": dir}).to_string());
    }
    // Relative paths of the command refer to the current directory.
    let dir = std::env::current_dir().context("cannot read the current directory")?;
    let dir = dir.to_str().ok_or_else(|| CliError::new(exit::USAGE, "the current directory is not UTF-8 text"))?;
    Ok(json!({"argv": argv, "dir": dir}).to_string())
}

/// Returns the kind and the args of the job: as given, or those of a command.
pub(crate) fn resolve_kind_and_args(
    kind: Option<String>,
    args: Option<String>,
    command: &[OsString],
) -> anyhow::Result<(String, String)> {
    if let Some(kind) = kind {
        let args = match args.as_deref() {
            None => "null".to_owned(),
            Some("-") => input::read_args_from_stdin(ARGS_BYTES_MAX)?,
            Some(json) => json.to_owned(),
        };
        return Ok((kind, args));
    }
    let argv: Option<Vec<&str>> = command.iter().map(|part| part.to_str()).collect();
    let argv = argv.ok_or_else(|| CliError::new(exit::USAGE, "command: must be UTF-8 text"))?;
    Ok((COMMAND_KIND.to_owned(), command_job_args(&argv, None)?))
}

impl PushArgs {
    fn build_push(&self, kind: String, args: String) -> duly::Push {
        let mut job = self.options.build_push(kind, args).on_conflict(if self.replace {
            UniqueConflict::Replace
        } else {
            UniqueConflict::Keep
        });
        if let Some(after) = self.after {
            job = job.after(after);
        }
        if let Some(at) = self.at {
            job = job.at(at);
        }
        if let Some(key) = &self.unique {
            job = job.unique(key);
            if self.across_kinds {
                job = job.unique_scope(UniqueScope::Queue);
            }
        }
        if let Some(id) = self.id {
            job = job.id(id);
        }
        job
    }

    fn print_result(&self, setup: &Setup, backend: &Backend, pushed: &PushedView, gone: bool) -> anyhow::Result<()> {
        let (out, id) = (&setup.out, escape_text(&pushed.id));
        if out.is_json() {
            out.print_json(pushed)?;
        } else {
            out.print_line(&id)?;
        }
        match &pushed.old {
            _ if gone => out.print_message(&format!(
                "job {id} was pushed before, and is gone (done and not kept, or removed): nothing was pushed; to run it again, push it without --id"
            )),
            _ if pushed.pushed == "existing" => {
                out.print_message(&format!("job {id} exists already: nothing was pushed"));
            }
            Some(old) => out.print_message(&format!("job {id} replaced job {}", escape_text(old))),
            None => {
                let due = self.at.or_else(|| time::now().checked_add(self.after?));
                let due = due.map_or("now".to_owned(), |at| format!("{} ({})", time::format_relative(at), time::format_date_time(at)));
                let place = match backend {
                    Backend::Store(_) => "store",
                    Backend::Server(_) => "server",
                };
                let url = backend.display_url();
                out.print_hint(&format!("job {id}  queue={}  due {due}  {place}={url}", self.options.queue));
            }
        }
        Ok(())
    }
}
