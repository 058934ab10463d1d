//! `duly --server URL ...`: the verbs that also work where the store itself is out of reach, through a `duly serve`.
//!
//! They parse, ask the server, and print what it says; the server holds the rules.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue};
use clap::{Args, CommandFactory, Parser, Subcommand};
use duly::{JobId, Priority, State};
use serde_json::{Value, json};

use crate::api_client::{Server, in_url};
use crate::args::{Cli, Color};
use crate::bulk;
use crate::escape::safe;
use crate::exit::{self, Fail};
use crate::output::{Format, Out};
use crate::{jobs, push};

/// How long one question of a wait waits.
const WAIT_MS: u64 = 30_000;

/// Jobs through a server: push them, look at them, retry, cancel and remove them, pause queues
///
/// With --server only these verbs are there. A token is taken from DULY_TOKEN: others can see command lines.
#[derive(Debug, Parser)]
#[command(name = "duly", version, subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Remote {
    /// The server, such as http://127.0.0.1:7711
    #[arg(long, global = true, value_name = "URL", default_value = "http://127.0.0.1:7711")]
    server: String,
    /// Tables for people, json or ndjson for scripts
    #[arg(short, long, global = true, value_enum, value_name = "FORMAT", default_value_t = Format::Table)]
    output: Format,
    /// The same as -o json
    #[arg(long, global = true, conflicts_with = "output")]
    json: bool,
    /// Say nothing but data and errors
    #[arg(short, long, global = true)]
    quiet: bool,
    /// Colours: by default only on a terminal, and not if NO_COLOR is set
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t = Color::Auto)]
    color: Color,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Push(Push),
    #[command(subcommand)]
    Jobs(Jobs),
    #[command(subcommand)]
    Queues(Queues),
    Stats(Stats),
}

/// Show what has happened in the last minutes, and how fast
#[derive(Debug, Args)]
struct Stats {
    /// Only of this queue
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
    /// Of the last so many minutes, at most a day
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=i64::from(duly::store::HISTORY_MINUTES_MAX)))]
    minutes: u32,
}

/// Push a job: a kind with its args, or a command to run
///
/// A command is run in a directory of the same name as this one, wherever the worker runs;
/// the server takes it only if it was started with --allow-commands.
#[derive(Debug, Args)]
struct Push {
    /// Names the handler that runs the job
    #[arg(required_unless_present = "command", conflicts_with = "command")]
    kind: Option<String>,
    /// What the handler gets, `null` if left out; `-` reads it from stdin
    #[arg(value_name = "JSON", conflicts_with = "command", allow_negative_numbers = true)]
    args: Option<String>,
    /// A command with its arguments, to be run as it stands here
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
    /// So long from now: 10m, 1h30m, 7d
    #[arg(long = "in", value_name = "DURATION", allow_hyphen_values = true, value_parser = duly::store::duration)]
    after: Option<Duration>,
    /// Into this queue
    #[arg(long, value_name = "NAME", default_value = duly::DEFAULT_QUEUE)]
    queue: String,
    /// Before or after other ready jobs: low, normal, high, critical
    #[arg(long, value_name = "PRIORITY", default_value_t = Priority::Normal)]
    priority: Priority,
    /// Only if no unfinished job of the queue has this key
    #[arg(long, value_name = "KEY")]
    unique: Option<String>,
    /// Under this id: pushing it again changes nothing
    #[arg(long, value_name = "UUID")]
    id: Option<JobId>,
    /// A word to find the job by; may be given several times
    #[arg(long = "tag", value_name = "WORD")]
    tags: Vec<String>,
}

/// Look at jobs, retry them, cancel them, remove them
#[derive(Debug, Subcommand)]
enum Jobs {
    /// List jobs: `state:dead kind:mail since:1h`
    Ls {
        /// Which; all if left out
        filter: Vec<String>,
        /// At most so many; the server gives 200 at a time
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: usize,
        /// Go on after an earlier list, which said where
        #[arg(long)]
        cursor: Option<String>,
    },
    /// Show everything that is known of a job
    Get { id: JobId },
    /// Say why a job is not running
    Why { id: JobId },
    /// Wait until a job is done (exit code 0) or dead (exit code 1)
    Wait { id: JobId },
    /// Let jobs that are not running start now
    Retry {
        #[arg(required = true)]
        ids: Vec<JobId>,
    },
    /// Stop running jobs for good
    Cancel {
        #[arg(required = true)]
        ids: Vec<JobId>,
    },
    /// Delete jobs that are not running
    Rm {
        #[arg(required = true)]
        ids: Vec<JobId>,
    },
}

/// Look at queues, pause and resume them
#[derive(Debug, Subcommand)]
enum Queues {
    /// List queues with the number of jobs in each state
    Ls,
    /// Claim nothing more from a queue; what runs goes on
    Pause { queue: String },
    /// Claim from a queue again
    Resume { queue: String },
}

