//! `duly jobs`: lists, retries, edits, cancels, removes and waits for jobs.

use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};
use duly::job::JobOrder;
use duly::{Filter, JobId, Priority, State};
use duly_http::views::{Action, CancelResponse, JobView};
use serde_json::json;

use crate::Setup;
use crate::backend::{Backend, BulkTarget};
use crate::bulk::{self, JobSelection, JobSelector};
use crate::escape::{escape_text, truncate};
use crate::exit::{self, CliError};
use crate::output::{Column, ColumnArgs, Format, List, Output};
use crate::{input, time, wait};

/// The longest args in a table.
const CELL_CHARS_MAX: usize = 60;
/// The most jobs that `--all-pages` collects.
const ALL_PAGES_JOBS_MAX: usize = 1_000_000;

/// List, show, retry, edit, cancel and remove jobs
#[derive(Debug, Subcommand)]
pub(crate) enum JobsVerb {
    Ls(JobsListArgs),
    /// Show a job with its attempts, log, progress and result
    Get {
        /// The id of the job, or 4 or more digits of its beginning or end
        #[arg(value_parser = bulk::check_id)]
        id: String,
    },
    /// Start jobs that are not running now; dead jobs start over
    Retry {
        #[command(flatten)]
        selector: JobSelector,
    },
    /// Change args or priority of a job that is not running
    #[command(group(ArgGroup::new("what").args(["args", "priority"]).required(true).multiple(true)))]
    Edit {
        /// The id of the job, or 4 or more digits of its beginning or end
        #[arg(value_parser = bulk::check_id)]
        id: String,
        /// The new args, as JSON; `-` reads them from stdin
        #[arg(long, value_name = "JSON")]
        args: Option<String>,
        /// The new priority: low, normal, high, critical
        #[arg(long)]
        priority: Option<Priority>,
    },
    /// Cancel jobs that have not ended: they do not run again, even if their node dies
    ///
    /// Jobs that wait end at once. Running jobs are asked to stop, and end cancelled unless they still succeed.
    /// A command and all its child processes get SIGTERM, and SIGKILL 5 s later;
    /// a handler in a program is notified and has 5 s to end.
    Cancel {
        #[command(flatten)]
        selector: JobSelector,
    },
    /// Delete jobs that are not running
    Rm {
        #[command(flatten)]
        selector: JobSelector,
    },
    /// Explain in one sentence why a job is not running
    Why {
        /// The id of the job, or 4 or more digits of its beginning or end
        #[arg(value_parser = bulk::check_id)]
        id: String,
    },
    Watch(crate::watch::WatchArgs),
    Logs(crate::job_logs::LogsArgs),
    /// Wait until a job is done (exit code 0) or dead (exit code 1)
    Wait {
        /// The id of the job, or 4 or more digits of its beginning or end
        #[arg(value_parser = bulk::check_id)]
        id: String,
        /// The longest wait (then exit code 124)
        #[arg(long, value_name = "DURATION", value_parser = duly::admin::parse_duration)]
        timeout: Option<Duration>,
    },
}

/// List jobs
#[derive(Debug, Args)]
pub(crate) struct JobsListArgs {
    /// A filter, such as `state:dead kind:mail args.to:ada error:timeout since:1h`
    #[arg(value_name = "FILTER")]
    filter: Vec<String>,
    /// Only in this state: scheduled, ready, running, done, dead, cancelled
    #[arg(long)]
    state: Option<State>,
    /// Only this queue
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
    /// Only this kind
    #[arg(long)]
    kind: Option<String>,
    /// Sort the jobs of all queues: `end` (done, dead and cancelled jobs, the last one first) or
    /// `due` (scheduled jobs, the next one first)
    #[arg(long, value_name = "ORDER")]
    sort: Option<JobOrder>,
    /// Turn the order around
    #[arg(long, requires = "sort")]
    reverse: bool,
    /// The maximum number of jobs
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=duly::bounds::PAGE_SIZE_MAX as u64))]
    limit: usize,
    /// The cursor that an earlier list printed: continues after it
    #[arg(long)]
    cursor: Option<String>,
    /// All jobs that match, not only one page; as JSON, one document with all of them
    #[arg(long, conflicts_with = "limit")]
    all_pages: bool,
    #[command(flatten)]
    columns: ColumnArgs,
}

