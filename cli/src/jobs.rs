//! `duly jobs`: look at jobs, retry, edit, cancel and remove them, wait for them.

use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};
use duly::{Due, Duly, Filter, JobId, Priority, Record, State};
use serde::Serialize;
use serde_json::json;

use crate::Setup;
use crate::bulk::{self, Many, Meant};
use crate::escape::{cut, safe};
use crate::exit::{self, Fail};
use crate::output::{Format, Out, counted};
use crate::{input, store, time, wait};

/// Args and errors in a table are cut to this many characters.
const CELL_CHARS_MAX: usize = 60;

/// Look at jobs, retry, edit, cancel and remove them
#[derive(Debug, Subcommand)]
pub(crate) enum Jobs {
    Ls(Ls),
    /// Show everything that is known of a job
    Get {
        /// The job's id, as push printed it
        id: JobId,
    },
    /// Let jobs that are not running start now, dead ones from the first attempt
    Retry {
        #[command(flatten)]
        many: Many,
    },
    /// Change args or priority of a job that is not running
    #[command(group(ArgGroup::new("what").args(["args", "priority"]).required(true).multiple(true)))]
    Edit {
        /// The job's id, as push printed it
        id: JobId,
        /// Other args, as JSON; `-` reads them from stdin
        #[arg(long, value_name = "JSON")]
        args: Option<String>,
        /// Another priority: low, normal, high, critical
        #[arg(long)]
        priority: Option<Priority>,
    },
    /// Stop running jobs for good: they end dead, with the error `cancelled`
    ///
    /// A command gets SIGTERM, with all it has started, and SIGKILL 5 s later;
    /// a handler in a program is told, and has 5 s to end by itself.
    Cancel {
        #[command(flatten)]
        many: Many,
    },
    /// Delete jobs that are not running
    Rm {
        #[command(flatten)]
        many: Many,
    },
    /// Say in one sentence why a job is not running
    Why {
        /// The job's id, as push printed it
        id: JobId,
    },
    Watch(crate::watch::Watch),
    /// Wait until a job is done (exit code 0) or dead (exit code 1)
    Wait {
        /// The job's id, as push printed it
        id: JobId,
        /// Wait at most so long (then exit code 124)
        #[arg(long, value_name = "DURATION", value_parser = duly::store::duration)]
        timeout: Option<Duration>,
    },
}

/// List jobs
#[derive(Debug, Args)]
pub(crate) struct Ls {
    /// A filter, such as `state:dead kind:mail args.to:ada error:timeout since:1h`
    #[arg(value_name = "FILTER")]
    filter: Vec<String>,
    /// Only in this state: scheduled, ready, running, done, dead
    #[arg(long)]
    state: Option<State>,
    /// Only of this queue
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
    /// Only of this kind
    #[arg(long)]
    kind: Option<String>,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=duly::store::PAGE_MAX as u64))]
    limit: usize,
    /// Go on after an earlier list, which said where
    #[arg(long)]
    cursor: Option<String>,
}

/// A page for scripts.
#[derive(Serialize)]
struct Listed<'a> {
    jobs: &'a [Record],
    /// What to give as `--cursor` to go on.
    next: Option<&'a str>,
    /// How many jobs were looked at to find these.
    looked: u64,
}

pub(crate) async fn run(verb: Jobs, setup: &Setup) -> anyhow::Result<()> {
    let duly = store::open(setup).await?;
    match verb {
        Jobs::Ls(ls) => list(&duly, ls, &setup.out).await,
        Jobs::Get { id } => get(&duly, id, &setup.out).await,
        Jobs::Retry { many } => match one_by_one(&many)? {
            Meant::Ids(ids) => retry(&duly, &ids, &setup.out).await,
            Meant::Filter(filter) => {
                bulk::change(setup, bulk::retry(&duly, *filter), "Retry", "retried", many.dry_run()).await
            }
        },
        Jobs::Watch(watch) => crate::watch::run(&duly, watch, &setup.out).await,
        Jobs::Why { id } => crate::why::run(&duly, id, &setup.out).await,
        Jobs::Edit { id, args, priority } => edit(&duly, id, args, priority, &setup.out).await,
        Jobs::Cancel { many } => match one_by_one(&many)? {
            Meant::Ids(ids) => cancel(&duly, &ids, &setup.out).await,
            Meant::Filter(filter) => {
                bulk::change(setup, duly.cancel_all(*filter), "Cancel", "cancelled", many.dry_run()).await
            }
        },
        Jobs::Rm { many } => match one_by_one(&many)? {
            Meant::Ids(ids) => remove(&duly, &ids, setup).await,
            Meant::Filter(filter) => {
                bulk::change(setup, duly.remove_all(*filter), "Remove", "removed", many.dry_run()).await
            }
        },
        Jobs::Wait { id, timeout } => {
            let record = wait::until_final(&duly, id, timeout, wait::Known::Named).await?;
            if let (true, Some(record)) = (setup.out.is_json(), &record) {
                setup.out.json(record)?;
            }
            wait::tell(setup, record)
        }
    }
}