/// Whether this command line is for a server: it says so before anything that belongs to a command.
pub(crate) fn is_meant(args: impl Iterator<Item = OsString>) -> bool {
    let names_one =
        |arg: OsString| arg.as_encoded_bytes() == b"--server" || arg.as_encoded_bytes().starts_with(b"--server=");
    args.take_while(|arg| arg != "--").any(names_one)
}

pub(crate) fn run(remote: Remote) -> anyhow::Result<()> {
    remote.color.write_global();
    let out = Out::new(if remote.json { Format::Json } else { remote.output }, remote.quiet);
    let server = Server::new(&remote.server)?;
    match remote.verb {
        Verb::Push(push) => push.run(&server, out),
        Verb::Jobs(jobs) => jobs.run(&server, out),
        Verb::Queues(Queues::Ls) => queues(out, &server.list("/queues", "queues")?),
        Verb::Queues(Queues::Pause { queue }) => paused(&server, out, &queue, "pause"),
        Verb::Queues(Queues::Resume { queue }) => paused(&server, out, &queue, "resume"),
        Verb::Stats(stats) => stats.run(&server, out),
    }
}

/// Says what is wrong with a command line; of a verb that only a store can do, that it needs one.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    let word = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(word)) => word.as_str(),
        _ => return exit::usage(error),
    };
    let whole = Cli::command();
    let is_known = |command: &clap::Command| command.find_subcommand(word).is_some_and(|verb| !verb.is_hide_set());
    if !is_known(&whole) && !whole.get_subcommands().any(is_known) {
        return exit::usage(error);
    }
    exit::say(&format!("{word}: not through a server; it needs the store itself: --store URL instead of --server"));
    ExitCode::from(exit::USAGE)
}

