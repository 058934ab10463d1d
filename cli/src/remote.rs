//! `duly --server URL ...`: the verbs that work through a `duly serve`, without access to the store.
//!
//! Each verb parses its arguments, sends a request and prints the response.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue};
use clap::{Args, CommandFactory, Parser, Subcommand};
use duly::job::JobOrder;
use duly::{JobId, Priority, State};
use serde_json::{Value, json};

use crate::api_client::{ApiClient, url_encode};
use crate::args::{Cli, Color};
use crate::bulk;
use crate::escape::escape_text;
use crate::exit::{self, CliError};
use crate::output::{Format, Output};
use crate::{input, jobs, push};

/// The timeout of one request while waiting for a job.
const WAIT_REQUEST_MS: u64 = 30_000;

/// Push, list, retry, cancel and remove jobs through a server; pause queues
///
/// With --server only these verbs exist. The token is read from DULY_TOKEN, because other users can see command lines.
#[derive(Debug, Parser)]
#[command(name = "duly", version, subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct RemoteCli {
    /// The server, such as http://127.0.0.1:7711
    #[arg(long, global = true, value_name = "URL", default_value = "http://127.0.0.1:7711")]
    server: String,
    /// The output format: tables for people, json or ndjson for scripts
    #[arg(short, long, global = true, value_enum, value_name = "FORMAT", default_value_t = Format::Table)]
    output: Format,
    /// The same as -o json
    #[arg(long, global = true, conflicts_with = "output")]
    json: bool,
    /// Print only data and errors
    #[arg(short, long, global = true)]
    quiet: bool,
    /// When to use colours; by default only on a terminal, and never if NO_COLOR is set
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t = Color::Auto)]
    color: Color,
    /// Skip all questions
    #[arg(short = 'y', long, global = true)]
    yes: bool,
    #[command(subcommand)]
    verb: RemoteVerb,
}

#[derive(Debug, Subcommand)]
enum RemoteVerb {
    Push(RemotePushArgs),
    #[command(subcommand)]
    Jobs(RemoteJobsVerb),
    #[command(subcommand)]
    Queues(RemoteQueuesVerb),
    Stats(RemoteStatsArgs),
}

/// Show rates of the last minutes
#[derive(Debug, Args)]
struct RemoteStatsArgs {
    /// Only this queue
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
    /// The number of minutes to include, at most a day
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=i64::from(duly::bounds::HISTORY_MINUTES_MAX)))]
    minutes: u32,
}

/// Push a job: a kind with its args, or a command to run
///
/// A command runs in a directory with the path of the current one, on the machine of the worker;
/// the server accepts it only if it was started with --allow-commands.
#[derive(Debug, Args)]
struct RemotePushArgs {
    /// Names the handler that runs the job
    #[arg(required_unless_present = "command", conflicts_with = "command")]
    kind: Option<String>,
    /// The args for the handler, as JSON; `-` reads them from stdin [default: null]
    #[arg(value_name = "JSON", conflicts_with = "command", allow_negative_numbers = true)]
    args: Option<String>,
    /// A command with its arguments; runs without a shell
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
    /// The delay from now: 10m, 1h30m, 7d
    #[arg(long = "in", value_name = "DURATION", allow_hyphen_values = true, value_parser = duly::admin::parse_duration)]
    after: Option<Duration>,
    /// The queue
    #[arg(long, value_name = "NAME", default_value = duly::bounds::DEFAULT_QUEUE)]
    queue: String,
    /// The priority: low, normal, high, critical
    #[arg(long, value_name = "PRIORITY", default_value_t = Priority::Normal)]
    priority: Priority,
    /// The unique key: pushes nothing if an unfinished job of the same kind and queue has it
    #[arg(long, value_name = "KEY")]
    unique: Option<String>,
    /// Share the unique key with jobs of other kinds in the queue
    #[arg(long, requires = "unique")]
    across_kinds: bool,
    /// The id of the job: pushing it again changes nothing
    #[arg(long, value_name = "UUID")]
    id: Option<JobId>,
    /// A tag to find the job by; may be repeated
    #[arg(long = "tag", value_name = "WORD")]
    tags: Vec<String>,
}

