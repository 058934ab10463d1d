//! An idle worker in another process: how soon it starts a job, how late a scheduled one, what it costs to be idle.

use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;
use duly::{Args, Duly};

use crate::child::{Playing, Told, monotonic_us, wall_us};
use crate::report::{Line, Unit};
use crate::setting::{KEEP_NONE, Setting, open};
use crate::stats::Samples;

const GROUP: &str = "wake";
/// Time between two jobs: the worker has settled the last one and sleeps again.
const STEP: Duration = Duration::from_millis(10);
/// From now to the first due moment of the scheduled jobs.
const LEAD: Duration = Duration::from_secs(1);
/// Time between two due moments; no multiple of a tick, so that one would show.
const DUE_STEP: Duration = Duration::from_micros(15_731);
const SCHEDULED: usize = 200;
const GOAL_WAKE_MS: f64 = 0.5;
/// What counts as nothing measurable.
const GOAL_CPU_PERCENT: f64 = 0.5;

pub(crate) async fn run(setting: &Setting) -> Result<Vec<Line>> {
    let file = setting.fresh("wake")?.join("duly.db");
    let duly = open(&file, KEEP_NONE).await?;
    let mut child = Playing::work(&file)?;
    let mut lines = wakes(setting, &duly, &mut child).await?;
    lines.extend(lateness(&duly, &mut child).await?);
    lines.push(idle(setting, &child).await?);
    child.kill()?;
    Ok(lines)
}

async fn wakes(setting: &Setting, duly: &Duly, child: &mut Playing) -> Result<Vec<Line>> {
    let (mut from_call, mut from_commit) = (Samples::default(), Samples::default());
    for no in 0..if setting.quick { 50 } else { 500 } {
        tokio::time::sleep(STEP).await;
        let called = monotonic_us();
        duly.push(Told { no }).await?;
        let committed = monotonic_us();
        let start = child.next_start()?;
        anyhow::ensure!(start.no == no, "job {} started instead of {no}", start.no);
        from_call.record((start.monotonic_us as f64 - called as f64) / 1_000.0);
        from_commit.record((start.monotonic_us as f64 - committed as f64) / 1_000.0);
    }
    let line = |what: &str, value| Line::alone(GROUP, format!("wake in another process, {what}"), value, Unit::Millis);
    Ok(vec![
        line("from commit, p50", from_commit.median()).below(GOAL_WAKE_MS),
        line("from commit, p99", from_commit.percentile(99.0)),
        line("from the call of push, p50", from_call.median()),
        line("from the call of push, p99", from_call.percentile(99.0)),
    ])
}

async fn lateness(duly: &Duly, child: &mut Playing) -> Result<Vec<Line>> {
    let begin = SystemTime::now() + LEAD;
    let due = |no: usize| begin + DUE_STEP * no as u32;
    duly.push_all((0..SCHEDULED).map(|no| Told { no }.at(due(no)))).await?;
    let mut late = Samples::default();
    for _ in 0..SCHEDULED {
        let start = child.next_start()?;
        late.record((start.wall_us as f64 - wall_us(due(start.no)) as f64) / 1_000.0);
    }
    let line =
        |what: &str, value| Line::alone(GROUP, format!("start after its due moment, {what}"), value, Unit::Millis);
    let never_early = late.min() >= 0.0;
    Ok(vec![line("p50", late.median()).goal("never early", never_early), line("p99", late.percentile(99.0))])
}

async fn idle(setting: &Setting, child: &Playing) -> Result<Line> {
    let time = Duration::from_secs(if setting.quick { 2 } else { 10 });
    // What its last jobs have left to do is not idleness.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (begin, before) = (Instant::now(), child.cpu()?);
    tokio::time::sleep(time).await;
    let used = child.cpu()? - before;
    let percent = used.as_secs_f64() / begin.elapsed().as_secs_f64() * 100.0;
    Ok(Line::alone(GROUP, "CPU of an idle worker", percent, Unit::Percent).below(GOAL_CPU_PERCENT))
}
