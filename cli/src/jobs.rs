//! `duly jobs`: lists, retries, edits, cancels, removes and waits for jobs.

use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};
use duly::admin::CancelResult;
use duly::job::{Due, JobOrder, JobRun};
use duly::{Duly, JobId, JobRecord, Priority, State};
use serde::Serialize;
use serde_json::json;

use crate::Setup;
use crate::audit::{self, BulkAction};
use crate::bulk::{self, JobSelection, JobSelector};
use crate::escape::{escape_text, truncate};
use crate::exit::{self, CliError};
use crate::output::{Format, Output, pluralize};
use crate::{input, store, time, wait};

/// The longest args in a table.
const CELL_CHARS_MAX: usize = 60;

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
    /// Only in this state: scheduled, ready, running, done, dead
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
}

/// A page for scripts.
#[derive(Serialize)]
struct JobsPageOutput<'a> {
    jobs: &'a [JobRecord],
    /// The `--cursor` of the next page.
    next: Option<&'a str>,
    /// Jobs that the query examined.
    scanned: u64,
}

pub(crate) async fn run(verb: JobsVerb, setup: &Setup) -> anyhow::Result<()> {
    let duly = store::open_existing(setup).await?;
    match verb {
        JobsVerb::Ls(ls) => list(&duly, ls, &setup.out).await,
        JobsVerb::Get { id } => get(&duly, bulk::find_id(&duly, &id).await?, &setup.out).await,
        JobsVerb::Retry { selector } => match select_jobs(&selector)? {
            JobSelection::Ids(words) => retry(&duly, &bulk::find_ids(&duly, &words).await?, &setup.out).await,
            JobSelection::Filter(filter) => {
                let action = BulkAction::on_filter(&duly, "jobs.retry", &filter);
                let retry = bulk::retry_all(&duly, *filter);
                bulk::confirm_and_run(setup, action, retry, "Retry", "retried", selector.is_dry_run()).await
            }
        },
        JobsVerb::Watch(watch) => crate::watch::run(&duly, watch, &setup.out).await,
        JobsVerb::Why { id } => crate::why::run(&duly, bulk::find_id(&duly, &id).await?, &setup.out).await,
        JobsVerb::Edit { id, args, priority } => {
            edit(&duly, bulk::find_id(&duly, &id).await?, args, priority, &setup.out).await
        }
        JobsVerb::Cancel { selector } => match select_jobs(&selector)? {
            JobSelection::Ids(words) => cancel(&duly, &bulk::find_ids(&duly, &words).await?, &setup.out).await,
            JobSelection::Filter(filter) => {
                let action = BulkAction::on_filter(&duly, "jobs.cancel", &filter);
                let cancel = duly.jobs().cancel_all(*filter);
                bulk::confirm_and_run(setup, action, cancel, "Cancel", "cancelled", selector.is_dry_run()).await
            }
        },
        JobsVerb::Rm { selector } => match select_jobs(&selector)? {
            JobSelection::Ids(words) => remove(&duly, &words, setup).await,
            JobSelection::Filter(filter) => {
                let action = BulkAction::on_filter(&duly, "jobs.remove", &filter);
                let remove = duly.jobs().remove_all(*filter);
                bulk::confirm_and_run(setup, action, remove, "Remove", "removed", selector.is_dry_run()).await
            }
        },
        JobsVerb::Wait { id, timeout } => {
            let id = bulk::find_id(&duly, &id).await?;
            let record = wait::wait_until_final(&duly, id, timeout, wait::JobOrigin::GivenById).await?;
            if let (true, Some(record)) = (setup.out.is_json(), &record) {
                setup.out.print_json(record)?;
            }
            wait::print_result(setup, record)
        }
    }
}

