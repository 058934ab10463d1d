//! Whole lives: pushed, claimed, run by a no-op handler, settled. Against the limit and against the peers.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::baseline::SqliteBaseline;
use crate::config::{BenchConfig, DEFAULTS, KEEP_NONE, Noop, noop, open_store};
use crate::peers::SqlitePeer;
use crate::report::{ReportLine, Unit};
use crate::stats::Comparison;
use crate::worker::MeasuredWorker;

const GROUP: &str = "life";
/// Batch sizes, each with the least ratio to the bare loop that is good enough.
const BATCHES: [(usize, f64); 2] = [(10, 0.35), (100, 0.5)];
/// Batches that may be under way: one that is pushed, one that waits, one that runs, one that is settled.
pub(crate) const BATCHES_IN_FLIGHT_MAX: usize = 4;

pub(crate) async fn compare_with_baseline(setting: &BenchConfig) -> Result<Vec<ReportLine>> {
    let mut lines = Vec::new();
    for (batch, goal) in BATCHES {
        let (mut lean, mut kept) = (Comparison::default(), Comparison::default());
        for round in 0..setting.round_count() {
            let dir = setting.fresh_dir("life")?;
            let ours = measure_lifecycles(&dir.join("duly.db"), KEEP_NONE, batch, setting.round_duration()).await?;
            let limit = SqliteBaseline::create(&dir.join("bare.db"))
                .await?
                .measure_lifecycles(batch, setting.round_duration())?;
            lean.record(ours, limit);
            kept.record(
                measure_lifecycles(&dir.join("kept.db"), DEFAULTS, batch, setting.round_duration()).await?,
                limit,
            );
            eprintln!("life, batch {batch}: round {} of {}", round + 1, setting.round_count());
        }
        let line = |name: String, pair| ReportLine::comparison(GROUP, name, Unit::PerSecond, "bare loop", pair);
        lines.push(line(format!("life, batch {batch}"), &lean).ratio_at_least(goal));
        lines.push(line(format!("life, batch {batch}, defaults"), &kept));
    }
    Ok(lines)
}

pub(crate) async fn compare_with_peers(setting: &BenchConfig) -> Result<Vec<ReportLine>> {
    let peers = SqlitePeer::prepare_all(setting)?;
    let mut pairs: Vec<Vec<Comparison>> = peers.iter().map(|_| BATCHES.map(|_| Comparison::default()).into()).collect();
    let mut pushes: Vec<Comparison> = peers.iter().map(|_| Comparison::default()).collect();
    // A peer's round takes many seconds: fewer of them.
    for round in 0..setting.round_count().min(3) {
        let dir = setting.fresh_dir("peers")?;
        let mut ours = Vec::new();
        for (batch, _) in BATCHES {
            let file = dir.join(format!("duly-{batch}.db"));
            ours.push(measure_lifecycles(&file, KEEP_NONE, batch, setting.round_duration()).await?);
        }
        let single = measure_single_pushes(&dir.join("single.db"), setting.round_duration()).await?;
        for (at, peer) in peers.iter().enumerate() {
            let figures = peer.run(&setting.fresh_dir("peer")?)?;
            ours.iter().zip(&mut pairs[at]).for_each(|(ours, pair)| pair.record(*ours, figures.life_per_s));
            pushes[at].record(single, figures.single_push_per_s);
        }
        eprintln!("peers: round {} of {}", round + 1, setting.round_count().min(3));
    }
    let mut lines = Vec::new();
    for ((peer, pairs), push) in peers.iter().zip(&pairs).zip(&pushes) {
        for ((batch, _), pair) in BATCHES.iter().zip(pairs) {
            let line =
                ReportLine::comparison("peers", format!("life, batch {batch}"), Unit::PerSecond, &peer.name, pair);
            lines.push(match peer.goal {
                Some(goal) => line.ratio_at_least(goal),
                None => line,
            });
        }
        lines.push(ReportLine::comparison("peers", "push, 1 task", Unit::PerSecond, &peer.name, push));
    }
    Ok(lines)
}

/// Lives a second, from the first push to the last settle.
///
/// One task pushes `batch` at a time for so long, never far ahead, as the bare loop is never ahead at all;
/// a worker that runs `batch` at once works at the same time.
pub(crate) async fn measure_lifecycles(file: &Path, options: &str, batch: usize, time: Duration) -> Result<f64> {
    let duly = open_store(file, options).await?;
    let working = MeasuredWorker::start(duly.worker().queue("default", batch).on(noop)).await?;
    let begin = Instant::now();
    let mut jobs = 0;
    while begin.elapsed() < time {
        if jobs >= BATCHES_IN_FLIGHT_MAX * batch {
            working.wait_settled_more(u32::try_from(batch)?).await?;
        }
        duly.push_all((0..batch).map(|_| Noop::new())).await?;
        jobs += batch;
    }
    working.wait_settled(jobs).await;
    let took = begin.elapsed();
    let tally = working.stop().await?;
    ensure!(tally.acked == jobs as u64, "{} of {jobs} jobs were acked", tally.acked);
    Ok(jobs as f64 / took.as_secs_f64())
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
