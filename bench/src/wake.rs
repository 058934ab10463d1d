//! An idle worker in another process: wake time, lateness of scheduled jobs, and idle CPU.

use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;
use duly::{Duly, PushExt};

use crate::child::{BenchProcess, TimedJob, monotonic_us, wall_us};
use crate::config::{BenchConfig, KEEP_NONE, open_store, store_url};
use crate::report::{ReportLine, Unit};
use crate::stats::Samples;

const GROUP: &str = "wake";
/// The time between two jobs, in which the worker settles the last one and sleeps again.
const PUSH_INTERVAL: Duration = Duration::from_millis(10);
/// The delay of the first scheduled job.
const LEAD_TIME: Duration = Duration::from_secs(1);
/// The time between two due times; not a multiple of a timer tick, so that polling would show.
const DUE_INTERVAL: Duration = Duration::from_micros(15_731);
const SCHEDULED_JOBS: usize = 200;
const GOAL_WAKE_MS: f64 = 0.5;
/// Counts as no measurable load.
const GOAL_CPU_PERCENT: f64 = 0.5;

pub(crate) async fn run(config: &BenchConfig) -> Result<Vec<ReportLine>> {
    let file = config.fresh_dir("wake")?.join("duly.db");
    let duly = open_store(&file, KEEP_NONE).await?;
    let child = BenchProcess::start_worker(&store_url(&file, KEEP_NONE))?;
    let jobs = if config.is_quick { 50 } else { 500 };
    let mut lines = report_wakes(&measure_wakes(&duly, &child, jobs, |_| PUSH_INTERVAL).await?);
    lines.extend(report_lateness(&measure_lateness(&duly, &child, SCHEDULED_JOBS, DUE_INTERVAL).await?));
    lines.push(measure_idle_cpu(config, &child).await?);
    child.kill()?;
    Ok(lines)
}

/// Milliseconds to the start of a job.
#[derive(Default)]
pub(crate) struct WakeSamples {
    pub(crate) from_call: Samples,
    /// Measured from the return of push.
    pub(crate) from_commit: Samples,
}

/// Pushes one job at a time to an idle worker in another process, each after the pause that `pause` returns.
pub(crate) async fn measure_wakes(
    duly: &Duly,
    child: &BenchProcess,
    jobs: usize,
    pause: impl Fn(usize) -> Duration,
) -> Result<WakeSamples> {
    let mut wakes = WakeSamples::default();
    for number in 0..jobs {
        tokio::time::sleep(pause(number)).await;
        let called = monotonic_us();
        duly.push(TimedJob::new(number)).await?;
        let committed = monotonic_us();
        let start = child.next_start()?;
        anyhow::ensure!(start.number == number, "job {} started instead of {number}", start.number);
        wakes.from_call.record((start.monotonic_us as f64 - called as f64) / 1_000.0);
        wakes.from_commit.record((start.monotonic_us as f64 - committed as f64) / 1_000.0);
    }
    Ok(wakes)
}

fn report_wakes(WakeSamples { from_call, from_commit }: &WakeSamples) -> Vec<ReportLine> {
    let line = |label: &str, value| {
        ReportLine::single(GROUP, format!("wake in another process, {label}"), value, Unit::Millis)
    };
    vec![
        line("from commit, p50", from_commit.median()).value_below(GOAL_WAKE_MS),
        line("from commit, p99", from_commit.percentile(99.0)),
        line("from the call of push, p50", from_call.median()),
        line("from the call of push, p99", from_call.percentile(99.0)),
    ]
}

/// Returns the milliseconds from due to start of this many jobs, one due per `interval`.
pub(crate) async fn measure_lateness(
    duly: &Duly,
    child: &BenchProcess,
    jobs: usize,
    interval: Duration,
) -> Result<Samples> {
    let begin = SystemTime::now() + LEAD_TIME;
    let due = |number: usize| begin + interval * number as u32;
    duly.push_all((0..jobs).map(|number| TimedJob::new(number).at(due(number)))).await?;
    let mut lateness = Samples::default();
    for _ in 0..jobs {
        let start = child.next_start()?;
        lateness.record((start.wall_us as f64 - wall_us(due(start.number)) as f64) / 1_000.0);
    }
    Ok(lateness)
}

fn report_lateness(lateness: &Samples) -> Vec<ReportLine> {
    let line = |label: &str, value| {
        ReportLine::single(GROUP, format!("start after its due moment, {label}"), value, Unit::Millis)
    };
    let never_early = lateness.min() >= 0.0;
    vec![line("p50", lateness.median()).with_goal("never early", never_early), line("p99", lateness.percentile(99.0))]
}

async fn measure_idle_cpu(config: &BenchConfig, child: &BenchProcess) -> Result<ReportLine> {
    let time = Duration::from_secs(if config.is_quick { 2 } else { 10 });
    // Waits until the work for the last jobs is done.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (begin, before) = (Instant::now(), child.cpu_time()?);
    tokio::time::sleep(time).await;
    let used = child.cpu_time()? - before;
    let percent = used.as_secs_f64() / begin.elapsed().as_secs_f64() * 100.0;
    Ok(ReportLine::single(GROUP, "CPU of an idle worker", percent, Unit::Percent).value_below(GOAL_CPU_PERCENT))
}
