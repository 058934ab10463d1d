//! Jobs that tell their start, run by a worker in a process of its own.

use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::{Args, Figures, IDLE_CONCURRENCY, Peer};

/// Time between two jobs, at least and at most: the worker is done with the last one and waits again, and one that looks
/// now and then is met at any point of its turn.
const STEP_MS: (usize, usize) = (10, 110);
/// From now to the first due moment.
const LEAD: Duration = Duration::from_secs(2);
/// Longest wait for a job after the last one is due.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// When a job began.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Start {
    pub(crate) no: usize,
    pub(crate) monotonic_us: u64,
    wall_us: u64,
}

pub(crate) fn tell(no: usize) {
    let start = Start { no, monotonic_us: monotonic_us(), wall_us: wall_us(SystemTime::now()) };
    println!("{}", serde_json::to_string(&start).expect("three numbers are JSON"));
}

/// A worker, or somebody who waits for locks, in a process of its own. Killed when it goes out of scope.
pub(crate) struct Worker {
    _child: Child,
    said: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    /// Starts this program with other words and waits until it is ready.
    pub(crate) async fn start(words: &[&str]) -> Result<Self> {
        let mut child =
            Command::new(std::env::current_exe()?).args(words).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
        let said = BufReader::new(child.stdout.take().context("the worker's output is a pipe")?).lines();
        let mut worker = Worker { _child: child, said };
        let first = worker.line().await?;
        ensure!(first == "ready", "the worker said {first:?}");
        Ok(worker)
    }

    async fn line(&mut self) -> Result<String> {
        self.said.next_line().await?.context("the worker has ended")
    }

    pub(crate) async fn next_start(&mut self) -> Result<Start> {
        Ok(serde_json::from_str(&self.line().await?)?)
    }
}

/// From the call of push to the start of the handler, one job at a time.
pub(crate) async fn idle_latency<P: Peer>(url: &str, jobs: usize) -> Result<Figures> {
    let mut worker = Worker::start(&["work", &IDLE_CONCURRENCY.to_string()]).await?;
    let mut peer = P::connect(url).await?;
    let mut millis = Vec::new();
    let begin = Instant::now();
    // The first one pays for connections and compiled scripts.
    for no in 0..=jobs {
        tokio::time::sleep(step(no)).await;
        let called = monotonic_us();
        peer.push(Args::told(no, Duration::ZERO)).await?;
        let start = tokio::time::timeout(PATIENCE, worker.next_start()).await.context("a job does not start")??;
        ensure!(start.no == no, "job {} started instead of {no}", start.no);
        if no > 0 {
            millis.push((start.monotonic_us as f64 - called as f64) / 1_000.0);
        }
    }
    Ok(Figures::times(P::NAME, jobs, begin.elapsed(), millis))
}

/// 37 and 100 have no factor in common: every millisecond has its turn, and neighbours are far apart.
pub(crate) fn step(no: usize) -> Duration {
    let (least, most) = STEP_MS;
    Duration::from_millis((least + no * 37 % (most - least)) as u64)
}

/// How late jobs start that are due over so many seconds.
pub(crate) async fn late<P: Peer>(url: &str, jobs: usize, seconds: u64) -> Result<Figures> {
    let mut worker = Worker::start(&["work", &IDLE_CONCURRENCY.to_string()]).await?;
    let mut peer = P::connect(url).await?;
    let begin = Instant::now();
    let (first, step) = (SystemTime::now() + LEAD, Duration::from_secs(seconds) / jobs as u32);
    let due = |no: usize| first + step * no as u32;
    for no in 0..jobs {
        peer.push_at(Args::told(no, Duration::ZERO), due(no)).await?;
    }
    let until = tokio::time::Instant::now() + LEAD + Duration::from_secs(seconds) + PATIENCE;
    let mut millis = Vec::new();
    while millis.len() < jobs {
        let Ok(start) = tokio::time::timeout_at(until, worker.next_start()).await else { break };
        let start = start?;
        millis.push((start.wall_us as f64 - wall_us(due(start.no)) as f64) / 1_000.0);
    }
    Ok(Figures::times(P::NAME, jobs, begin.elapsed(), millis))
}

/// Microseconds of a clock that all processes of the machine share and nobody sets.
pub(crate) fn monotonic_us() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000 + now.tv_nsec.unsigned_abs() / 1_000
}

fn wall_us(moment: SystemTime) -> u64 {
    let since = moment.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