async fn list(duly: &Duly, ls: Ls, out: &Out) -> anyhow::Result<()> {
    let said = bulk::filter_of(&ls.filter)?;
    let filter = Filter {
        queue: one("queue", ls.queue, said.queue)?,
        state: one("state", ls.state, said.state)?,
        kind: one("kind", ls.kind, said.kind)?,
        limit: ls.limit,
        cursor: ls.cursor,
        ..said
    };
    let page = duly.list(filter).await?;
    match out.format {
        Format::Json => return out.json(&Listed { jobs: &page.jobs, next: page.next.as_deref(), looked: page.looked }),
        Format::Ndjson => page.jobs.iter().try_for_each(|record| out.json(record))?,
        Format::Table => {
            let rows = page.jobs.iter().map(|r| {
                let [id, state, kind, queue] = first(r);
                [id, state, kind, queue, time::distance(r.due), tries(r)]
            });
            out.table(["ID", "STATE", "KIND", "QUEUE", "DUE", "ATTEMPTS"], rows.collect())?;
        }
        Format::Wide => {
            let rows = page.jobs.iter().map(|r| {
                let [id, state, kind, queue] = first(r);
                let ended = r.ended.map(time::date_of).unwrap_or_default();
                let node = r.node.map(|node| node.to_string()).unwrap_or_default();
                let args = cut(&r.job.args, CELL_CHARS_MAX);
                let priority = r.job.priority.to_string();
                [
                    id,
                    state,
                    kind,
                    queue,
                    priority,
                    time::date_of(r.due),
                    tries(r),
                    r.crashes.to_string(),
                    ended,
                    node,
                    args,
                ]
            });
            let head =
                ["ID", "STATE", "KIND", "QUEUE", "PRIORITY", "DUE", "ATTEMPTS", "CRASHES", "ENDED", "NODE", "ARGS"];
            out.table(head, rows.collect())?;
        }
    }
    if let Some(next) = page.next {
        out.say(&format!("looked at {}; there may be more: --cursor {next}", counted(page.looked, "job", "jobs")));
    }
    Ok(())
}

/// What an option says, or else the filter: a job can have only one.
fn one<T: PartialEq>(name: &str, option: Option<T>, filter: Option<T>) -> anyhow::Result<Option<T>> {
    match (option, filter) {
        (Some(option), Some(filter)) if option != filter => Err(Fail::new(
            exit::USAGE,
            format!("{name} is said twice, by --{name} and in the filter, and a job can have only one; leave one out"),
        )),
        (option, filter) => Ok(option.or(filter)),
    }
}

fn first(record: &Record) -> [String; 4] {
    let job = &record.job;
    [job.id.to_string(), record.state.to_string(), job.kind.clone(), job.queue.clone()]
}

fn tries(record: &Record) -> String {
    format!("{}/{}", record.attempts, record.job.max_attempts)
}

