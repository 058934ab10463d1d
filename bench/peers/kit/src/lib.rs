//! Shared code of the peers in Rust on Redis: the command line, the jobs and the clocks.
//!
//! `REDIS_URL=redis://.. PEER VERB ..` prints one line of JSON; `../README.md` describes the verbs.

mod figures;
mod locks;
mod start_reports;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

pub use crate::figures::Figures;
pub use crate::locks::{LOCK_TTL, Locker, lock_main};

/// Jobs in one bulk push.
pub const BULK: usize = 1_000;
/// The concurrency of a worker that is measured idle.
pub const IDLE_CONCURRENCY: usize = 10;
/// The longest wait for all jobs of a drain.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(300);
/// How often a drain checks for its end.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// The delay from the start of a worker until it prints `ready`.
const START_DELAY: Duration = Duration::from_millis(500);

/// The args of every job. A no-op has only the text.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Args {
    /// The number of a job that reports its start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<usize>,
    /// How long such a job runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_ms: Option<u64>,
    pub text: String,
}

impl Args {
    /// Creates a no-op with as many bytes of JSON as on every side.
    pub fn noop() -> Self {
        let bytes = std::env::var("ARGS_BYTES").ok().and_then(|bytes| bytes.parse().ok()).unwrap_or(200_usize);
        Args { number: None, hold_ms: None, text: "x".repeat(bytes.saturating_sub(r#"{"text":""}"#.len())) }
    }

    fn timed(number: usize, hold: Duration) -> Self {
        Args { number: Some(number), hold_ms: Some(hold.as_millis() as u64), text: String::new() }
    }
}

/// Counts the no-ops that have run.
#[derive(Clone, Debug, Default)]
pub struct RunCounter(Arc<AtomicUsize>);

impl RunCounter {
    /// The handler of every job.
    pub async fn run(&self, args: Args) {
        match args.number {
            None => _ = self.0.fetch_add(1, Ordering::Relaxed),
            Some(number) => {
                start_reports::report_start(number);
                tokio::time::sleep(Duration::from_millis(args.hold_ms.unwrap_or(0))).await;
            }
        }
    }

    fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// A peer's own library.
#[allow(async_fn_in_trait)]
pub trait Peer: Sized {
    const NAME: &'static str;

    /// A client that pushes.
    async fn connect(url: &str) -> Result<Self>;

    /// Pushes this many jobs in the fastest way of the library.
    async fn push_bulk(&mut self, args: &Args, jobs: usize) -> Result<()>;

    /// Pushes one job and waits until it is stored.
    async fn push(&mut self, args: Args) -> Result<()>;

    /// Pushes a job that is due at this time.
    async fn push_at(&mut self, args: Args, due: SystemTime) -> Result<()>;

    /// Works until the process ends.
    fn work(url: String, concurrency: usize, ran: RunCounter) -> impl Future<Output = Result<()>> + Send + 'static;

    /// Returns true if this many jobs that have run are also recorded as done.
    async fn recorded(&mut self, _jobs: usize) -> Result<bool> {
        Ok(true)
    }
}

/// The complete `main` of a peer.
pub async fn main<P: Peer>() -> Result<()> {
    let url = std::env::var("REDIS_URL").context("REDIS_URL is not set")?;
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let figures = match words[..] {
        ["push", jobs] => push::<P>(&url, jobs.parse()?).await?,
        ["push-one", jobs] => push_one::<P>(&url, jobs.parse()?).await?,
        ["drain", jobs, concurrency] => drain::<P>(&url, jobs.parse()?, concurrency.parse()?).await?,
        ["idle-latency", jobs] => start_reports::idle_latency::<P>(&url, jobs.parse()?).await?,
        ["late", jobs, seconds] => start_reports::lateness::<P>(&url, jobs.parse()?, seconds.parse()?).await?,
        ["hold", jobs, seconds] => hold::<P>(&url, jobs.parse()?, seconds.parse()?).await?,
        ["work", concurrency] => return work::<P>(&url, concurrency.parse()?).await,
        _ => bail!(
            "usage: REDIS_URL=.. PEER push N | push-one N | drain N CONCURRENCY | idle-latency N | late N SECONDS | hold N SECONDS | work CONCURRENCY"
        ),
    };
    println!("{}", serde_json::to_string(&figures)?);
    // Ends the worker, too.
    std::process::exit(0);
}

async fn push<P: Peer>(url: &str, jobs: usize) -> Result<Figures> {
    let mut peer = P::connect(url).await?;
    let args = Args::noop();
    let begin = Instant::now();
    peer.push_bulk(&args, jobs).await?;
    Ok(Figures::rate(P::NAME, jobs, begin.elapsed()))
}

async fn push_one<P: Peer>(url: &str, jobs: usize) -> Result<Figures> {
    let mut peer = P::connect(url).await?;
    let args = Args::noop();
    let begin = Instant::now();
    for _ in 0..jobs {
        peer.push(args.clone()).await?;
    }
    Ok(Figures::rate(P::NAME, jobs, begin.elapsed()))
}

async fn drain<P: Peer>(url: &str, jobs: usize, concurrency: usize) -> Result<Figures> {
    let mut peer = P::connect(url).await?;
    let ran = RunCounter::default();
    let begin = Instant::now();
    start::<P>(url, concurrency, &ran);
    while ran.count() < jobs || !peer.recorded(jobs).await? {
        ensure!(begin.elapsed() < DRAIN_TIMEOUT, "only {} of {jobs} jobs ran", ran.count());
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    let mut figures = Figures::rate(P::NAME, jobs, begin.elapsed());
    figures.rss_mb = Some(figures::rss_mb()?);
    Ok(figures)
}

async fn hold<P: Peer>(url: &str, jobs: usize, seconds: u64) -> Result<Figures> {
    let mut peer = P::connect(url).await?;
    let begin = Instant::now();
    for number in 0..jobs {
        peer.push(Args::timed(number, Duration::from_secs(seconds))).await?;
    }
    Ok(Figures::rate(P::NAME, jobs, begin.elapsed()))
}

async fn work<P: Peer>(url: &str, concurrency: usize) -> Result<()> {
    start::<P>(url, concurrency, &RunCounter::default());
    tokio::time::sleep(START_DELAY).await;
    println!("ready");
    std::future::pending().await
}

fn start<P: Peer>(url: &str, concurrency: usize, ran: &RunCounter) {
    let work = P::work(url.to_owned(), concurrency, ran.clone());
    tokio::spawn(async move {
        let result = work.await;
        // A worker runs until it is killed.
        eprintln!("{} has ended: {result:?}", P::NAME);
        std::process::exit(1);
    });
}