impl Push {
    fn run(self, server: &Server, out: Out) -> anyhow::Result<()> {
        let (kind, args) = push::what(self.kind, self.args, &self.command)?;
        // Under an id of its own, so that it can be repeated if its answer is lost.
        let id = self.id.unwrap_or_else(JobId::fresh);
        let mut body =
            json!({"kind": kind, "queue": self.queue, "priority": self.priority, "id": id, "tags": self.tags});
        if let Some(after) = self.after {
            body["after_ms"] = json!(u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
        }
        if let Some(unique) = self.unique {
            body["unique"] = json!(unique);
        }
        serde_json::from_str::<serde::de::IgnoredAny>(&args)
            .map_err(|why| Fail::new(exit::USAGE, format!("args: not JSON: {why}")))?;
        // As they stand: a number beyond 2^53 is not ours to round.
        let body = body.to_string();
        let body = format!("{},\"args\":{args}}}", body.trim_end_matches('}'));
        let pushed = server.ask("POST", "/jobs", Some(&body)).map_err(|error| match exit::code(&error) {
            exit::STORE => Fail::new(
                exit::STORE,
                format!("{error}; if it may have been sent, repeat it with --id {id}: it will be there once"),
            ),
            _ => error,
        })?;
        // Without it nobody knows that anything was pushed, or what to look for.
        let Some(id) = pushed["id"].as_str().and_then(|id| id.parse::<JobId>().ok()) else {
            return Err(server.is_strange(&format!("its answer to the push of {id} names no job")));
        };
        if out.is_json() { out.json(&pushed) } else { out.line(&id.to_string()) }
    }
}

impl Jobs {
    fn run(self, server: &Server, out: Out) -> anyhow::Result<()> {
        let each = |ids: Vec<JobId>, method: &str, end: &str, word: &str| -> anyhow::Result<()> {
            let mut failed = None;
            for id in ids {
                let done = server.ask(method, &format!("/jobs/{id}{end}"), None).map(drop);
                jobs::note(&out, id, word, done, &mut failed)?;
            }
            failed.map_or(Ok(()), Err)
        };
        match self {
            Jobs::Ls { filter, limit, cursor } => {
                let filter = in_url(&bulk::text_of(&filter));
                let cursor = cursor.map(|cursor| format!("&cursor={}", in_url(&cursor))).unwrap_or_default();
                list(out, &server.list(&format!("/jobs?filter={filter}&limit={limit}{cursor}"), "jobs")?)
            }
            Jobs::Get { id } => out.json(&server.get(&format!("/jobs/{id}"))?),
            Jobs::Why { id } => {
                let why = server.get(&format!("/jobs/{id}/why"))?;
                if out.is_json() { out.json(&why) } else { out.line(&safe(why["text"].as_str().unwrap_or_default())) }
            }
            Jobs::Wait { id } => wait(server, out, id),
            Jobs::Retry { ids } => each(ids, "POST", "/retry", "due now"),
            Jobs::Cancel { ids } => each(ids, "POST", "/cancel", "cancelled"),
            Jobs::Rm { ids } => each(ids, "DELETE", "", "removed"),
        }
    }
}

impl Stats {
    /// The sums of the minutes, by queue. How late and how long cannot be summed up: the server tells it by the minute.
    fn run(self, server: &Server, out: Out) -> anyhow::Result<()> {
        const COUNTS: [&str; 6] = ["pushed", "done", "retried", "buried", "released", "taken_back"];
        let queue = self.queue.map(|queue| format!("&queue={}", in_url(&queue))).unwrap_or_default();
        let history = server.list(&format!("/stats/history?minutes={}{queue}", self.minutes), "points")?;
        let mut sums: BTreeMap<String, [u64; 6]> = BTreeMap::new();
        for point in history["points"].as_array().into_iter().flatten() {
            let sum = sums.entry(point["queue"].as_str().unwrap_or_default().to_owned()).or_default();
            COUNTS.iter().zip(sum).for_each(|(name, sum)| *sum += point[*name].as_u64().unwrap_or(0));
        }
        if out.is_json() {
            let told = sums.iter().map(|(queue, sum)| {
                let mut told = json!({"queue": queue, "minutes": self.minutes});
                COUNTS.iter().zip(sum).for_each(|(name, sum)| told[*name] = json!(sum));
                told
            });
            return match out.format {
                Format::Json => out.json(&told.collect::<Vec<_>>()),
                _ => told.into_iter().try_for_each(|line| out.json(&line)),
            };
        }
        let rows = sums.into_iter().map(|(queue, sum)| {
            let rate = format!("{:.1}/s", sum[1] as f64 / (f64::from(self.minutes) * 60.0));
            let [pushed, done, retried, buried, released, taken_back] = sum.map(|count| count.to_string());
            [queue, pushed, done, rate, retried, buried, released, taken_back]
        });
        let head = ["QUEUE", "PUSHED", "DONE", "RATE", "RETRIED", "BURIED", "RELEASED", "TAKEN BACK"];
        out.table(head, rows.collect())
    }
}

fn wait(server: &Server, out: Out, id: JobId) -> anyhow::Result<()> {
    loop {
        let job = server.get(&format!("/jobs/{id}/wait?timeout_ms={WAIT_MS}"))?;
        match job["state"].as_str().and_then(|state| state.parse::<State>().ok()) {
            Some(State::Done) => {
                out.say_to_people("done");
                return Ok(());
            }
            Some(State::Dead) => {
                let error =
                    job["failures"].as_array().and_then(|all| all.last()).and_then(|last| last["error"].as_str());
                let error = error.unwrap_or("no error was recorded");
                return Err(Fail::new(exit::FAILURE, format!("job {id} is dead: {}", safe(error))));
            }
            Some(_) => {}
            // Nobody may have waited for anything: to ask again might go round without a pause.
            None => return Err(server.is_strange(&format!("its answer names no state of job {id}"))),
        }
    }
}

fn rows<const N: usize>(list: &Value, columns: [&str; N]) -> Vec<[String; N]> {
    let cell = |row: &Value, name: &str| match &row[name] {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    let rows = list.as_array().map(Vec::as_slice).unwrap_or_default();
    rows.iter().map(|row| columns.map(|name| cell(row, name))).collect()
}

fn list(out: Out, page: &Value) -> anyhow::Result<()> {
    match out.format {
        Format::Json => out.json(page),
        Format::Ndjson => page["jobs"].as_array().into_iter().flatten().try_for_each(|job| out.json(job)),
        Format::Table | Format::Wide => {
            let rows = rows(&page["jobs"], ["id", "state", "queue", "kind", "attempts", "due"]);
            out.table(["ID", "STATE", "QUEUE", "KIND", "FAILED", "DUE"], rows)
        }
    }?;
    if let (Some(next), true) = (page["next"].as_str(), out.format != Format::Json) {
        out.say(&format!("there may be more: --cursor {}", safe(next)));
    }
    Ok(())
}

fn queues(out: Out, page: &Value) -> anyhow::Result<()> {
    match out.format {
        Format::Json => out.json(&page["queues"]),
        Format::Ndjson => page["queues"].as_array().into_iter().flatten().try_for_each(|queue| out.json(queue)),
        Format::Table | Format::Wide => {
            let rows = rows(&page["queues"], ["queue", "paused", "scheduled", "ready", "running", "done", "dead"]);
            out.table(["QUEUE", "PAUSED", "SCHEDULED", "READY", "RUNNING", "DONE", "DEAD"], rows)
        }
    }
}

fn paused(server: &Server, out: Out, queue: &str, verb: &str) -> anyhow::Result<()> {
    let answer = server.ask("POST", &format!("/queues/{}/{verb}", in_url(queue)), None)?;
    if out.is_json() {
        return out.json(&answer);
    }
    let already = if answer["changed"] == json!(true) { "" } else { " already" };
    let word = if verb == "pause" { "paused" } else { "open" };
    out.say(&format!("queue {} is {word}{already}", safe(queue)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_of_a_job_does_not_choose_the_server() {
        let meant = |line: &str| is_meant(line.split(' ').map(OsString::from));
        assert!(meant("duly --server http://a jobs ls") && meant("duly jobs ls --server=http://a"));
        assert!(!meant("duly push -- curl --server x"));
    }
}