/// List, show, retry, cancel and remove jobs
#[derive(Debug, Subcommand)]
enum RemoteJobsVerb {
    /// List jobs: `state:dead kind:mail since:1h`
    Ls {
        /// A filter; all jobs if omitted
        filter: Vec<String>,
        /// Sort the jobs of all queues: `end` (the last one first) or `due` (the next one first)
        #[arg(long, value_name = "ORDER")]
        sort: Option<JobOrder>,
        /// Turn the order around
        #[arg(long, requires = "sort")]
        reverse: bool,
        /// The maximum number of jobs, at most 200
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: usize,
        /// The cursor that an earlier list printed: continues after it
        #[arg(long)]
        cursor: Option<String>,
    },
    /// Show a job with its attempts, log, progress and result
    Get {
        /// The id of the job, or 4 or more digits of its beginning or end
        #[arg(value_parser = bulk::check_id)]
        id: String,
    },
    /// Explain why a job is not running
    Why {
        /// The id of the job, or 4 or more digits of its beginning or end
        #[arg(value_parser = bulk::check_id)]
        id: String,
    },
    /// Wait until a job is done (exit code 0) or dead (exit code 1)
    Wait {
        /// The id of the job, or 4 or more digits of its beginning or end
        #[arg(value_parser = bulk::check_id)]
        id: String,
    },
    /// Start jobs that are not running now
    Retry {
        /// The ids of the jobs, or 4 or more digits of their beginning or end
        #[arg(required = true, value_parser = bulk::check_id)]
        ids: Vec<String>,
    },
    /// Stop running jobs for good
    Cancel {
        /// The ids of the jobs, or 4 or more digits of their beginning or end
        #[arg(required = true, value_parser = bulk::check_id)]
        ids: Vec<String>,
    },
    /// Delete jobs that are not running
    Rm {
        /// The ids of the jobs, or 4 or more digits of their beginning or end
        #[arg(required = true, value_parser = bulk::check_id)]
        ids: Vec<String>,
    },
}

/// List, pause and resume queues
#[derive(Debug, Subcommand)]
enum RemoteQueuesVerb {
    /// List queues with the number of jobs in each state
    Ls,
    /// Stop claiming from a queue; running jobs continue
    Pause { queue: String },
    /// Claim from a queue again
    Resume { queue: String },
}

/// Returns true if the command line contains `--server` before any `--`.
pub(crate) fn has_server_flag(args: impl Iterator<Item = OsString>) -> bool {
    let is_server_flag =
        |arg: OsString| arg.as_encoded_bytes() == b"--server" || arg.as_encoded_bytes().starts_with(b"--server=");
    args.take_while(|arg| arg != "--").any(is_server_flag)
}

pub(crate) fn run(remote: RemoteCli) -> anyhow::Result<()> {
    remote.color.write_global();
    let out = Output::new(if remote.json { Format::Json } else { remote.output }, remote.quiet);
    let server = ApiClient::new(&remote.server)?;
    match remote.verb {
        RemoteVerb::Push(push) => push.run(&server, out),
        RemoteVerb::Jobs(jobs) => jobs.run(&server, out, remote.yes),
        RemoteVerb::Queues(RemoteQueuesVerb::Ls) => print_queues(out, &server.get_list("/queues", "queues")?),
        RemoteVerb::Queues(RemoteQueuesVerb::Pause { queue }) => set_paused(&server, out, &queue, "pause"),
        RemoteVerb::Queues(RemoteQueuesVerb::Resume { queue }) => set_paused(&server, out, &queue, "resume"),
        RemoteVerb::Stats(stats) => stats.run(&server, out),
    }
}

/// Reports a usage error; for a verb that the server does not support, names `--store`.
pub(crate) fn report_usage_error(error: &clap::Error) -> ExitCode {
    let word = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(word)) => word.as_str(),
        _ => return exit::report_usage_error(error),
    };
    let cli = Cli::command();
    let is_known = |command: &clap::Command| command.find_subcommand(word).is_some_and(|verb| !verb.is_hide_set());
    if !is_known(&cli) && !cli.get_subcommands().any(is_known) {
        return exit::report_usage_error(error);
    }
    exit::print_error(&format!("{word} does not work with --server; use --store URL instead"));
    ExitCode::from(exit::USAGE)
}

