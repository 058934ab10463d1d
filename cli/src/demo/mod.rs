//! `duly demo`: runs worker processes on a fresh store, kills one during a job, and reports the fate of every job.

mod plan;
mod store_file;
mod summary;
mod timeline;
pub(crate) mod worker;
mod worker_processes;

use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use duly::worker::ShutdownSignals;
use duly::{CancellationToken, Duly, JobId, State};

use self::plan::DemoPlan;
use self::store_file::DemoStoreFile;
use self::timeline::{Timeline, format_word};
use self::worker_processes::{WorkerProcesses, worker_letter};
use crate::Setup;
use crate::events::EventData;
use crate::exit::{self, CliError};
use crate::output::{BOLD, CYAN, DIM, Output, RED, paint};
use crate::time;

const WORKERS: usize = 3;
/// How long the workers may take to join.
const JOIN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the demo waits for unfinished jobs after its planned end.
const FINISH_TIMEOUT: Duration = Duration::from_secs(15);
/// How often the demo checks its plan without events.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Run a demo: real worker processes, jobs now and later, a kill -9 during a job, and a summary
///
/// Uses a new file and removes it at the end. With --store FILE it uses that file, which must not exist yet and stays.
/// The exit code is 0 only if no job was lost or early.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// The approximate duration
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(10..=3600))]
    seconds: u64,
}

/// Prints the timeline.
struct DemoOutput {
    out: Output,
}

impl DemoOutput {
    fn print_line(&self, line: Option<String>) -> anyhow::Result<()> {
        match line {
            // Scripts get only the summary.
            Some(line) if !self.out.is_json() && !self.out.is_quiet() => self.out.print_line(&line),
            _ => Ok(()),
        }
    }
}

pub(crate) async fn run(verb: DemoArgs, setup: &Setup) -> anyhow::Result<()> {
    // Ignores the environment and the settings: they name a real store.
    let store_file = DemoStoreFile::new(setup.store_flag.as_deref())?;
    let interrupted = CancellationToken::new();
    let _signals = ShutdownSignals::listen(interrupted.clone(), interrupted.clone())?;
    tokio::select! {
        result = run_demo(&verb, &store_file, setup.out) => result,
        () = interrupted.cancelled() => Err(CliError::new(exit::FAILURE, "interrupted")),
    }
}

async fn run_demo(verb: &DemoArgs, store_file: &DemoStoreFile, out: Output) -> anyhow::Result<()> {
    let output = DemoOutput { out };
    let plan = DemoPlan::new(Duration::from_secs(verb.seconds));
    let duly = Duly::open(store_file.url()).await?;
    let head = format!("duly demo: {WORKERS} worker processes share one SQLite file; about {} s", verb.seconds);
    output.print_line(Some(paint(BOLD, head)))?;
    output.print_line(Some(paint(DIM, format!("{}\n", store_file.describe()))))?;

    let mut workers = WorkerProcesses::start(store_file.url(), WORKERS)?;
    let mut timeline = Timeline::new(time::to_micros(time::now()), WORKERS);
    wait_for_workers(&mut workers, &timeline, &output).await?;

    let started = time::monotonic_now();
    let ids = plan.push_jobs(&duly).await?;
    output.print_line(Some(format_pushed(&timeline, &plan, started.elapsed())))?;
    watch_jobs(&mut workers, &mut timeline, &output, &duly, &ids, &plan).await?;
    workers.shut_down().await;

    let summary = summary::DemoSummary::collect(&duly, &ids, &mut timeline).await?;
    if out.is_json() {
        out.print_json(&summary)?
    } else {
        summary.print(&out)?
    }
    match summary.failure_reason() {
        None => Ok(()),
        Some(reason) => Err(CliError::new(exit::FAILURE, reason)),
    }
}

