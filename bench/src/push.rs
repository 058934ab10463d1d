//! Durable pushes: from one task, from many, in bulk.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use duly::Duly;

use crate::baseline::Bare;
use crate::config::{BULK, KEEP_NONE, Noop, Setting, fill, open};
use crate::report::{Line, Unit};
use crate::stats::Pair;

const GROUP: &str = "push";
/// Tasks that push at the same time.
const TASKS: usize = 64;
/// Jobs pushed before the measuring begins: by then the WAL has its size and is overwritten, not grown.
const WARM: usize = 20_000;

pub(crate) async fn run(setting: &Setting) -> Result<Vec<Line>> {
    let (mut one, mut many, mut bulk) = (Pair::default(), Pair::default(), Pair::default());
    for round in 0..setting.rounds() {
        let dir = setting.fresh("push")?;
        let duly = warm(&dir.join("duly.db")).await?;
        let bare = Bare::make(&dir.join("bare.db")).await?;
        bare.warm(WARM)?;
        let alone = from_tasks(&duly, 1, setting.time()).await?;
        one.record(alone, bare.pushes(1, setting.time())?);
        many.record(from_tasks(&duly, TASKS, setting.time()).await?, alone);
        bulk.record(in_bulk(&duly, setting.time()).await?, bare.pushes(BULK, setting.time())?);
        eprintln!("push: round {} of {}", round + 1, setting.rounds());
    }
    Ok(vec![
        Line::pair(GROUP, "push, 1 task", Unit::PerSecond, "bare loop", &one),
        Line::pair(GROUP, format!("push, {TASKS} tasks"), Unit::PerSecond, "duly, 1 task", &many),
        Line::pair(GROUP, format!("push, {BULK} at a time"), Unit::PerSecond, "bare loop", &bulk),
    ])
}

async fn warm(file: &Path) -> Result<Duly> {
    let duly = open(file, KEEP_NONE).await?;
    fill(&duly, WARM, || Noop::new().into()).await?;
    Ok(duly)
}

/// Jobs a second from so many tasks, each of which waits for its job to be kept before it pushes the next.
async fn from_tasks(duly: &Duly, tasks: usize, time: Duration) -> Result<f64> {
    let begin = Instant::now();
    let pushers: Vec<_> = (0..tasks)
        .map(|_| {
            let duly = duly.clone();
            tokio::spawn(async move {
                let mut jobs = 0_u64;
                while begin.elapsed() < time {
                    duly.push(Noop::new()).await?;
                    jobs += 1;
                }
                anyhow::Ok(jobs)
            })
        })
        .collect();
    let mut jobs = 0;
    for pusher in pushers {
        jobs += pusher.await??;
    }
    Ok(jobs as f64 / begin.elapsed().as_secs_f64())
}

async fn in_bulk(duly: &Duly, time: Duration) -> Result<f64> {
    let begin = Instant::now();
    let mut jobs = 0;
    while begin.elapsed() < time {
        duly.push_all((0..BULK).map(|_| Noop::new())).await?;
        jobs += BULK;
    }
    Ok(jobs as f64 / begin.elapsed().as_secs_f64())
}
