//! Whole lives over HTTP: pushed, claimed, settled by workers that know nothing but requests.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use tokio::sync::Semaphore;

use super::client::{Client, request};
use super::{GROUP, Site};
use crate::config::{KEEP_NONE, open};
use crate::lifecycle::{AHEAD, lives};
use crate::report::{Line, Unit};
use crate::stats::Pair;

/// Jobs in one push, one claim and one settle.
const BATCH: usize = 100;
/// Workers, each with one request at a time: while one settles, another claims.
const WORKERS: usize = 2;
/// How long a claim waits for a job.
const WAIT_MS: u64 = 200;

/// One round of both sides, each on a file of its own.
pub(super) async fn round(dir: &Path, time: Duration, pair: &mut Pair) -> Result<()> {
    let duly = open(&dir.join("life.db"), KEEP_NONE).await?;
    let site = Site::start(&duly, 2 * WORKERS).await?;
    let (address, push) = (site.address, site.push(BATCH));
    // On a thread of their own, as the clients of pushes are.
    let ours = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        tokio::task::LocalSet::new().block_on(&runtime, over_http(address, push, time))
    });
    let ours = ours.await??;
    drop((site, duly));
    pair.record(ours, lives(&dir.join("library.db"), KEEP_NONE, BATCH, time).await?);
    Ok(())
}

pub(super) fn line(pair: &Pair) -> Line {
    Line::pair(GROUP, format!("life, batch {BATCH}"), Unit::PerSecond, "library", pair)
}

/// How far a round has come.
struct Round {
    begin: Instant,
    /// One permit for each settled job that nobody has pushed another for.
    settled: Semaphore,
    count: Cell<usize>,
    /// How many were pushed in all, once the last was.
    pushed: Cell<Option<usize>>,
    ended: RefCell<Duration>,
}

impl Round {
    /// Also if a worker has failed: what it held is settled by nobody.
    fn is_over(&self) -> bool {
        self.settled.is_closed() || self.pushed.get().is_some_and(|pushed| self.count.get() >= pushed)
    }
}

/// Lives a second, from the first push to the last settle; the one who pushes is never far ahead.
async fn over_http(address: SocketAddr, push: Vec<u8>, time: Duration) -> Result<f64> {
    let round = Rc::new(Round {
        begin: Instant::now(),
        settled: Semaphore::new(AHEAD * BATCH),
        count: Cell::new(0),
        pushed: Cell::new(None),
        ended: RefCell::default(),
    });
    let workers: Vec<_> = (0..WORKERS).map(|_| tokio::task::spawn_local(work_or_end(address, round.clone()))).collect();
    let (mut client, mut pushed) = (Client::connect(address).await?, 0);
    while round.begin.elapsed() < time {
        let Ok(settled) = round.settled.acquire_many(u32::try_from(BATCH)?).await else {
            break;
        };
        settled.forget();
        client.ask(&push).await?;
        pushed += BATCH;
    }
    round.pushed.set(Some(pushed));
    for worker in workers {
        worker.await??;
    }
    ensure!(round.count.get() == pushed, "{} of {pushed} jobs were acked", round.count.get());
    Ok(pushed as f64 / round.ended.borrow().as_secs_f64())
}

#[derive(Deserialize)]
struct Joined {
    id: String,
}

#[derive(Deserialize)]
struct Claimed<'a> {
    #[serde(borrow)]
    jobs: Vec<Job<'a>>,
}

#[derive(Deserialize)]
struct Job<'a> {
    id: &'a str,
    fence: u64,
}

/// Works; a worker that fails ends the round, so that nobody waits for what it would have settled.
async fn work_or_end(address: SocketAddr, round: Rc<Round>) -> Result<()> {
    let worked = work(address, &round).await;
    if worked.is_err() {
        round.settled.close();
    }
    worked
}

/// Joins, then claims and acks until the round is over.
async fn work(address: SocketAddr, round: &Round) -> Result<()> {
    let mut client = Client::connect(address).await?;
    let join = request(address, "POST", "/api/v1/nodes", r#"{"queues":["default"]}"#);
    let node: Joined = serde_json::from_slice(client.ask(&join).await?).context("joined")?;
    let path = format!("/api/v1/nodes/{}", node.id);
    let claim = format!(r#"{{"max":{BATCH},"wait_ms":{WAIT_MS}}}"#);
    let claim = request(address, "POST", &format!("{path}/claim"), &claim);
    while !round.is_over() {
        let claimed: Claimed<'_> = serde_json::from_slice(client.ask(&claim).await?).context("claimed")?;
        let jobs = claimed.jobs.len();
        if jobs == 0 {
            continue;
        }
        let end = |job: &Job<'_>| format!(r#"{{"id":"{}","fence":{},"outcome":"ack"}}"#, job.id, job.fence);
        let ends: Vec<String> = claimed.jobs.iter().map(end).collect();
        let body = format!(r#"{{"ends":[{}]}}"#, ends.join(","));
        let settle = request(address, "POST", &format!("{path}/settle"), &body);
        ensure!(client.ask(&settle).await? == br#"{"lost":[]}"#, "a job was lost");
        round.count.set(round.count.get() + jobs);
        round.settled.add_permits(jobs);
        *round.ended.borrow_mut() = round.begin.elapsed();
    }
    Ok(())
}