async fn wait_for_workers(
    workers: &mut WorkerProcesses,
    timeline: &Timeline,
    output: &DemoOutput,
) -> anyhow::Result<()> {
    let mut joined = 0;
    while joined < WORKERS {
        let received = tokio::time::timeout(JOIN_TIMEOUT, workers.events.recv()).await;
        let (worker, record) = received.ok().flatten().context("a worker process did not join; see its error above")?;
        if let EventData::Joined { .. } = record.event {
            joined += 1;
            let rest = format!("process {}", workers.pid(worker));
            output.print_line(Some(timeline.format_line(
                record.at_us,
                &worker_letter(worker).to_string(),
                &format_word(CYAN, "joined"),
                &rest,
            )))?;
        }
    }
    Ok(())
}

fn format_pushed(timeline: &Timeline, plan: &DemoPlan, duration: Duration) -> String {
    let rest = format!(
        "{} jobs for now, {} over the next {:.0} s, {} that fail once, {} that take 3 s  ({:.1} ms, synced to the disk)",
        plan::READY_JOBS,
        plan::SCHEDULED_JOBS,
        plan.schedule_span.as_secs_f64(),
        plan::FLAKY_JOBS,
        plan::REPORT_JOBS,
        duration.as_secs_f64() * 1e3,
    );
    timeline.format_line(time::to_micros(time::now()), "", &format_word(BOLD, "pushed"), &rest)
}

/// Prints events until all jobs are done, and kills a worker on the way.
async fn watch_jobs(
    workers: &mut WorkerProcesses,
    timeline: &mut Timeline,
    output: &DemoOutput,
    duly: &Duly,
    ids: &[JobId],
    plan: &DemoPlan,
) -> anyhow::Result<()> {
    let started = time::monotonic_now();
    let reports = &ids[ids.len() - plan::REPORT_JOBS as usize..];
    let timeout = plan.schedule_span.max(plan.kill_after) + FINISH_TIMEOUT;
    let mut seconds = 0;
    let mut polls = tokio::time::interval(POLL_INTERVAL);
    while started.elapsed() < timeout {
        tokio::select! {
            Some((worker, record)) = workers.events.recv() => output.print_line(timeline.record_event(worker, &record))?,
            _ = polls.tick() => {}
        }
        let elapsed = started.elapsed();
        if elapsed.as_secs() > seconds {
            seconds = elapsed.as_secs();
            output.print_line(timeline.finish_second(time::to_micros(time::now())))?;
            if elapsed > plan.schedule_span {
                check_unreported_jobs(timeline, duly, ids).await?;
            }
        }
        if !timeline.has_kill() && elapsed >= plan.kill_after {
            kill_report_worker(workers, timeline, output, reports).await?;
        }
        if timeline.has_kill() && ids.iter().all(|id| timeline.is_done(*id)) {
            break;
        }
    }
    output.print_line(timeline.finish_second(time::to_micros(time::now())))
}

/// Reads the state of unreported jobs: a killed worker may have settled jobs without printing an event.
async fn check_unreported_jobs(timeline: &mut Timeline, duly: &Duly, ids: &[JobId]) -> anyhow::Result<()> {
    for id in ids {
        if !timeline.is_done(*id) && duly.jobs().get(*id).await?.is_some_and(|record| record.state == State::Done) {
            timeline.mark_done(*id);
        }
    }
    Ok(())
}

async fn kill_report_worker(
    workers: &mut WorkerProcesses,
    timeline: &mut Timeline,
    output: &DemoOutput,
    reports: &[JobId],
) -> anyhow::Result<()> {
    let Some(worker) = timeline.find_report_worker(reports) else {
        return Ok(());
    };
    let held = timeline.count_held_by(worker);
    let at_us = time::to_micros(time::now());
    workers.kill(worker).await?;
    timeline.record_kill(worker, at_us);
    let rest = format!(
        "kill -9 of process {}, which holds {held} running {}",
        workers.pid(worker),
        if held == 1 { "job" } else { "jobs" }
    );
    output.print_line(Some(timeline.format_line(
        at_us,
        &worker_letter(worker).to_string(),
        &format_word(RED.bold(), "killed"),
        &rest,
    )))
}
