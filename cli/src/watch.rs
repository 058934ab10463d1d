//! `duly jobs watch`: follows jobs and prints a line for each change.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use duly::{Filter, JobId, State};
use duly_http::views::JobView;
use tokio::task::JoinSet;

use crate::backend::{Backend, is_final};
use crate::escape::escape_text;
use crate::exit::{self, CliError};
use crate::output::Output;
use crate::time;

/// How often the jobs are read.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The most jobs to follow at once.
const WATCHED_JOBS_MAX: usize = 200;

/// Follow jobs by id, or all unfinished and new ones, and print a line for each change
///
/// With ids, it ends when all of them have ended. Without, it follows new jobs until you press Ctrl-C.
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
    /// Without ids: end when the jobs that are unfinished now have ended, without following new ones
    #[arg(long, conflicts_with = "ids")]
    until_done: bool,
}

/// Jobs that have ended this long before a poll are new to it: longer than between two polls, so that none is missed.
const ENDED_SINCE: &str = "10s";
/// The most jobs whose end is reported at once; that of others with the next poll.
const AWAITED_JOBS_MAX: usize = 20;

/// The parts of a job whose change is printed.
type WatchedState = (String, u32, u32, Option<String>);

/// The followed jobs, each with the state that was printed last.
type WatchedJobs = BTreeMap<JobId, Option<WatchedState>>;

pub(crate) async fn run(backend: &Backend, watch: WatchArgs, out: &Output) -> anyhow::Result<()> {
    match watch.ids.is_empty() {
        true => follow_all(backend, &watch, out).await,
        false => follow_ids(backend, &crate::bulk::find_ids(backend, &watch.ids).await?, out).await,
    }
}

/// Follows these jobs until all have ended.
async fn follow_ids(backend: &Backend, ids: &[JobId], out: &Output) -> anyhow::Result<()> {
    if ids.len() > WATCHED_JOBS_MAX {
        return Err(CliError::new(exit::USAGE, format!("at most {WATCHED_JOBS_MAX} jobs can be followed at once")));
    }
    let mut watched = WatchedJobs::new();
    let mut waits: JoinSet<JobId> = JoinSet::new();
    for id in ids {
        backend.get_job(*id).await?;
        watched.insert(*id, None);
        if waits.len() < AWAITED_JOBS_MAX {
            let (backend, id) = (backend.clone(), *id);
            waits.spawn(async move {
                // The job is read again, whatever the result.
                let _ = backend.wait_for_job(id, None).await;
                id
            });
        }
    }
    // The first tick fires at once.
    let mut polls = new_interval();
    while !watched.is_empty() {
        let ids: Vec<JobId> = tokio::select! {
            Some(Ok(ended)) = waits.join_next() => vec![ended],
            _ = polls.tick() => watched.keys().copied().collect(),
        };
        for id in ids {
            check_job(backend, id, &mut watched, out).await?;
        }
    }
    Ok(())
}

fn new_interval() -> tokio::time::Interval {
    let mut polls = tokio::time::interval(POLL_INTERVAL);
    polls.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    polls
}

/// Prints the change of one job; stops following it once it has ended.
async fn check_job(backend: &Backend, id: JobId, watched: &mut WatchedJobs, out: &Output) -> anyhow::Result<()> {
    let Some(last) = watched.get_mut(&id) else {
        return Ok(());
    };
    let job = backend.find_job(id).await?;
    let current = job.as_ref().map(watched_state);
    if current != *last || current.is_none() {
        print_change(id, job.as_ref(), out)?;
    }
    match job {
        Some(job) if !is_final(&job) => *last = current,
        _ => drop(watched.remove(&id)),
    }
    Ok(())
}

/// Follows all unfinished jobs, and new ones.
async fn follow_all(backend: &Backend, watch: &WatchArgs, out: &Output) -> anyhow::Result<()> {
    let mut polls = new_interval();
    let mut known: Option<WatchedJobs> = None;
    loop {
        polls.tick().await;
        let jobs = list_recent(backend, watch).await?;
        let mut current = WatchedJobs::new();
        for job in &jobs {
            let (Ok(id), state) = (job.id.parse::<JobId>(), watched_state(job)) else {
                continue;
            };
            let last = known.as_ref().map(|known| known.get(&id).cloned().flatten());
            // Jobs that had ended before the first poll are not news.
            let is_news = match &last {
                None => !is_final(job),
                Some(last) => last.as_ref() != Some(&state) && (!watch.until_done || last.is_some()),
            };
            if is_news {
                print_change(id, Some(job), out)?;
            }
            if !watch.until_done || last.is_none_or(|last| last.is_some()) {
                current.insert(id, Some(state));
            }
        }
        check_vanished(backend, known.take(), &mut current, out).await?;
        if watch.until_done && !current.values().flatten().any(|(state, ..)| is_unfinished(state)) {
            return Ok(());
        }
        known = Some(current);
    }
}

/// Reads the unfinished jobs that are no longer among the listed ones; those that have not ended stay followed.
async fn check_vanished(
    backend: &Backend,
    known: Option<WatchedJobs>,
    current: &mut WatchedJobs,
    out: &Output,
) -> anyhow::Result<()> {
    for (id, last) in known.into_iter().flatten() {
        let was_unfinished = last.as_ref().is_some_and(|(state, ..)| is_unfinished(state));
        if current.contains_key(&id) || !was_unfinished {
            continue;
        }
        let mut one = WatchedJobs::from([(id, last)]);
        check_job(backend, id, &mut one, out).await?;
        current.extend(one);
    }
    Ok(())
}

fn is_unfinished(state: &str) -> bool {
    state.parse::<State>().is_ok_and(|state| !state.is_final())
}

/// Returns unfinished jobs, and those that have ended lately.
async fn list_recent(backend: &Backend, watch: &WatchArgs) -> anyhow::Result<Vec<JobView>> {
    let mut jobs = Vec::new();
    let ended: Filter = format!("since:{ENDED_SINCE}").parse()?;
    let unfinished = [State::Running, State::Ready, State::Scheduled].map(|state| Filter::all().state(state));
    let ended = [State::Done, State::Dead, State::Cancelled].map(|state| ended.clone().state(state));
    for filter in unfinished.into_iter().chain(ended) {
        let mut filter = filter.limit(WATCHED_JOBS_MAX);
        (filter.queue, filter.kind) = (watch.queue.clone(), watch.kind.clone());
        jobs.extend(backend.list_jobs(filter).await?.jobs);
    }
    Ok(jobs)
}

fn watched_state(job: &JobView) -> WatchedState {
    (job.state.clone(), job.attempts, job.crashes, job.node.clone())
}

fn print_change(id: JobId, job: Option<&JobView>, out: &Output) -> anyhow::Result<()> {
    let Some(job) = job else {
        return if out.is_json() {
            out.print_json(&serde_json::json!({"id": id, "state": "gone"}))
        } else {
            out.print_line(&format!("{id}  gone"))
        };
    };
    if out.is_json() {
        return out.print_json(job);
    }
    let detail = match job.state.as_str() {
        "scheduled" => format!("due {}", time::format_relative(time::from_millis(job.due_ms))),
        "running" => job.node.as_ref().map_or(String::new(), |node| format!("node {node}")),
        "dead" => job.failures.last().map_or(String::new(), |failure| failure.error.trim_end().to_owned()),
        _ => String::new(),
    };
    let failed = if job.attempts > 0 { format!("  {} failed", job.attempts) } else { String::new() };
    let line = format!("{id}  {:<9}  {}{failed}  {detail}", job.state, job.kind);
    out.print_line(&escape_text(line.trim_end()))
}