/// The columns of `ls`.
const COLUMNS: &[Column<JobView>] = &[
    Column::new("ID", |job| job.id.clone()),
    Column::new("STATE", |job| if job.cancelling { "cancelling".to_owned() } else { job.state.clone() }),
    Column::new("KIND", |job| job.kind.clone()),
    Column::new("QUEUE", |job| job.queue.clone()),
    Column::wide("PRIORITY", |job| job.priority.clone()),
    Column::new("DUE", |job| time::format_relative(time::from_millis(job.due_ms))),
    Column::new("ATTEMPTS", |job| format!("{}/{}", job.attempts_made(), job.max_attempts)),
    Column::wide("CRASHES", |job| job.crashes.to_string()),
    Column::wide("PUSHED", |job| time::format_date_time(time::from_millis(job.pushed_ms))),
    Column::wide("ENDED", |job| job.ended_ms.map(time::from_millis).map(time::format_relative).unwrap_or_default()),
    Column::wide("NODE", |job| job.node.clone().unwrap_or_default()),
    Column::wide("TAGS", |job| job.tags.join(" ")),
    Column::wide("ARGS", |job| truncate(job.args.as_ref().map_or("", |args| args.get()), CELL_CHARS_MAX)),
    Column::wide("ERROR", |job| {
        let error = job.failures.last().map_or("", |failure| failure.error.trim_start());
        truncate(error.lines().next().unwrap_or_default(), CELL_CHARS_MAX)
    }),
];

/// The columns of a list of jobs that have ended.
const ENDED_COLUMNS: &[&str] = &["id", "state", "kind", "queue", "ended", "attempts"];
/// The columns of a list of dead jobs.
const DEAD_COLUMNS: &[&str] = &["id", "kind", "queue", "ended", "attempts", "error"];

pub(crate) async fn run(verb: JobsVerb, setup: &Setup) -> anyhow::Result<()> {
    let backend = Backend::open_existing(setup).await?;
    match verb {
        JobsVerb::Ls(ls) => list(&backend, ls, &setup.out).await,
        JobsVerb::Get { id } => crate::job::print_job(&backend.get_job(backend.find_id(&id).await?).await?, &setup.out),
        JobsVerb::Retry { selector } => match select_jobs(&selector)? {
            JobSelection::Ids(words) => retry(&backend, &bulk::find_ids(&backend, &words).await?, &setup.out).await,
            JobSelection::Filter(filter) => change_all(setup, &backend, Action::Retry, filter, &selector).await,
        },
        JobsVerb::Watch(watch) => crate::watch::run(&backend, watch, &setup.out).await,
        JobsVerb::Logs(logs) => crate::job_logs::run(&backend, logs, &setup.out).await,
        JobsVerb::Why { id } => crate::why::run(&backend, backend.find_id(&id).await?, &setup.out).await,
        JobsVerb::Edit { id, args, priority } => {
            edit(&backend, backend.find_id(&id).await?, args, priority, &setup.out).await
        }
        JobsVerb::Cancel { selector } => match select_jobs(&selector)? {
            JobSelection::Ids(words) => cancel(&backend, &bulk::find_ids(&backend, &words).await?, &setup.out).await,
            JobSelection::Filter(filter) => change_all(setup, &backend, Action::Cancel, filter, &selector).await,
        },
        JobsVerb::Rm { selector } => match select_jobs(&selector)? {
            JobSelection::Ids(words) => remove(&backend, &words, setup).await,
            JobSelection::Filter(filter) => change_all(setup, &backend, Action::Remove, filter, &selector).await,
        },
        JobsVerb::Wait { id, timeout } => {
            let id = backend.find_id(&id).await?;
            let job = wait::wait_until_final(&backend, id, timeout, wait::JobOrigin::GivenById).await?;
            if let (true, Some(job)) = (setup.out.is_json(), &job) {
                setup.out.print_json(job)?;
            }
            wait::print_result(setup, job)
        }
    }
}

/// Changes all jobs of a filter.
async fn change_all(
    setup: &Setup,
    backend: &Backend,
    action: Action,
    filter: Box<Filter>,
    selector: &JobSelector,
) -> anyhow::Result<()> {
    bulk::confirm_and_run(setup, backend, BulkTarget::Filter(action, filter), selector.is_dry_run()).await
}

async fn list(backend: &Backend, ls: JobsListArgs, out: &Output) -> anyhow::Result<()> {
    let limit = if ls.all_pages { duly::bounds::PAGE_SIZE_MAX } else { ls.limit };
    let mut filter = bulk::parse_filter(&ls.filter)?.limit(limit).cursor(ls.cursor);
    filter.queue = merge_condition("queue", ls.queue, filter.queue)?;
    filter.state = merge_condition("state", ls.state, filter.state)?;
    filter.kind = merge_condition("kind", ls.kind, filter.kind)?;
    (filter.order, filter.reverse) = (ls.sort, ls.reverse);
    let is_dead = filter.state == Some(State::Dead) || filter.group.is_some();
    let is_ended = is_dead || filter.order == Some(JobOrder::End) || filter.state.is_some_and(State::is_final);
    // The last errors are for people; JSON is the same in every list.
    filter.with_details = is_dead && !out.is_json();
    let mut page = backend.list_jobs(filter.clone()).await?;
    // Ends because each page continues after the last one.
    while ls.all_pages
        && let Some(next) = page.next.take()
    {
        filter.cursor = Some(next);
        let more = backend.list_jobs(filter.clone()).await?;
        if page.jobs.len() + more.jobs.len() > ALL_PAGES_JOBS_MAX {
            let advice = "a narrower filter, or --limit 1000 with --cursor for one page after the other";
            let reason = format!("more than {ALL_PAGES_JOBS_MAX} jobs match; use {advice}");
            return Err(CliError::new(exit::USAGE, format!("--all-pages: {reason}")));
        }
        page.jobs.extend(more.jobs);
        page.next = more.next;
    }
    let names = if is_dead { DEAD_COLUMNS } else { ENDED_COLUMNS };
    let chosen = match is_ended && out.format == Format::Table {
        true => ls.columns.or_else(names),
        false => ls.columns,
    };
    let list = List { items: &page.jobs, columns: COLUMNS, chosen: &chosen, empty: "no jobs match" };
    out.print_list(&page, &list)?;
    if let (Some(next), true) = (&page.next, out.format != Format::Json) {
        out.print_message(&format!("there may be more: --all-pages, or --cursor {}", escape_text(next)));
    }
    Ok(())
}

