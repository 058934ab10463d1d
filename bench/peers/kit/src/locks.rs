//! Peers that provide locks: uncontended locks, and hand-overs to a waiter in another process.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::Figures;
use crate::start_reports::{START_TIMEOUT, Worker, monotonic_us, pause_before, report_start};

/// The TTL of every lock.
pub const LOCK_TTL: Duration = Duration::from_secs(30);
/// Locks before the measurement begins.
const WARMUP_LOCKS: usize = 5;
const UNCONTENDED_LOCK: &str = "uncontended";
/// The delay from the start of a wait until it counts as started.
const WAIT_DELAY: Duration = Duration::from_millis(500);

/// A peer's own library.
#[allow(async_fn_in_trait)]
pub trait Locker: Sized {
    const NAME: &'static str;
    type Held;

    async fn connect(url: &str) -> Result<Self>;

    /// Acquires a lock without a timeout.
    async fn lock(&mut self, name: &str) -> Result<Self::Held>;

    async fn unlock(&mut self, held: Self::Held) -> Result<()>;
}

/// The complete `main` of a peer.
pub async fn lock_main<L: Locker>() -> Result<()> {
    let url = std::env::var("REDIS_URL").context("REDIS_URL is not set")?;
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let figures = match words[..] {
        ["lock", locks] => lock::<L>(&url, locks.parse()?).await?,
        ["hand-over", locks] => hand_over::<L>(&url, locks.parse()?).await?,
        ["take"] => return take::<L>(&url).await,
        ["wait"] => return wait::<L>(&url).await,
        _ => bail!("usage: REDIS_URL=.. PEER lock N | hand-over N | take | wait"),
    };
    println!("{}", serde_json::to_string(&figures)?);
    Ok(())
}

async fn lock<L: Locker>(url: &str, locks: usize) -> Result<Figures> {
    let mut peer = L::connect(url).await?;
    let mut millis = Vec::new();
    let begin = Instant::now();
    for index in 0..WARMUP_LOCKS + locks {
        let begin = Instant::now();
        let held = peer.lock(UNCONTENDED_LOCK).await?;
        peer.unlock(held).await?;
        if index >= WARMUP_LOCKS {
            millis.push(begin.elapsed().as_secs_f64() * 1_000.0);
        }
    }
    Ok(Figures::times(L::NAME, locks, begin.elapsed(), millis))
}

/// Measures from the call of the release until a waiter in another process holds the lock.
async fn hand_over<L: Locker>(url: &str, locks: usize) -> Result<Figures> {
    let mut peer = L::connect(url).await?;
    let mut held = peer.lock(&lock_name(0)).await?;
    let mut taker = Worker::start(&["take"]).await?;
    let mut millis = Vec::new();
    let begin = Instant::now();
    for number in 0..WARMUP_LOCKS + locks {
        // Acquires the next lock before the child can.
        let next = peer.lock(&lock_name(number + 1)).await?;
        tokio::time::sleep(pause_before(number)).await;
        let called = monotonic_us();
        peer.unlock(held).await?;
        let start = tokio::time::timeout(START_TIMEOUT, taker.next_start())
            .await
            .context("the child does not acquire the lock")??;
        ensure!(start.number == number, "lock {} was acquired instead of {number}", start.number);
        if number >= WARMUP_LOCKS {
            millis.push((start.monotonic_us as f64 - called as f64) / 1_000.0);
        }
        held = next;
    }
    Ok(Figures::times(L::NAME, locks, begin.elapsed(), millis))
}

fn lock_name(number: usize) -> String {
    format!("handed:{number}")
}

async fn take<L: Locker>(url: &str) -> Result<()> {
    let mut peer = L::connect(url).await?;
    println!("ready");
    for number in 0.. {
        let held = peer.lock(&lock_name(number)).await?;
        report_start(number);
        peer.unlock(held).await?;
    }
    Ok(())
}

/// Waits for a lock that it holds itself.
async fn wait<L: Locker>(url: &str) -> Result<()> {
    let mut peer = L::connect(url).await?;
    let _held = peer.lock(UNCONTENDED_LOCK).await?;
    let ready = async {
        tokio::time::sleep(WAIT_DELAY).await;
        println!("ready");
    };
    let (waited, ()) = tokio::join!(peer.lock(UNCONTENDED_LOCK), ready);
    waited?;
    bail!("the lock expired before the wait for it timed out")
}
