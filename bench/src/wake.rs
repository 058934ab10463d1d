//! An idle worker in another process: how soon it starts a job, how late a scheduled one, what it costs to be idle.

use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;
use duly::{Args, Duly};

use crate::child::{BenchProcess, TimedJob, monotonic_us, wall_us};
use crate::config::{BenchConfig, KEEP_NONE, open_store, store_url};
use crate::report::{ReportLine, Unit};
use crate::stats::Samples;

const GROUP: &str = "wake";
/// Time between two jobs: the worker has settled the last one and sleeps again.
const PUSH_INTERVAL: Duration = Duration::from_millis(10);
/// From now to the first due moment of the scheduled jobs.
const LEAD_TIME: Duration = Duration::from_secs(1);
/// Time between two due moments; no multiple of a tick, so that one would show.
const DUE_INTERVAL: Duration = Duration::from_micros(15_731);
const SCHEDULED_JOBS: usize = 200;
const GOAL_WAKE_MS: f64 = 0.5;
/// What counts as nothing measurable.
const GOAL_CPU_PERCENT: f64 = 0.5;

pub(crate) async fn run(setting: &BenchConfig) -> Result<Vec<ReportLine>> {
    let file = setting.fresh_dir("wake")?.join("duly.db");
    let duly = open_store(&file, KEEP_NONE).await?;
    let child = BenchProcess::start_worker(&store_url(&file, KEEP_NONE))?;
    let jobs = if setting.is_quick { 50 } else { 500 };
    let mut lines = report_wakes(&measure_wakes(&duly, &child, jobs, |_| PUSH_INTERVAL).await?);
    lines.extend(report_lateness(&measure_lateness(&duly, &child, SCHEDULED_JOBS, DUE_INTERVAL).await?));
    lines.push(measure_idle_cpu(setting, &child).await?);
    child.kill()?;
    Ok(lines)
}

/// Milliseconds to the start of a job.
#[derive(Default)]
pub(crate) struct WakeSamples {
    pub(crate) from_call: Samples,
    /// From the return of push.
    pub(crate) from_commit: Samples,
}

/// Pushes one job at a time to an idle worker in another process, after a pause that `step` gives.
pub(crate) async fn measure_wakes(
    duly: &Duly,
    child: &BenchProcess,
    jobs: usize,
    step: impl Fn(usize) -> Duration,
) -> Result<WakeSamples> {
    let mut wakes = WakeSamples::default();
    for no in 0..jobs {
        tokio::time::sleep(step(no)).await;
        let called = monotonic_us();
        duly.push(TimedJob::new(no)).await?;
        let committed = monotonic_us();
        let start = child.next_start()?;
        anyhow::ensure!(start.no == no, "job {} started instead of {no}", start.no);
        wakes.from_call.record((start.monotonic_us as f64 - called as f64) / 1_000.0);
        wakes.from_commit.record((start.monotonic_us as f64 - committed as f64) / 1_000.0);
    }
    Ok(wakes)
}

fn report_wakes(WakeSamples { from_call, from_commit }: &WakeSamples) -> Vec<ReportLine> {
    let line =
        |what: &str, value| ReportLine::single(GROUP, format!("wake in another process, {what}"), value, Unit::Millis);
    vec![
        line("from commit, p50", from_commit.median()).value_below(GOAL_WAKE_MS),
        line("from commit, p99", from_commit.percentile(99.0)),
        line("from the call of push, p50", from_call.median()),
        line("from the call of push, p99", from_call.percentile(99.0)),
    ]
}

/// Milliseconds from due to start of so many jobs, one due each `step`.
pub(crate) async fn measure_lateness(
    duly: &Duly,
    child: &BenchProcess,
    jobs: usize,
    step: Duration,
) -> Result<Samples> {
    let begin = SystemTime::now() + LEAD_TIME;
    let due = |no: usize| begin + step * no as u32;
    duly.push_all((0..jobs).map(|no| TimedJob::new(no).at(due(no)))).await?;
    let mut late = Samples::default();
    for _ in 0..jobs {
        let start = child.next_start()?;
        late.record((start.wall_us as f64 - wall_us(due(start.no)) as f64) / 1_000.0);
    }
    Ok(late)
}

fn report_lateness(late: &Samples) -> Vec<ReportLine> {
    let line = |what: &str, value| {
        ReportLine::single(GROUP, format!("start after its due moment, {what}"), value, Unit::Millis)
    };
    let never_early = late.min() >= 0.0;
    vec![line("p50", late.median()).with_goal("never early", never_early), line("p99", late.percentile(99.0))]
}

async fn measure_idle_cpu(setting: &BenchConfig, child: &BenchProcess) -> Result<ReportLine> {
    let time = Duration::from_secs(if setting.is_quick { 2 } else { 10 });
    // What its last jobs have left to do is not idleness.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (begin, before) = (Instant::now(), child.cpu_time()?);
    tokio::time::sleep(time).await;
    let used = child.cpu_time()? - before;
    let percent = used.as_secs_f64() / begin.elapsed().as_secs_f64() * 100.0;
    Ok(ReportLine::single(GROUP, "CPU of an idle worker", percent, Unit::Percent).value_below(GOAL_CPU_PERCENT))
}