/// Returns the value of the option, or else that of the filter; both are an error if they differ.
fn merge_condition<T: PartialEq>(name: &str, option: Option<T>, filter: Option<T>) -> anyhow::Result<Option<T>> {
    match (option, filter) {
        (Some(option), Some(filter)) if option != filter => Err(CliError::new(
            exit::USAGE,
            format!("{name} is given twice, by --{name} and in the filter, but a job has only one; remove one"),
        )),
        (option, filter) => Ok(option.or(filter)),
    }
}

/// Parses ids or a filter. Rejects a dry run of ids, which would count only the given words.
fn select_jobs(selector: &JobSelector) -> anyhow::Result<JobSelection> {
    match selector.parse()? {
        JobSelection::Ids(_) if selector.is_dry_run() => {
            Err(CliError::new(exit::USAGE, "--dry-run counts the matches of a filter, but ids were given"))
        }
        selection => Ok(selection),
    }
}

async fn edit(
    backend: &Backend,
    id: JobId,
    args: Option<String>,
    priority: Option<Priority>,
    out: &Output,
) -> anyhow::Result<()> {
    let args = match args.as_deref() {
        Some("-") => Some(input::read_args_from_stdin(duly::bounds::ARGS_BYTES_MAX)?),
        _ => args,
    };
    let mut failed = None;
    report_change(out, id, "edited", backend.edit_job(id, args, priority).await, &mut failed)?;
    failed.map_or(Ok(()), Err)
}

async fn retry(backend: &Backend, ids: &[JobId], out: &Output) -> anyhow::Result<()> {
    let mut failed = None;
    for id in ids {
        report_change(out, *id, "due now", backend.retry_job(*id).await, &mut failed)?;
    }
    failed.map_or(Ok(()), Err)
}

async fn cancel(backend: &Backend, ids: &[JobId], out: &Output) -> anyhow::Result<()> {
    let mut failed = None;
    for id in ids {
        let result = backend.cancel_job(*id).await;
        let effect = result.as_ref().map(describe_cancel).unwrap_or_default();
        report_change(out, *id, &effect, result.map(drop), &mut failed)?;
    }
    failed.map_or(Ok(()), Err)
}

/// Describes the effect of a cancel.
pub(crate) fn describe_cancel(result: &CancelResponse) -> String {
    match (result.state.as_str(), &result.node) {
        ("running", Some(node)) => format!("cancelling; it still runs on node {}", escape_text(node)),
        ("running", None) => "cancelling; it still runs".to_owned(),
        (state @ ("done" | "dead"), _) => format!("was {state} before"),
        _ => "cancelled".to_owned(),
    }
}

async fn remove(backend: &Backend, words: &[String], setup: &Setup) -> anyhow::Result<()> {
    let ids = &bulk::find_ids(backend, words).await?;
    bulk::confirm_removal(setup, backend, words, ids).await?;
    let mut failed = None;
    for id in ids {
        report_change(&setup.out, *id, "removed", backend.remove_job(*id).await, &mut failed)?;
    }
    failed.map_or(Ok(()), Err)
}

/// Reports the change of one of several jobs. An error does not stop the others: the first is stored in `failed`.
pub(crate) fn report_change(
    out: &Output,
    id: JobId,
    word: &str,
    result: anyhow::Result<()>,
    failed: &mut Option<anyhow::Error>,
) -> anyhow::Result<()> {
    match result {
        Ok(()) if out.is_json() => out.print_json(&json!({"id": id, "did": word})),
        Ok(()) => {
            out.print_message(&format!("job {id}: {word}"));
            Ok(())
        }
        Err(error) => {
            // `main` prints the first error and exits with its code.
            if let Some(first) = failed.take() {
                exit::print_error(&exit::format_error(&error));
                *failed = Some(first);
            } else {
                *failed = Some(error);
            }
            Ok(())
        }
    }
}