impl RemotePushArgs {
    fn run(self, server: &ApiClient, out: Output) -> anyhow::Result<()> {
        let (kind, args) = push::resolve_kind_and_args(self.kind, self.args, &self.command)?;
        // A fixed id makes the push safe to repeat if the response is lost.
        let id = self.id.unwrap_or_else(JobId::fresh);
        let mut body =
            json!({"kind": kind, "queue": self.queue, "priority": self.priority, "id": id, "tags": self.tags});
        if let Some(after) = self.after {
            body["after_ms"] = json!(u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
        }
        if let Some(unique) = self.unique {
            body["unique"] = json!(unique);
            if self.across_kinds {
                body["unique_scope"] = json!("queue");
            }
        }
        serde_json::from_str::<serde::de::IgnoredAny>(&args)
            .map_err(|error| CliError::new(exit::USAGE, format!("args: not JSON: {error}")))?;
        // Inserted as text, so that numbers beyond 2^53 are not rounded.
        let body = body.to_string();
        let body = format!("{},\"args\":{args}}}", body.trim_end_matches('}'));
        let pushed = server.request("POST", "/jobs", Some(&body)).map_err(|error| match exit::exit_code(&error) {
            exit::STORE_FAILED => CliError::new(
                exit::STORE_FAILED,
                format!(
                    "{error}; the job may have been pushed: repeat the push with --id {id}, which pushes it only once"
                ),
            ),
            _ => error,
        })?;
        // A response without an id does not prove that the job was pushed.
        let Some(id) = pushed["id"].as_str().and_then(|id| id.parse::<JobId>().ok()) else {
            return Err(server.unexpected_response_error(&format!("its response to the push of {id} names no job")));
        };
        if out.is_json() { out.print_json(&pushed) } else { out.print_line(&id.to_string()) }
    }
}

impl RemoteJobsVerb {
    fn run(self, server: &ApiClient, out: Output, yes: bool) -> anyhow::Result<()> {
        let change_each = |ids: Vec<JobId>, method: &str, action: &str, word: &str| -> anyhow::Result<()> {
            let mut failed = None;
            for id in ids {
                let result = server.request(method, &format!("/jobs/{id}{action}"), None).map(drop);
                jobs::report_change(&out, id, word, result, &mut failed)?;
            }
            failed.map_or(Ok(()), Err)
        };
        let job_path = |id: String| format!("/jobs/{}", url_encode(&id));
        match self {
            RemoteJobsVerb::Ls { filter, sort, reverse, limit, cursor } => {
                let filter = url_encode(&bulk::join_filter_words(&filter));
                let cursor = cursor.map(|cursor| format!("&cursor={}", url_encode(&cursor))).unwrap_or_default();
                let sort = sort.map(|sort| format!("&sort={sort}&reverse={reverse}")).unwrap_or_default();
                let path = format!("/jobs?filter={filter}&limit={limit}{sort}{cursor}");
                print_jobs(out, &server.get_list(&path, "jobs")?)
            }
            RemoteJobsVerb::Get { id } => out.print_json(&server.get(&job_path(id))?),
            RemoteJobsVerb::Why { id } => {
                let why = server.get(&format!("{}/why", job_path(id)))?;
                if out.is_json() {
                    out.print_json(&why)
                } else {
                    out.print_line(&escape_text(why["text"].as_str().unwrap_or_default()))
                }
            }
            RemoteJobsVerb::Wait { id } => wait_for_job(server, out, find_job(server, &id)?.id),
            RemoteJobsVerb::Retry { ids } => change_each(find_ids(server, &ids)?, "POST", "/retry", "due now"),
            RemoteJobsVerb::Cancel { ids } => cancel_each(server, &out, find_ids(server, &ids)?),
            RemoteJobsVerb::Rm { ids } => change_each(confirm_removal(server, &ids, yes)?, "DELETE", "", "removed"),
        }
    }
}

impl RemoteStatsArgs {
    /// Prints the sums by queue. Lateness and duration are omitted, because percentiles per minute cannot be added.
    fn run(self, server: &ApiClient, out: Output) -> anyhow::Result<()> {
        const COUNTS: [&str; 7] = ["pushed", "done", "retried", "buried", "released", "cancelled", "taken_back"];
        let queue = self.queue.map(|queue| format!("&queue={}", url_encode(&queue))).unwrap_or_default();
        let history = server.get_list(&format!("/stats/history?range={}m{queue}", self.minutes), "points")?;
        let mut sums: BTreeMap<String, [u64; 7]> = BTreeMap::new();
        for point in history["points"].as_array().into_iter().flatten() {
            let sum = sums.entry(point["queue"].as_str().unwrap_or_default().to_owned()).or_default();
            COUNTS.iter().zip(sum).for_each(|(name, sum)| *sum += point[*name].as_u64().unwrap_or(0));
        }
        if out.is_json() {
            let rows = sums.iter().map(|(queue, sum)| {
                let mut row = json!({"queue": queue, "minutes": self.minutes});
                COUNTS.iter().zip(sum).for_each(|(name, sum)| row[*name] = json!(sum));
                row
            });
            return match out.format {
                Format::Json => out.print_json(&rows.collect::<Vec<_>>()),
                _ => rows.into_iter().try_for_each(|row| out.print_json(&row)),
            };
        }
        let rows = sums.into_iter().map(|(queue, sum)| {
            let rate = format!("{:.1}/s", sum[1] as f64 / (f64::from(self.minutes) * 60.0));
            let [pushed, done, retried, buried, released, cancelled, taken_back] = sum.map(|count| count.to_string());
            [queue, pushed, done, rate, retried, buried, released, cancelled, taken_back]
        });
        let head = ["QUEUE", "PUSHED", "DONE", "RATE", "RETRIED", "BURIED", "RELEASED", "CANCELLED", "TAKEN BACK"];
        out.print_table(head, rows.collect())
    }
}

/// A job that the user named.
struct NamedJob {
    id: JobId,
    /// The word was not a whole id: the name of the job for a question.
    found_as: Option<String>,
}

/// Finds the job with this id, or with this beginning or end of its id.
fn find_job(server: &ApiClient, word: &str) -> anyhow::Result<NamedJob> {
    if let Ok(id) = word.parse() {
        return Ok(NamedJob { id, found_as: None });
    }
    let job = server.get(&format!("/jobs/{}", url_encode(word)))?;
    let Some(id) = job["id"].as_str().and_then(|id| id.parse::<JobId>().ok()) else {
        return Err(server.unexpected_response_error(&format!("its response to a request for job {word} has no id")));
    };
    let text = |name: &str| job[name].as_str().unwrap_or("?");
    let name = bulk::name_job(id, text("kind"), text("queue"), text("state"));
    Ok(NamedJob { id, found_as: Some(name) })
}

fn find_ids(server: &ApiClient, words: &[String]) -> anyhow::Result<Vec<JobId>> {
    words.iter().map(|word| find_job(server, word).map(|job| job.id)).collect()
}

/// Finds the jobs to remove. Asks before it returns any that is not named by its whole id.
fn confirm_removal(server: &ApiClient, words: &[String], yes: bool) -> anyhow::Result<Vec<JobId>> {
    let jobs = words.iter().map(|word| find_job(server, word)).collect::<anyhow::Result<Vec<_>>>()?;
    let names: Vec<&str> = jobs.iter().filter_map(|job| job.found_as.as_deref()).collect();
    let question = format!("Remove {}?", names.join("; "));
    if names.is_empty() || yes || input::confirm(&escape_text(&question))? {
        return Ok(jobs.into_iter().map(|job| job.id).collect());
    }
    Err(CliError::new(exit::FAILURE, "nothing was removed"))
}

fn cancel_each(server: &ApiClient, out: &Output, ids: Vec<JobId>) -> anyhow::Result<()> {
    let mut failed = None;
    for id in ids {
        let response = server.request("POST", &format!("/jobs/{id}/cancel"), None);
        let effect = match response.as_ref().map(|job| (job["state"].as_str(), job["node"].as_str())) {
            Ok((Some("running"), node)) => {
                let node = node.map(|node| format!(" on node {node}")).unwrap_or_default();
                format!("cancelling; it still runs{}", escape_text(&node))
            }
            Ok((Some(state @ ("done" | "dead")), _)) => format!("was {state} before"),
            _ => "cancelled".to_owned(),
        };
        jobs::report_change(out, id, &effect, response.map(drop), &mut failed)?;
    }
    failed.map_or(Ok(()), Err)
}

fn wait_for_job(server: &ApiClient, out: Output, id: JobId) -> anyhow::Result<()> {
    loop {
        let job = server.get(&format!("/jobs/{id}/wait?timeout_ms={WAIT_REQUEST_MS}"))?;
        match job["state"].as_str().and_then(|state| state.parse::<State>().ok()) {
            Some(State::Done) => {
                out.print_hint("done");
                return Ok(());
            }
            Some(State::Cancelled) => {
                return Err(CliError::new(exit::FAILURE, format!("job {id} was cancelled")));
            }
            Some(State::Dead) => {
                let error =
                    job["failures"].as_array().and_then(|all| all.last()).and_then(|last| last["error"].as_str());
                let error = error.unwrap_or("no error was recorded");
                return Err(CliError::new(exit::FAILURE, format!("job {id} is dead: {}", escape_text(error))));
            }
            Some(_) => {}
            // The server may not have waited at all: another request could loop without a pause.
            None => return Err(server.unexpected_response_error(&format!("its response names no state of job {id}"))),
        }
    }
}

fn table_rows<const N: usize>(list: &Value, columns: [&str; N]) -> Vec<[String; N]> {
    let cell = |row: &Value, name: &str| match &row[name] {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    let rows = list.as_array().map(Vec::as_slice).unwrap_or_default();
    rows.iter().map(|row| columns.map(|name| cell(row, name))).collect()
}

fn print_jobs(out: Output, page: &Value) -> anyhow::Result<()> {
    match out.format {
        Format::Json => out.print_json(page),
        Format::Ndjson => page["jobs"].as_array().into_iter().flatten().try_for_each(|job| out.print_json(job)),
        Format::Table | Format::Wide => {
            let rows = table_rows(&page["jobs"], ["id", "state", "queue", "kind", "attempts", "due"]);
            out.print_table(["ID", "STATE", "QUEUE", "KIND", "FAILED", "DUE"], rows)
        }
    }?;
    if let (Some(next), true) = (page["next"].as_str(), out.format != Format::Json) {
        out.print_message(&format!("there may be more: --cursor {}", escape_text(next)));
    }
    Ok(())
}

fn print_queues(out: Output, page: &Value) -> anyhow::Result<()> {
    match out.format {
        Format::Json => out.print_json(&page["queues"]),
        Format::Ndjson => page["queues"].as_array().into_iter().flatten().try_for_each(|queue| out.print_json(queue)),
        Format::Table | Format::Wide => {
            let rows =
                table_rows(&page["queues"], ["queue", "paused", "scheduled", "ready", "running", "done", "dead"]);
            out.print_table(["QUEUE", "PAUSED", "SCHEDULED", "READY", "RUNNING", "DONE", "DEAD"], rows)
        }
    }
}

fn set_paused(server: &ApiClient, out: Output, queue: &str, verb: &str) -> anyhow::Result<()> {
    let response = server.request("POST", &format!("/queues/{}/{verb}", url_encode(queue)), None)?;
    if out.is_json() {
        return out.print_json(&response);
    }
    let already = if response["changed"] == json!(true) { "" } else { " already" };
    let word = if verb == "pause" { "paused" } else { "open" };
    out.print_message(&format!("queue {} is {word}{already}", escape_text(queue)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jid_of_sidekiq_is_accepted_as_an_id() {
        for verb in ["get", "why", "wait", "retry", "cancel", "rm"] {
            let parsed = RemoteCli::try_parse_from(["duly", "jobs", verb, "0123456789abcdef01234567"]);
            assert!(parsed.is_ok(), "{verb}: {parsed:?}");
        }
        assert!(RemoteCli::try_parse_from(["duly", "jobs", "get", "012"]).is_err());
    }

    #[test]
    fn server_flag_after_double_dash_is_ignored() {
        let has_flag = |line: &str| has_server_flag(line.split(' ').map(OsString::from));
        assert!(has_flag("duly --server http://a jobs ls") && has_flag("duly jobs ls --server=http://a"));
        assert!(!has_flag("duly push -- curl --server x"));
    }
}
