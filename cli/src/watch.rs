//! `duly jobs watch`: follows jobs, a line for each change.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use duly::{Duly, Filter, JobId, JobRecord, State};
use tokio::task::JoinSet;

use crate::escape::escape_text;
use crate::exit::{self, CliError};
use crate::output::Output;
use crate::time;

/// How often to look whether a job has started, or is to be tried again: that it has ended is told at once.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Most jobs that are followed at once.
const WATCHED_JOBS_MAX: usize = 200;

/// Follow jobs, a line for each change: those named, or those that are unfinished now and fit; ends when all have ended
#[derive(Debug, Args)]
pub(crate) struct WatchArgs {
    /// Ids, as push printed them
    ids: Vec<JobId>,
    /// Without ids: only of this queue
    #[arg(long, value_name = "NAME", conflicts_with = "ids")]
    queue: Option<String>,
    /// Without ids: only of this kind
    #[arg(long, conflicts_with = "ids")]
    kind: Option<String>,
}

pub(crate) async fn run(duly: &Duly, watch: WatchArgs, out: &Output) -> anyhow::Result<()> {
    let mut followed = select_jobs(duly, &watch).await?;
    let mut ends: JoinSet<JobId> = JoinSet::new();
    for id in followed.keys().copied() {
        let duly = duly.clone();
        ends.spawn(async move {
            // Whatever it says, the job is looked at.
            let _ = duly.wait(id).await;
            id
        });
    }
    // The first tick is at once.
    let mut looks = tokio::time::interval(POLL_INTERVAL);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while !followed.is_empty() {
        let ids: Vec<JobId> = tokio::select! {
            Some(Ok(ended)) = ends.join_next() => vec![ended],
            _ = looks.tick() => followed.keys().copied().collect(),
        };
        for id in ids {
            check_job(duly, id, &mut followed, out).await?;
        }
    }
    Ok(())
}

/// Tells what has changed about one job; one that has ended is followed no longer.
async fn check_job(duly: &Duly, id: JobId, followed: &mut WatchedJobs, out: &Output) -> anyhow::Result<()> {
    let Some(last) = followed.get_mut(&id) else {
        return Ok(());
    };
    let record = duly.get(id).await?;
    let now = record.as_ref().map(watched_state);
    if now != *last || now.is_none() {
        print_change(id, record.as_ref(), out)?;
    }
    match now {
        Some(now) if !now.0.is_final() => *last = Some(now),
        _ => drop(followed.remove(&id)),
    }
    Ok(())
}

/// Jobs that are followed, and how each was when it was last told of.
type WatchedJobs = BTreeMap<JobId, Option<WatchedState>>;

/// What makes a difference to whoever watches.
type WatchedState = (State, u32, u32, Option<duly::NodeId>);

fn watched_state(record: &JobRecord) -> WatchedState {
    (record.state, record.attempts, record.crashes, record.node)
}

async fn select_jobs(duly: &Duly, watch: &WatchArgs) -> anyhow::Result<WatchedJobs> {
    if watch.ids.len() > WATCHED_JOBS_MAX {
        return Err(CliError::new(exit::USAGE, format!("at most {WATCHED_JOBS_MAX} jobs can be followed at once")));
    }
    for id in &watch.ids {
        if duly.get(*id).await?.is_none() {
            return Err(duly::Error::NotFound { what: "job", name: id.to_string() }.into());
        }
    }
    let mut followed: BTreeMap<_, _> = watch.ids.iter().map(|id| (*id, None)).collect();
    if !watch.ids.is_empty() {
        return Ok(followed);
    }
    for state in [State::Running, State::Ready, State::Scheduled] {
        let limit = WATCHED_JOBS_MAX.saturating_sub(followed.len());
        if limit == 0 {
            break;
        }
        let (queue, kind) = (watch.queue.clone(), watch.kind.clone());
        let page = duly.list(Filter { queue, kind, state: Some(state), limit, ..Filter::default() }).await?;
        followed.extend(page.jobs.iter().map(|record| (record.job.id, None)));
    }
    Ok(followed)
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
    let more = match record.state {
        State::Scheduled => format!("due {}", time::format_relative(record.due)),
        State::Running => record.node.map_or(String::new(), |node| format!("node {node}")),
        State::Dead => record.failures.last().map_or(String::new(), |failure| failure.error.trim_end().to_owned()),
        _ => String::new(),
    };
    let failed = if record.attempts > 0 { format!("  {} failed", record.attempts) } else { String::new() };
    let line = format!("{id}  {:<9}  {}{failed}  {more}", record.state, record.job.kind);
    out.print_line(&escape_text(line.trim_end()))
}