async fn list(duly: &Duly, ls: JobsListArgs, out: &Output) -> anyhow::Result<()> {
    let mut filter = bulk::parse_filter(&ls.filter)?.limit(ls.limit).cursor(ls.cursor);
    filter.queue = merge_condition("queue", ls.queue, filter.queue)?;
    filter.state = merge_condition("state", ls.state, filter.state)?;
    filter.kind = merge_condition("kind", ls.kind, filter.kind)?;
    (filter.order, filter.reverse) = (ls.sort, ls.reverse);
    let is_dead = filter.state == Some(State::Dead) || filter.group.is_some();
    let is_ended = is_dead || filter.order == Some(JobOrder::End) || filter.state.is_some_and(State::is_final);
    filter.with_details = is_dead && !out.is_json();
    let page = duly.jobs().list(filter).await?;
    match out.format {
        Format::Json => {
            return out.print_json(&JobsPageOutput {
                jobs: &page.jobs,
                next: page.next_cursor.as_deref(),
                scanned: page.scanned,
            });
        }
        Format::Ndjson => page.jobs.iter().try_for_each(|record| out.print_json(record))?,
        Format::Table if is_dead => {
            let rows = page.jobs.iter().map(|r| {
                let [id, _, kind, queue] = leading_cells(r);
                let ended = r.ended.map(time::format_relative).unwrap_or_default();
                [id, kind, queue, ended, format_attempts(r), format_last_error(r)]
            });
            out.print_table(["ID", "KIND", "QUEUE", "ENDED", "ATTEMPTS", "ERROR"], rows.collect())?;
        }
        Format::Table => {
            let rows = page.jobs.iter().map(|r| {
                let [id, state, kind, queue] = leading_cells(r);
                let at = if is_ended { r.ended.unwrap_or(r.due) } else { r.due };
                [id, state, kind, queue, time::format_relative(at), format_attempts(r)]
            });
            let time = if is_ended { "ENDED" } else { "DUE" };
            out.print_table(["ID", "STATE", "KIND", "QUEUE", time, "ATTEMPTS"], rows.collect())?;
        }
        Format::Wide => print_wide_table(&page.jobs, out)?,
    }
    if let Some(next) = page.next_cursor {
        out.print_message(&format!(
            "examined {}; there may be more: --cursor {next}",
            pluralize(page.scanned, "job", "jobs")
        ));
    }
    Ok(())
}

