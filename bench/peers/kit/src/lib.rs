//! What the peers in Rust on Redis share: the command line, the jobs, and the clocks. A peer brings its own library only.
//!
//! `REDIS_URL=redis://.. PEER VERB ..` prints one line of JSON; the verbs are told in `../README.md`.

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
/// Jobs at once in a worker that is measured idle.
pub const IDLE_CONCURRENCY: usize = 10;
/// Longest wait for all jobs of a drain.
const DRAIN_MAX: Duration = Duration::from_secs(300);
/// How often a drain looks whether it is over.
const LOOK: Duration = Duration::from_millis(1);
/// From the start of a worker until it is said to be ready.
const SETTLING: Duration = Duration::from_millis(500);

/// The args of every job. A no-op has only the text.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Args {
    /// If the job tells its start: which one it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no: Option<usize>,
    /// How long it then runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_ms: Option<u64>,
    pub text: String,
}

impl Args {
    /// A no-op, as many bytes of JSON as every side pushes.
    pub fn noop() -> Self {
        let bytes = std::env::var("ARGS_BYTES").ok().and_then(|bytes| bytes.parse().ok()).unwrap_or(200_usize);
        Args { no: None, hold_ms: None, text: "x".repeat(bytes.saturating_sub(r#"{"text":""}"#.len())) }
    }

    fn told(no: usize, hold: Duration) -> Self {
        Args { no: Some(no), hold_ms: Some(hold.as_millis() as u64), text: String::new() }
    }
}

/// How many no-ops have run.
#[derive(Clone, Debug, Default)]
pub struct Ran(Arc<AtomicUsize>);

impl Ran {
    /// The handler of every job.
    pub async fn run(&self, args: Args) {
        match args.no {
            None => _ = self.0.fetch_add(1, Ordering::Relaxed),
            Some(no) => {
                start_reports::tell(no);
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

    /// Pushes so many jobs in the fastest way the library has.
    async fn push_bulk(&mut self, args: &Args, jobs: usize) -> Result<()>;

    /// Pushes one job and waits for it to be kept.
    async fn push(&mut self, args: Args) -> Result<()>;

    /// Pushes a job that is due then.
    async fn push_at(&mut self, args: Args, due: SystemTime) -> Result<()>;

    /// Works until the process ends.
    fn work(url: String, concurrency: usize, ran: Ran) -> impl Future<Output = Result<()>> + Send + 'static;

    /// Whether so many jobs that have run are also recorded as done.
    async fn recorded(&mut self, _jobs: usize) -> Result<bool> {
        Ok(true)
    }
}

/// The whole of a peer's `main`.
pub async fn main<P: Peer>() -> Result<()> {
    let url = std::env::var("REDIS_URL").context("REDIS_URL says where Redis is")?;
    let given: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = given.iter().map(String::as_str).collect();
    let figures = match words[..] {
        ["push", jobs] => push::<P>(&url, jobs.parse()?).await?,
        ["push-one", jobs] => push_one::<P>(&url, jobs.parse()?).await?,
        ["drain", jobs, concurrency] => drain::<P>(&url, jobs.parse()?, concurrency.parse()?).await?,
        ["idle-latency", jobs] => start_reports::idle_latency::<P>(&url, jobs.parse()?).await?,
        ["late", jobs, seconds] => start_reports::late::<P>(&url, jobs.parse()?, seconds.parse()?).await?,
        ["hold", jobs, seconds] => hold::<P>(&url, jobs.parse()?, seconds.parse()?).await?,
        ["work", concurrency] => return work::<P>(&url, concurrency.parse()?).await,
        _ => bail!(
            "usage: REDIS_URL=.. PEER push N | push-one N | drain N CONCURRENCY | idle-latency N | late N SECONDS | hold N SECONDS | work CONCURRENCY"
        ),
    };
    println!("{}", serde_json::to_string(&figures)?);
    // A worker would go on; nothing is left to be saved.
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
    let ran = Ran::default();
    let begin = Instant::now();
    start::<P>(url, concurrency, &ran);
    while ran.count() < jobs || !peer.recorded(jobs).await? {
        ensure!(begin.elapsed() < DRAIN_MAX, "only {} of {jobs} jobs ran", ran.count());
        tokio::time::sleep(LOOK).await;
    }
    let mut figures = Figures::rate(P::NAME, jobs, begin.elapsed());
    figures.rss_mb = Some(figures::rss_mb()?);
    Ok(figures)
}

async fn hold<P: Peer>(url: &str, jobs: usize, seconds: u64) -> Result<Figures> {
    let mut peer = P::connect(url).await?;
    let begin = Instant::now();
    for no in 0..jobs {
        peer.push(Args::told(no, Duration::from_secs(seconds))).await?;
    }
    Ok(Figures::rate(P::NAME, jobs, begin.elapsed()))
}

async fn work<P: Peer>(url: &str, concurrency: usize) -> Result<()> {
    start::<P>(url, concurrency, &Ran::default());
    tokio::time::sleep(SETTLING).await;
    println!("ready");
    std::future::pending().await
}

fn start<P: Peer>(url: &str, concurrency: usize, ran: &Ran) {
    let work = P::work(url.to_owned(), concurrency, ran.clone());
    tokio::spawn(async move {
        let ended = work.await;
        // A worker never ends by itself.
        eprintln!("{} has ended: {ended:?}", P::NAME);
        std::process::exit(1);
    });
}
