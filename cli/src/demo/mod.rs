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
use duly::{CancellationToken, Duly, JobId, Signals, State};

use self::plan::Plan;
use self::store_file::Place;
use self::timeline::{Story, word};
use self::worker_processes::{Crew, name};
use crate::Setup;
use crate::events::What;
use crate::exit::{self, Fail};
use crate::output::{BOLD, CYAN, DIM, Out, RED, paint};
use crate::time;

const WORKERS: usize = 3;
/// How long the workers may take to join.
const JOIN: Duration = Duration::from_secs(10);
/// How long after the planned end the demo waits for jobs that are not done.
const LAST_WAIT: Duration = Duration::from_secs(15);
/// How often it looks around when nothing happens.
const LOOK: Duration = Duration::from_millis(100);

/// See it work: real worker processes, jobs now and later, a kill -9 in mid-job, and a summary
///
/// Uses a fresh file that is removed at the end; with --store FILE that file instead, which must not exist yet and stays.
/// The exit code is 0 only if no job was lost and none was early.
#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// About how long it takes
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(10..=3600))]
    seconds: u64,
}

/// Where the story is told.
struct Teller {
    out: Out,
}

impl Teller {
    fn tell(&self, line: Option<String>) -> anyhow::Result<()> {
        match line {
            // Scripts get the summary only.
            Some(line) if !self.out.is_json() && !self.out.is_quiet() => self.out.line(&line),
            _ => Ok(()),
        }
    }
}

pub(crate) async fn run(verb: Demo, setup: &Setup) -> anyhow::Result<()> {
    // The store of the environment or the settings is somebody's real one.
    let place = Place::new(setup.store_flag.as_deref())?;
    let interrupted = CancellationToken::new();
    let _signals = Signals::listen(interrupted.clone(), interrupted.clone())?;
    tokio::select! {
        done = play(&verb, &place, setup.out) => done,
        () = interrupted.cancelled() => Err(Fail::new(exit::FAILURE, "interrupted")),
    }
}

async fn play(verb: &Demo, place: &Place, out: Out) -> anyhow::Result<()> {
    let teller = Teller { out };
    let plan = Plan::new(Duration::from_secs(verb.seconds));
    let duly = Duly::open(place.url()).await?;
    let head = format!("duly demo: {WORKERS} worker processes share one SQLite file; about {} s", verb.seconds);
    teller.tell(Some(paint(BOLD, head)))?;
    teller.tell(Some(paint(DIM, format!("{}\n", place.told()))))?;

    let mut crew = Crew::start(place.url(), WORKERS)?;
    let mut story = Story::new(time::micros(time::now()), WORKERS);
    join(&mut crew, &story, &teller).await?;

    let started = time::tick();
    let ids = plan.push(&duly).await?;
    teller.tell(Some(pushed(&story, &plan, started.elapsed())))?;
    watch(&mut crew, &mut story, &teller, &duly, &ids, &plan).await?;
    crew.leave().await;

    let summary = summary::Summary::of(&duly, &ids, &mut story).await?;
    if out.is_json() {
        out.json(&summary)?
    } else {
        summary.tell(&out)?
    }
    match summary.verdict() {
        None => Ok(()),
        Some(why) => Err(Fail::new(exit::FAILURE, why)),
    }
}

async fn join(crew: &mut Crew, story: &Story, teller: &Teller) -> anyhow::Result<()> {
    let mut joined = 0;
    while joined < WORKERS {
        let told = tokio::time::timeout(JOIN, crew.events.recv()).await;
        let (worker, told) = told.ok().flatten().context("a worker process did not join; see its error above")?;
        if let What::Joined { .. } = told.what {
            joined += 1;
            let rest = format!("process {}", crew.pid(worker));
            teller.tell(Some(story.line(told.at_us, &name(worker).to_string(), &word(CYAN, "joined"), &rest)))?;
        }
    }
    Ok(())
}

fn pushed(story: &Story, plan: &Plan, took: Duration) -> String {
    let rest = format!(
        "{} jobs for now, {} over the next {:.0} s, {} that fail once, {} that take 3 s  ({:.1} ms, synced to the disk)",
        plan::NOW,
        plan::LATER,
        plan.spread.as_secs_f64(),
        plan::FLAKIES,
        plan::REPORTS,
        took.as_secs_f64() * 1e3,
    );
    story.line(time::micros(time::now()), "", &word(BOLD, "pushed"), &rest)
}

/// Shows what happens until all is done, and kills a worker on the way.
async fn watch(
    crew: &mut Crew,
    story: &mut Story,
    teller: &Teller,
    duly: &Duly,
    ids: &[JobId],
    plan: &Plan,
) -> anyhow::Result<()> {
    let started = time::tick();
    let reports = &ids[ids.len() - plan::REPORTS as usize..];
    let last = plan.spread.max(plan.kill) + LAST_WAIT;
    let mut seconds = 0;
    let mut look = tokio::time::interval(LOOK);
    while started.elapsed() < last {
        tokio::select! {
            Some((worker, told)) = crew.events.recv() => teller.tell(story.take(worker, &told))?,
            _ = look.tick() => {}
        }
        let elapsed = started.elapsed();
        if elapsed.as_secs() > seconds {
            seconds = elapsed.as_secs();
            teller.tell(story.end_second(time::micros(time::now())))?;
            if elapsed > plan.spread {
                ask_for_the_rest(story, duly, ids).await?;
            }
        }
        if !story.was_killed() && elapsed >= plan.kill {
            kill(crew, story, teller, reports).await?;
        }
        if story.was_killed() && ids.iter().all(|id| story.is_done(*id)) {
            break;
        }
    }
    teller.tell(story.end_second(time::micros(time::now())))
}

/// A killed worker may have settled jobs without being able to say so: the store knows.
async fn ask_for_the_rest(story: &mut Story, duly: &Duly, ids: &[JobId]) -> anyhow::Result<()> {
    for id in ids {
        if !story.is_done(*id) && duly.get(*id).await?.is_some_and(|record| record.state == State::Done) {
            story.done(*id);
        }
    }
    Ok(())
}

async fn kill(crew: &mut Crew, story: &mut Story, teller: &Teller, reports: &[JobId]) -> anyhow::Result<()> {
    let Some(worker) = story.holder(reports) else {
        return Ok(());
    };
    let held = story.held_by(worker);
    let at = time::micros(time::now());
    crew.kill(worker).await?;
    story.killed(worker, at);
    let rest = format!(
        "kill -9 of process {}, which holds {held} running {}",
        crew.pid(worker),
        if held == 1 { "job" } else { "jobs" }
    );
    teller.tell(Some(story.line(at, &name(worker).to_string(), &word(RED.bold(), "killed"), &rest)))
}