fn print_wide_table(jobs: &[JobRecord], out: &Output) -> anyhow::Result<()> {
    let rows = jobs.iter().map(|r| {
        let [id, state, kind, queue] = leading_cells(r);
        let ended = r.ended.map(time::format_date_time).unwrap_or_default();
        let node = r.node.map(|node| node.to_string()).unwrap_or_default();
        let args = truncate(&r.job.args, CELL_CHARS_MAX);
        let priority = r.job.priority.to_string();
        [
            id,
            state,
            kind,
            queue,
            priority,
            time::format_date_time(r.due),
            format_attempts(r),
            r.crashes.to_string(),
            ended,
            node,
            args,
            format_last_error(r),
        ]
    });
    let head =
        ["ID", "STATE", "KIND", "QUEUE", "PRIORITY", "DUE", "ATTEMPTS", "CRASHES", "ENDED", "NODE", "ARGS", "ERROR"];
    out.print_table(head, rows.collect())
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

fn leading_cells(record: &JobRecord) -> [String; 4] {
    let job = &record.job;
    let state = if record.cancelling { "cancelling".to_owned() } else { record.state.to_string() };
    [job.id.to_string(), state, job.kind.clone(), job.queue.clone()]
}

/// Returns the first line of the last error, cut to the width of a cell.
fn format_last_error(record: &JobRecord) -> String {
    let error = record.failures.last().map_or("", |failure| failure.error.trim_start());
    truncate(error.lines().next().unwrap_or_default(), CELL_CHARS_MAX)
}

fn format_attempts(record: &JobRecord) -> String {
    format!("{}/{}", record.attempts_made(), record.job.max_attempts)
}

async fn get(duly: &Duly, id: JobId, out: &Output) -> anyhow::Result<()> {
    let record = duly.jobs().get(id).await?.ok_or_else(|| duly::Error::not_found("job", id))?;
    if out.is_json() {
        return out.print_json(&record);
    }
    let job = &record.job;
    let format_time = |moment| format!("{} ({})", time::format_date_time(moment), time::format_relative(moment));
    let mut lines = vec![
        ("id", job.id.to_string()),
        ("state", format!("{}{}", record.state, if record.cancelling { ", cancelling" } else { "" })),
        ("kind", job.kind.clone()),
        ("queue", job.queue.clone()),
        ("priority", job.priority.to_string()),
        ("args", job.args.clone()),
        ("pushed", format_time(job.pushed)),
        ("due", format_time(record.due)),
        ("attempts", format!("{} of at most {}, {} failed", record.attempts_made(), job.max_attempts, record.attempts)),
        ("crashes", record.crashes.to_string()),
        ("timeout", time::format_duration(job.timeout)),
        ("keep", time::format_duration(job.keep)),
    ];
    let rest = [
        ("unique", job.unique.as_ref().map(|unique| format!("{} (scope: {})", unique.key(), unique.scope().as_str()))),
        ("tags", (!job.tags.is_empty()).then(|| job.tags.join(" "))),
        ("traceparent", job.traceparent.clone()),
        ("node", record.node.map(|node| node.to_string())),
        ("fence", record.fence.map(|fence| fence.to_string())),
        ("ended", record.ended.map(format_time)),
        (
            "progress",
            record
                .progress
                .as_ref()
                .map(|p| format!("{:.0} % {} ({})", 100.0 * p.fraction, p.message, time::format_relative(p.at))),
        ),
        ("result", record.result.clone()),
    ];
    lines.extend(rest.into_iter().filter_map(|(name, value)| value.map(|value| (name, value))));
    for (name, value) in lines {
        out.print_line(&format!("{name:<12} {}", escape_text(&value)))?;
    }
    for run in &record.runs {
        print_run(run, out)?;
    }
    for entry in &record.log {
        let at = time::format_date_time(entry.at);
        out.print_line(&format!("log          attempt {}  {at}  {}", entry.attempt, escape_text(&entry.line)))?;
    }
    Ok(())
}

/// Prints what an attempt did: how it ended, when it started, how long it took and where; its error and its output.
fn print_run(run: &JobRun, out: &Output) -> anyhow::Result<()> {
    let started = run.started.map(|at| format!("started {}", time::format_date_time(at)));
    let took = run.duration.map(|duration| format!("took {}", time::format_duration(duration)));
    let ended = started.is_none().then(|| format!("ended {}", time::format_date_time(run.ended)));
    let facts: Vec<String> = [started, took, ended].into_iter().flatten().collect();
    let (number, outcome, facts) = (run.attempt, run.outcome.as_str(), facts.join("  "));
    out.print_line(&format!("attempt {number:<4} {outcome:<8} {facts}  node {}", run.node))?;
    for (name, text) in [("error", &run.error), ("output", &run.output)] {
        for line in text.as_deref().unwrap_or_default().trim_end().lines() {
            out.print_line(&format!("  {name:<10} {}", escape_text(line)))?;
        }
    }
    Ok(())
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
    duly: &Duly,
    id: JobId,
    args: Option<String>,
    priority: Option<Priority>,
    out: &Output,
) -> anyhow::Result<()> {
    let args = match args.as_deref() {
        Some("-") => Some(input::read_args_from_stdin(duly::bounds::ARGS_BYTES_MAX)?),
        _ => args,
    };
    let result = duly.jobs().edit(id, duly::admin::JobEdit::new().args(args).priority(priority)).await;
    let result = audit::record(duly, "jobs.edit", id, result).await;
    let mut failed = None;
    report_change(out, id, "edited", result.map_err(Into::into), &mut failed)?;
    failed.map_or(Ok(()), Err)
}

async fn retry(duly: &Duly, ids: &[JobId], out: &Output) -> anyhow::Result<()> {
    let mut failed = None;
    for id in ids {
        let result = duly.jobs().reschedule(*id, Due::Now).await;
        let result = audit::record(duly, "jobs.retry", id, result).await;
        report_change(out, *id, "due now", result.map_err(Into::into), &mut failed)?;
    }
    failed.map_or(Ok(()), Err)
}

async fn cancel(duly: &Duly, ids: &[JobId], out: &Output) -> anyhow::Result<()> {
    let mut failed = None;
    for id in ids {
        let result = duly.jobs().cancel(*id).await;
        let effect = result.as_ref().map(describe_cancel).unwrap_or_default();
        let result = audit::record(duly, "jobs.cancel", id, result.map(drop)).await;
        report_change(out, *id, &effect, result.map_err(Into::into), &mut failed)?;
    }
    failed.map_or(Ok(()), Err)
}

/// Describes the effect of a cancel.
pub(crate) fn describe_cancel(result: &CancelResult) -> String {
    match result {
        CancelResult::Cancelling { node } => format!("cancelling; it still runs on node {node}"),
        CancelResult::Ended(state) => format!("was {state} before"),
        _ => "cancelled".to_owned(),
    }
}

async fn remove(duly: &Duly, words: &[String], setup: &Setup) -> anyhow::Result<()> {
    let ids = &bulk::find_ids(duly, words).await?;
    bulk::confirm_removal(setup, duly, words, ids).await?;
    let mut failed = None;
    for id in ids {
        let result = duly.jobs().remove(*id).await;
        let result = audit::record(duly, "jobs.remove", id, result).await;
        report_change(&setup.out, *id, "removed", result.map_err(Into::into), &mut failed)?;
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
