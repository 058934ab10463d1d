//! `duly demo`: real worker processes on a fresh file, one of them killed in mid-job, and what became of every job.

mod plan;
mod store_file;
mod summary;
mod timeline;
pub(crate) mod worker;
mod worker_processes;

use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use duly::{CancellationToken, Duly, JobId, ShutdownSignals, State};

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
/// How long after the planned end the demo waits for jobs that are not done.
const FINISH_TIMEOUT: Duration = Duration::from_secs(15);
/// How often it looks around when nothing happens.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// See it work: real worker processes, jobs now and later, a kill -9 in mid-job, and a summary
///
/// Uses a fresh file that is removed at the end; with --store FILE that file instead, which must not exist yet and stays.
/// The exit code is 0 only if no job was lost and none was early.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// About how long it takes
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(10..=3600))]
    seconds: u64,
}

/// Where the story is told.
struct DemoOutput {
    out: Output,
}

impl DemoOutput {
    fn print_line(&self, line: Option<String>) -> anyhow::Result<()> {
        match line {
            // Scripts get the summary only.
            Some(line) if !self.out.is_json() && !self.out.is_quiet() => self.out.print_line(&line),
            _ => Ok(()),
        }
    }
}

pub(crate) async fn run(verb: DemoArgs, setup: &Setup) -> anyhow::Result<()> {
    // The store of the environment or the settings is somebody's real one.
    let place = DemoStoreFile::new(setup.store_flag.as_deref())?;
    let interrupted = CancellationToken::new();
    let _signals = ShutdownSignals::listen(interrupted.clone(), interrupted.clone())?;
    tokio::select! {
        done = run_demo(&verb, &place, setup.out) => done,
        () = interrupted.cancelled() => Err(CliError::new(exit::FAILURE, "interrupted")),
    }
}

async fn run_demo(verb: &DemoArgs, place: &DemoStoreFile, out: Output) -> anyhow::Result<()> {
    let teller = DemoOutput { out };
    let plan = DemoPlan::new(Duration::from_secs(verb.seconds));
    let duly = Duly::open(place.url()).await?;
    let head = format!("duly demo: {WORKERS} worker processes share one SQLite file; about {} s", verb.seconds);
    teller.print_line(Some(paint(BOLD, head)))?;
    teller.print_line(Some(paint(DIM, format!("{}\n", place.describe()))))?;

    let mut crew = WorkerProcesses::start(place.url(), WORKERS)?;
    let mut story = Timeline::new(time::to_micros(time::now()), WORKERS);
    wait_for_workers(&mut crew, &story, &teller).await?;

    let started = time::monotonic_now();
    let ids = plan.push_jobs(&duly).await?;
    teller.print_line(Some(format_pushed(&story, &plan, started.elapsed())))?;
    watch_jobs(&mut crew, &mut story, &teller, &duly, &ids, &plan).await?;
    crew.shut_down().await;

    let summary = summary::DemoSummary::collect(&duly, &ids, &mut story).await?;
    if out.is_json() {
        out.print_json(&summary)?
    } else {
        summary.print(&out)?
    }
    match summary.failure_reason() {
        None => Ok(()),
        Some(why) => Err(CliError::new(exit::FAILURE, why)),
    }
}

async fn wait_for_workers(crew: &mut WorkerProcesses, story: &Timeline, teller: &DemoOutput) -> anyhow::Result<()> {
    let mut joined = 0;
    while joined < WORKERS {
        let told = tokio::time::timeout(JOIN_TIMEOUT, crew.events.recv()).await;
        let (worker, told) = told.ok().flatten().context("a worker process did not join; see its error above")?;
        if let EventData::Joined { .. } = told.event {
            joined += 1;
            let rest = format!("process {}", crew.pid(worker));
            teller.print_line(Some(story.format_line(
                told.at_us,
                &worker_letter(worker).to_string(),
                &format_word(CYAN, "joined"),
                &rest,
            )))?;
        }
    }
    Ok(())
}

fn format_pushed(story: &Timeline, plan: &DemoPlan, took: Duration) -> String {
    let rest = format!(
        "{} jobs for now, {} over the next {:.0} s, {} that fail once, {} that take 3 s  ({:.1} ms, synced to the disk)",
        plan::READY_JOBS,
        plan::SCHEDULED_JOBS,
        plan.schedule_span.as_secs_f64(),
        plan::FLAKY_JOBS,
        plan::REPORT_JOBS,
        took.as_secs_f64() * 1e3,
    );
    story.format_line(time::to_micros(time::now()), "", &format_word(BOLD, "pushed"), &rest)
}

/// Shows what happens until all is done, and kills a worker on the way.
async fn watch_jobs(
    crew: &mut WorkerProcesses,
    story: &mut Timeline,
    teller: &DemoOutput,
    duly: &Duly,
    ids: &[JobId],
    plan: &DemoPlan,
) -> anyhow::Result<()> {
    let started = time::monotonic_now();
    let reports = &ids[ids.len() - plan::REPORT_JOBS as usize..];
    let last = plan.schedule_span.max(plan.kill_after) + FINISH_TIMEOUT;
    let mut seconds = 0;
    let mut look = tokio::time::interval(POLL_INTERVAL);
    while started.elapsed() < last {
        tokio::select! {
            Some((worker, told)) = crew.events.recv() => teller.print_line(story.record_event(worker, &told))?,
            _ = look.tick() => {}
        }
        let elapsed = started.elapsed();
        if elapsed.as_secs() > seconds {
            seconds = elapsed.as_secs();
            teller.print_line(story.finish_second(time::to_micros(time::now())))?;
            if elapsed > plan.schedule_span {
                check_unreported_jobs(story, duly, ids).await?;
            }
        }
        if !story.has_kill() && elapsed >= plan.kill_after {
            kill_report_worker(crew, story, teller, reports).await?;
        }
        if story.has_kill() && ids.iter().all(|id| story.is_done(*id)) {
            break;
        }
    }
    teller.print_line(story.finish_second(time::to_micros(time::now())))
}

/// A killed worker may have settled jobs without being able to say so: the store knows.
async fn check_unreported_jobs(story: &mut Timeline, duly: &Duly, ids: &[JobId]) -> anyhow::Result<()> {
    for id in ids {
        if !story.is_done(*id) && duly.get(*id).await?.is_some_and(|record| record.state == State::Done) {
            story.mark_done(*id);
        }
    }
    Ok(())
}

async fn kill_report_worker(
    crew: &mut WorkerProcesses,
    story: &mut Timeline,
    teller: &DemoOutput,
    reports: &[JobId],
) -> anyhow::Result<()> {
    let Some(worker) = story.find_report_worker(reports) else {
        return Ok(());
    };
    let held = story.count_held_by(worker);
    let at = time::to_micros(time::now());
    crew.kill(worker).await?;
    story.record_kill(worker, at);
    let rest = format!(
        "kill -9 of process {}, which holds {held} running {}",
        crew.pid(worker),
        if held == 1 { "job" } else { "jobs" }
    );
    teller.print_line(Some(story.format_line(
        at,
        &worker_letter(worker).to_string(),
        &format_word(RED.bold(), "killed"),
        &rest,
    )))
}
