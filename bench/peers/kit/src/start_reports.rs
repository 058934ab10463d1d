//! Jobs that report their start, run by a worker in another process.

use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::{Args, Figures, IDLE_CONCURRENCY, Peer};

/// The minimum and maximum pause between two jobs: the worker is idle again, and pushes hit every phase of a polling
/// interval.
const PAUSE_MS: (usize, usize) = (10, 110);
/// The delay of the first scheduled job.
const LEAD_TIME: Duration = Duration::from_secs(2);
/// The longest wait for a start.
pub(crate) const START_TIMEOUT: Duration = Duration::from_secs(30);

/// When a job started; all peers print the number as `no`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StartReport {
    #[serde(rename = "no")]
    pub(crate) number: usize,
    pub(crate) monotonic_us: u64,
    wall_us: u64,
}

pub(crate) fn report_start(number: usize) {
    let start = StartReport { number, monotonic_us: monotonic_us(), wall_us: wall_us(SystemTime::now()) };
    println!("{}", serde_json::to_string(&start).expect("three numbers are JSON"));
}

/// A worker or a lock waiter in another process. Dropping it kills the process.
pub(crate) struct Worker {
    _child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    /// Starts this program with these arguments and waits until it is ready.
    pub(crate) async fn start(words: &[&str]) -> Result<Self> {
        let mut child =
            Command::new(std::env::current_exe()?).args(words).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
        let lines = BufReader::new(child.stdout.take().context("the worker's output is a pipe")?).lines();
        let mut worker = Worker { _child: child, lines };
        let first = worker.next_line().await?;
        ensure!(first == "ready", "the worker printed {first:?}");
        Ok(worker)
    }

    async fn next_line(&mut self) -> Result<String> {
        self.lines.next_line().await?.context("the worker has ended")
    }

    pub(crate) async fn next_start(&mut self) -> Result<StartReport> {
        Ok(serde_json::from_str(&self.next_line().await?)?)
    }
}

/// Measures from the call of push to the start of the handler, one job at a time.
pub(crate) async fn idle_latency<P: Peer>(url: &str, jobs: usize) -> Result<Figures> {
    let mut worker = Worker::start(&["work", &IDLE_CONCURRENCY.to_string()]).await?;
    let mut peer = P::connect(url).await?;
    let mut millis = Vec::new();
    let begin = Instant::now();
    // The first job sets up connections and scripts and does not count.
    for number in 0..=jobs {
        tokio::time::sleep(pause_before(number)).await;
        let called = monotonic_us();
        peer.push(Args::timed(number, Duration::ZERO)).await?;
        let start =
            tokio::time::timeout(START_TIMEOUT, worker.next_start()).await.context("a job does not start")??;
        ensure!(start.number == number, "job {} started instead of {number}", start.number);
        if number > 0 {
            millis.push((start.monotonic_us as f64 - called as f64) / 1_000.0);
        }
    }
    Ok(Figures::times(P::NAME, jobs, begin.elapsed(), millis))
}

/// Returns the pause before a job. 37 and 100 are coprime, so every millisecond occurs and neighbours are far apart.
pub(crate) fn pause_before(number: usize) -> Duration {
    let (least, most) = PAUSE_MS;
    Duration::from_millis((least + number * 37 % (most - least)) as u64)
}

/// Measures the lateness of jobs that are due over this many seconds.
pub(crate) async fn lateness<P: Peer>(url: &str, jobs: usize, seconds: u64) -> Result<Figures> {
    let mut worker = Worker::start(&["work", &IDLE_CONCURRENCY.to_string()]).await?;
    let mut peer = P::connect(url).await?;
    let begin = Instant::now();
    let (first, interval) = (SystemTime::now() + LEAD_TIME, Duration::from_secs(seconds) / jobs as u32);
    let due = |number: usize| first + interval * number as u32;
    for number in 0..jobs {
        peer.push_at(Args::timed(number, Duration::ZERO), due(number)).await?;
    }
    let until = tokio::time::Instant::now() + LEAD_TIME + Duration::from_secs(seconds) + START_TIMEOUT;
    let mut millis = Vec::new();
    while millis.len() < jobs {
        let Ok(start) = tokio::time::timeout_at(until, worker.next_start()).await else { break };
        let start = start?;
        millis.push((start.wall_us as f64 - wall_us(due(start.number)) as f64) / 1_000.0);
    }
    Ok(Figures::times(P::NAME, jobs, begin.elapsed(), millis))
}

/// Returns microseconds of the monotonic clock, which all processes of the machine share.
pub(crate) fn monotonic_us() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000 + now.tv_nsec.unsigned_abs() / 1_000
}

fn wall_us(moment: SystemTime) -> u64 {
    let since = moment.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