async fn get(duly: &Duly, id: JobId, out: &Out) -> anyhow::Result<()> {
    let record = duly.get(id).await?.ok_or(duly::Error::NotFound { what: "job", name: id.to_string() })?;
    if out.is_json() {
        return out.json(&record);
    }
    let job = &record.job;
    let moment = |at| format!("{} ({})", time::date_of(at), time::distance(at));
    let mut lines = vec![
        ("id", job.id.to_string()),
        ("state", record.state.to_string()),
        ("kind", job.kind.clone()),
        ("queue", job.queue.clone()),
        ("priority", job.priority.to_string()),
        ("args", job.args.clone()),
        ("pushed", moment(job.pushed)),
        ("due", moment(record.due)),
        ("attempts", format!("{} failed of at most {}", record.attempts, job.max_attempts)),
        ("crashes", record.crashes.to_string()),
        ("timeout", time::short(job.timeout)),
        ("keep", time::short(job.keep)),
    ];
    let rest = [
        ("unique", job.unique.clone()),
        ("tags", (!job.tags.is_empty()).then(|| job.tags.join(" "))),
        ("traceparent", job.traceparent.clone()),
        ("node", record.node.map(|node| node.to_string())),
        ("fence", record.fence.map(|fence| fence.to_string())),
        ("ended", record.ended.map(moment)),
        (
            "progress",
            record.progress.as_ref().map(|p| format!("{:.0} % {} ({})", 100.0 * p.done, p.note, time::distance(p.at))),
        ),
        ("result", record.result.clone()),
    ];
    lines.extend(rest.into_iter().filter_map(|(name, value)| value.map(|value| (name, value))));
    for (name, value) in lines {
        out.line(&format!("{name:<12} {}", safe(&value)))?;
    }
    for failure in &record.failures {
        let error = failure.error.trim_end();
        let at = time::date_of(failure.at);
        out.line(&format!("failure      attempt {}  {at}  node {}  {}", failure.attempt, failure.node, safe(error)))?;
    }
    for said in &record.log {
        let at = time::date_of(said.at);
        out.line(&format!("log          attempt {}  {at}  {}", said.attempt, safe(&said.line)))?;
    }
    Ok(())
}

/// Ids or a filter; a dry run of ids would say nothing that is not known.
fn one_by_one(many: &Many) -> anyhow::Result<Meant> {
    match many.meant()? {
        Meant::Ids(_) if many.dry_run() => {
            Err(Fail::new(exit::USAGE, "--dry-run counts what a filter means; these are ids"))
        }
        meant => Ok(meant),
    }
}

async fn edit(
    duly: &Duly,
    id: JobId,
    args: Option<String>,
    priority: Option<Priority>,
    out: &Out,
) -> anyhow::Result<()> {
    let args = match args.as_deref() {
        Some("-") => Some(input::args_from_stdin(duly::ARGS_BYTES_MAX)?),
        _ => args,
    };
    let done = duly.edit(id, duly::Edit { args, priority }).await;
    let mut failed = None;
    note(out, id, "edited", done.map_err(Into::into), &mut failed)?;
    failed.map_or(Ok(()), Err)
}

async fn retry(duly: &Duly, ids: &[JobId], out: &Out) -> anyhow::Result<()> {
    let mut failed = None;
    for id in ids {
        let done = duly.reschedule(*id, Due::Now).await;
        note(out, *id, "due now", done.map_err(Into::into), &mut failed)?;
    }
    failed.map_or(Ok(()), Err)
}

async fn cancel(duly: &Duly, ids: &[JobId], out: &Out) -> anyhow::Result<()> {
    let mut failed = None;
    for id in ids {
        let done = duly.cancel(*id).await;
        note(out, *id, "cancelled", done.map_err(Into::into), &mut failed)?;
    }
    failed.map_or(Ok(()), Err)
}

async fn remove(duly: &Duly, ids: &[JobId], setup: &Setup) -> anyhow::Result<()> {
    if ids.len() > 1 && !setup.yes && !input::confirmed(&format!("Remove {} jobs for good?", ids.len()))? {
        return Err(Fail::new(exit::FAILURE, "nothing was removed"));
    }
    let mut failed = None;
    for id in ids {
        let done = duly.remove(*id).await;
        note(&setup.out, *id, "removed", done.map_err(Into::into), &mut failed)?;
    }
    failed.map_or(Ok(()), Err)
}

/// Says what became of one of several jobs; one that fails does not keep the others from their turn.
pub(crate) fn note(
    out: &Out,
    id: JobId,
    word: &str,
    done: anyhow::Result<()>,
    failed: &mut Option<anyhow::Error>,
) -> anyhow::Result<()> {
    match done {
        Ok(()) if out.is_json() => out.json(&json!({"id": id, "did": word})),
        Ok(()) => {
            out.say(&format!("job {id}: {word}"));
            Ok(())
        }
        Err(error) => {
            // The last one is told at the exit; the code is that of the first.
            if let Some(first) = failed.take() {
                exit::say(&exit::line(&error));
                *failed = Some(first);
            } else {
                *failed = Some(error);
            }
            Ok(())
        }
    }
}
