//! Lifecycles: push, claim, a no-op handler, settle. Compared to the baseline and to the peers.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::baseline::SqliteBaseline;
use crate::config::{BenchConfig, DEFAULTS, KEEP_NONE, Noop, noop, open_store};
use crate::peers::SqlitePeer;
use crate::report::{ReportLine, Unit};
use crate::stats::Comparison;
use crate::worker::MeasuredWorker;

const GROUP: &str = "lifecycle";
/// Batch sizes, each with its minimum ratio to the bare loop.
const BATCHES: [(usize, f64); 2] = [(10, 0.35), (100, 0.5)];
/// Batches in flight: one each that is pushed, waits, runs and is settled.
pub(crate) const BATCHES_IN_FLIGHT_MAX: usize = 4;

pub(crate) async fn compare_with_baseline(config: &BenchConfig) -> Result<Vec<ReportLine>> {
    let mut lines = Vec::new();
    for (batch, goal) in BATCHES {
        let (mut keep_none, mut defaults) = (Comparison::default(), Comparison::default());
        for round in 0..config.round_count() {
            let dir = config.fresh_dir(GROUP)?;
            let ours = measure_lifecycles(&dir.join("duly.db"), KEEP_NONE, batch, config.round_duration()).await?;
            let baseline = SqliteBaseline::create(&dir.join("bare.db"))
                .await?
                .measure_lifecycles(batch, config.round_duration())?;
            keep_none.record(ours, baseline);
            defaults.record(
                measure_lifecycles(&dir.join("kept.db"), DEFAULTS, batch, config.round_duration()).await?,
                baseline,
            );
            eprintln!("{GROUP}, batch {batch}: round {} of {}", round + 1, config.round_count());
        }
        let line = |name: String, pair| ReportLine::comparison(GROUP, name, Unit::PerSecond, "bare loop", pair);
        lines.push(line(format!("lifecycle, batch {batch}"), &keep_none).ratio_at_least(goal));
        lines.push(line(format!("lifecycle, batch {batch}, defaults"), &defaults));
    }
    Ok(lines)
}

pub(crate) async fn compare_with_peers(config: &BenchConfig) -> Result<Vec<ReportLine>> {
    let peers = SqlitePeer::prepare_all(config)?;
    let mut pairs: Vec<Vec<Comparison>> = peers.iter().map(|_| BATCHES.map(|_| Comparison::default()).into()).collect();
    let mut pushes: Vec<Comparison> = peers.iter().map(|_| Comparison::default()).collect();
    // Fewer rounds: one of a peer takes many seconds.
    for round in 0..config.round_count().min(3) {
        let dir = config.fresh_dir("peers")?;
        let mut ours = Vec::new();
        for (batch, _) in BATCHES {
            let file = dir.join(format!("duly-{batch}.db"));
            ours.push(measure_lifecycles(&file, KEEP_NONE, batch, config.round_duration()).await?);
        }
        let pushes_per_s = measure_single_pushes(&dir.join("single.db"), config.round_duration()).await?;
        for (index, peer) in peers.iter().enumerate() {
            let figures = peer.run(&config.fresh_dir("peer")?)?;
            ours.iter().zip(&mut pairs[index]).for_each(|(ours, pair)| pair.record(*ours, figures.life_per_s));
            pushes[index].record(pushes_per_s, figures.single_push_per_s);
        }
        eprintln!("peers: round {} of {}", round + 1, config.round_count().min(3));
    }
    let mut lines = Vec::new();
    for ((peer, pairs), push) in peers.iter().zip(&pairs).zip(&pushes) {
        for ((batch, _), pair) in BATCHES.iter().zip(pairs) {
            let line =
                ReportLine::comparison("peers", format!("lifecycle, batch {batch}"), Unit::PerSecond, &peer.name, pair);
            lines.push(match peer.goal {
                Some(goal) => line.ratio_at_least(goal),
                None => line,
            });
        }
        lines.push(ReportLine::comparison("peers", "push, 1 task", Unit::PerSecond, &peer.name, push));
    }
    Ok(lines)
}

/// Returns lifecycles per second, from the first push to the last settle.
///
/// One task pushes `batch` jobs at a time, at most a few batches ahead of a worker with concurrency `batch`.
pub(crate) async fn measure_lifecycles(file: &Path, options: &str, batch: usize, time: Duration) -> Result<f64> {
    let duly = open_store(file, options).await?;
    let worker_run = MeasuredWorker::start(duly.worker().queue("default", batch).on(noop)).await?;
    let begin = Instant::now();
    let mut jobs = 0;
    while begin.elapsed() < time {
        if jobs >= BATCHES_IN_FLIGHT_MAX * batch {
            worker_run.wait_settled_more(u32::try_from(batch)?).await?;
        }
        duly.push_all((0..batch).map(|_| Noop::new())).await?;
        jobs += batch;
    }
    worker_run.wait_settled(jobs).await;
    let duration = begin.elapsed();
    let summary = worker_run.stop().await?;
    ensure!(summary.acked == jobs as u64, "{} of {jobs} jobs were acked", summary.acked);
    Ok(jobs as f64 / duration.as_secs_f64())
}

async fn measure_single_pushes(file: &Path, time: Duration) -> Result<f64> {
    let duly = open_store(file, KEEP_NONE).await?;
    let begin = Instant::now();
    let mut jobs = 0;
    while begin.elapsed() < time {
        duly.push(Noop::new()).await?;
        jobs += 1;
    }
    Ok(f64::from(jobs) / begin.elapsed().as_secs_f64())
}
