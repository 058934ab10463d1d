//! `duly jobs watch`: follows jobs and prints a line for each change.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use duly::{Duly, Filter, JobId, JobRecord, State};
use tokio::task::JoinSet;

use crate::escape::escape_text;
use crate::exit::{self, CliError};
use crate::output::Output;
use crate::time;

/// How often to poll for starts and retries; the end of a job is reported at once.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The most jobs to follow at once.
const WATCHED_JOBS_MAX: usize = 200;

/// Follow jobs by id, or the currently unfinished ones; prints a line for each change until all have ended
#[derive(Debug, Args)]
pub(crate) struct WatchArgs {
    /// The ids of the jobs, or 4 or more digits of their beginning or end
    #[arg(value_parser = crate::bulk::check_id)]
    ids: Vec<String>,
    /// Without ids: only this queue
    #[arg(long, value_name = "NAME", conflicts_with = "ids")]
    queue: Option<String>,
    /// Without ids: only this kind
    #[arg(long, conflicts_with = "ids")]
    kind: Option<String>,
}

pub(crate) async fn run(duly: &Duly, watch: WatchArgs, out: &Output) -> anyhow::Result<()> {
    let mut watched = select_jobs(duly, &watch).await?;
    let mut waits: JoinSet<JobId> = JoinSet::new();
    for id in watched.keys().copied() {
        let duly = duly.clone();
        waits.spawn(async move {
            // `check_job` reads the job whatever the result.
            let _ = duly.jobs().wait(id).await;
            id
        });
    }
    // The first tick fires at once.
    let mut polls = tokio::time::interval(POLL_INTERVAL);
    polls.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while !watched.is_empty() {
        let ids: Vec<JobId> = tokio::select! {
            Some(Ok(ended)) = waits.join_next() => vec![ended],
            _ = polls.tick() => watched.keys().copied().collect(),
        };
        for id in ids {
            check_job(duly, id, &mut watched, out).await?;
        }
    }
    Ok(())
}

/// Prints the change of one job; stops following it once it has ended.
async fn check_job(duly: &Duly, id: JobId, watched: &mut WatchedJobs, out: &Output) -> anyhow::Result<()> {
    let Some(last) = watched.get_mut(&id) else {
        return Ok(());
    };
    let record = duly.jobs().get(id).await?;
    let current = record.as_ref().map(watched_state);
    if current != *last || current.is_none() {
        print_change(id, record.as_ref(), out)?;
    }
    match current {
        Some(current) if !current.0.is_final() => *last = Some(current),
        _ => drop(watched.remove(&id)),
    }
    Ok(())
}

/// The followed jobs, each with the state that was printed last.
type WatchedJobs = BTreeMap<JobId, Option<WatchedState>>;

/// The parts of a job whose change is printed.
type WatchedState = (State, u32, u32, Option<duly::NodeId>);

fn watched_state(record: &JobRecord) -> WatchedState {
    (record.state, record.attempts, record.crashes, record.node)
}

async fn select_jobs(duly: &Duly, watch: &WatchArgs) -> anyhow::Result<WatchedJobs> {
    if watch.ids.len() > WATCHED_JOBS_MAX {
        return Err(CliError::new(exit::USAGE, format!("at most {WATCHED_JOBS_MAX} jobs can be followed at once")));
    }
    let ids = crate::bulk::find_ids(duly, &watch.ids).await?;
    for id in &ids {
        if duly.jobs().get(*id).await?.is_none() {
            return Err(duly::Error::not_found("job", id).into());
        }
    }
    let mut watched: BTreeMap<_, _> = ids.iter().map(|id| (*id, None)).collect();
    if !ids.is_empty() {
        return Ok(watched);
    }
    for state in [State::Running, State::Ready, State::Scheduled] {
        let limit = WATCHED_JOBS_MAX.saturating_sub(watched.len());
        if limit == 0 {
            break;
        }
        let mut filter = Filter::all().state(state).limit(limit);
        (filter.queue, filter.kind) = (watch.queue.clone(), watch.kind.clone());
        let page = duly.jobs().list(filter).await?;
        watched.extend(page.jobs.iter().map(|record| (record.job.id, None)));
    }
    Ok(watched)
}

fn print_change(id: JobId, record: Option<&JobRecord>, out: &Output) -> anyhow::Result<()> {
    let Some(record) = record else {
        return if out.is_json() {
            out.print_json(&serde_json::json!({"id": id, "state": "gone"}))
        } else {
            out.print_line(&format!("{id}  gone"))
        };
    };
    if out.is_json() {
        return out.print_json(record);
    }
    let detail = match record.state {
        State::Scheduled => format!("due {}", time::format_relative(record.due)),
        State::Running => record.node.map_or(String::new(), |node| format!("node {node}")),
        State::Dead => record.failures.last().map_or(String::new(), |failure| failure.error.trim_end().to_owned()),
        _ => String::new(),
    };
    let failed = if record.attempts > 0 { format!("  {} failed", record.attempts) } else { String::new() };
    let line = format!("{id}  {:<9}  {}{failed}  {detail}", record.state, record.job.kind);
    out.print_line(&escape_text(line.trim_end()))
}
