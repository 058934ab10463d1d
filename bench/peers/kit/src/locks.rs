//! Peers that lock: one that nobody else wants, and ones that somebody in another process waits for.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::Figures;
use crate::start_reports::{PATIENCE, Worker, monotonic_us, step, tell};

/// How long every lock lasts.
pub const LOCK_TTL: Duration = Duration::from_secs(30);
/// So many are taken before the measuring begins.
const WARM: usize = 5;
/// The lock that nobody else wants.
const LONE: &str = "lone";
/// From the start of a wait until it is said to be under way.
const SETTLING: Duration = Duration::from_millis(500);

/// A peer's own library.
#[allow(async_fn_in_trait)]
pub trait Locker: Sized {
    const NAME: &'static str;
    type Held;

    async fn connect(url: &str) -> Result<Self>;

    /// Takes a lock, however long that takes.
    async fn lock(&mut self, name: &str) -> Result<Self::Held>;

    async fn unlock(&mut self, held: Self::Held) -> Result<()>;
}

/// The whole of a peer's `main`.
pub async fn lock_main<L: Locker>() -> Result<()> {
    let url = std::env::var("REDIS_URL").context("REDIS_URL says where Redis is")?;
    let given: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = given.iter().map(String::as_str).collect();
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
    for at in 0..WARM + locks {
        let begin = Instant::now();
        let held = peer.lock(LONE).await?;
        peer.unlock(held).await?;
        if at >= WARM {
            millis.push(begin.elapsed().as_secs_f64() * 1_000.0);
        }
    }
    Ok(Figures::times(L::NAME, locks, begin.elapsed(), millis))
}

/// From the call of the release until another process, which has waited for it, holds the lock.
async fn hand_over<L: Locker>(url: &str, locks: usize) -> Result<Figures> {
    let mut peer = L::connect(url).await?;
    let mut held = peer.lock(&name(0)).await?;
    let mut taker = Worker::start(&["take"]).await?;
    let mut millis = Vec::new();
    let begin = Instant::now();
    for no in 0..WARM + locks {
        // Before the other one can get there.
        let next = peer.lock(&name(no + 1)).await?;
        tokio::time::sleep(step(no)).await;
        let called = monotonic_us();
        peer.unlock(held).await?;
        let start = tokio::time::timeout(PATIENCE, taker.next_start()).await.context("a lock is not got")??;
        ensure!(start.no == no, "lock {} was got instead of {no}", start.no);
        if no >= WARM {
            millis.push((start.monotonic_us as f64 - called as f64) / 1_000.0);
        }
        held = next;
    }
    Ok(Figures::times(L::NAME, locks, begin.elapsed(), millis))
}

fn name(no: usize) -> String {
    format!("handed:{no}")
}

async fn take<L: Locker>(url: &str) -> Result<()> {
    let mut peer = L::connect(url).await?;
    println!("ready");
    for no in 0.. {
        let held = peer.lock(&name(no)).await?;
        tell(no);
        peer.unlock(held).await?;
    }
    Ok(())
}

/// Waits for a lock that it holds itself.
async fn wait<L: Locker>(url: &str) -> Result<()> {
    let mut peer = L::connect(url).await?;
    let _held = peer.lock(LONE).await?;
    let ready = async {
        tokio::time::sleep(SETTLING).await;
        println!("ready");
    };
    let (waited, ()) = tokio::join!(peer.lock(LONE), ready);
    waited?;
    bail!("the lock has ended before the wait for it")
}
