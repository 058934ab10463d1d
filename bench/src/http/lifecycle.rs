//! Whole lives over HTTP: pushed, claimed, settled by workers that know nothing but requests.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use tokio::sync::Semaphore;

use super::client::{HttpClient, build_request};
use super::{GROUP, TestServer};
use crate::config::{KEEP_NONE, open_store};
use crate::lifecycle::{BATCHES_IN_FLIGHT_MAX, measure_lifecycles};
use crate::report::{ReportLine, Unit};
use crate::stats::Comparison;

/// Jobs in one push, one claim and one settle.
const BATCH_JOBS: usize = 100;
/// Workers, each with one request at a time: while one settles, another claims.
const WORKERS: usize = 2;
/// How long a claim waits for a job.
const WAIT_MS: u64 = 200;

/// One round of both sides, each on a file of its own.
pub(super) async fn run_round(dir: &Path, time: Duration, pair: &mut Comparison) -> Result<()> {
    let duly = open_store(&dir.join("life.db"), KEEP_NONE).await?;
    let site = TestServer::start(&duly, 2 * WORKERS).await?;
    let (address, push) = (site.address, site.push_request(BATCH_JOBS));
    // On a thread of their own, as the clients of pushes are.
    let ours = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        tokio::task::LocalSet::new().block_on(&runtime, measure_over_http(address, push, time))
    });
    let ours = ours.await??;
    drop((site, duly));
    pair.record(ours, measure_lifecycles(&dir.join("library.db"), KEEP_NONE, BATCH_JOBS, time).await?);
    Ok(())
}

pub(super) fn report_line(pair: &Comparison) -> ReportLine {
    ReportLine::comparison(GROUP, format!("life, batch {BATCH_JOBS}"), Unit::PerSecond, "library", pair)
}

/// How far a round has come.
struct RoundState {
    started: Instant,
    /// One permit for each settled job that nobody has pushed another for.
    settled: Semaphore,
    settled_count: Cell<usize>,
    /// How many were pushed in all, once the last was.
    pushed_total: Cell<Option<usize>>,
    duration: RefCell<Duration>,
}

impl RoundState {
    /// Also if a worker has failed: what it held is settled by nobody.
    fn is_over(&self) -> bool {
        self.settled.is_closed() || self.pushed_total.get().is_some_and(|pushed| self.settled_count.get() >= pushed)
    }
}

/// Lives a second, from the first push to the last settle; the one who pushes is never far ahead.
async fn measure_over_http(address: SocketAddr, push: Vec<u8>, time: Duration) -> Result<f64> {
    let round = Rc::new(RoundState {
        started: Instant::now(),
        settled: Semaphore::new(BATCHES_IN_FLIGHT_MAX * BATCH_JOBS),
        settled_count: Cell::new(0),
        pushed_total: Cell::new(None),
        duration: RefCell::default(),
    });
    let workers: Vec<_> = (0..WORKERS).map(|_| tokio::task::spawn_local(run_worker(address, round.clone()))).collect();
    let (mut client, mut pushed) = (HttpClient::connect(address).await?, 0);
    while round.started.elapsed() < time {
        let Ok(settled) = round.settled.acquire_many(u32::try_from(BATCH_JOBS)?).await else {
            break;
        };
        settled.forget();
        client.request(&push).await?;
        pushed += BATCH_JOBS;
    }
    round.pushed_total.set(Some(pushed));
    for worker in workers {
        worker.await??;
    }
    ensure!(round.settled_count.get() == pushed, "{} of {pushed} jobs were acked", round.settled_count.get());
    Ok(pushed as f64 / round.duration.borrow().as_secs_f64())
}

#[derive(Deserialize)]
struct JoinResponse {
    id: String,
}

#[derive(Deserialize)]
struct ClaimResponse<'a> {
    #[serde(borrow)]
    jobs: Vec<ClaimedJob<'a>>,
}

#[derive(Deserialize)]
struct ClaimedJob<'a> {
    id: &'a str,
    fence: u64,
}

/// Works; a worker that fails ends the round, so that nobody waits for what it would have settled.
async fn run_worker(address: SocketAddr, round: Rc<RoundState>) -> Result<()> {
    let worked = claim_and_ack(address, &round).await;
    if worked.is_err() {
        round.settled.close();
    }
    worked
}

/// Joins, then claims and acks until the round is over.
async fn claim_and_ack(address: SocketAddr, round: &RoundState) -> Result<()> {
    let mut client = HttpClient::connect(address).await?;
    let join = build_request(address, "POST", "/api/v1/nodes", r#"{"queues":["default"]}"#);
    let node: JoinResponse = serde_json::from_slice(client.request(&join).await?).context("joined")?;
    let path = format!("/api/v1/nodes/{}", node.id);
    let claim = format!(r#"{{"max":{BATCH_JOBS},"wait_ms":{WAIT_MS}}}"#);
    let claim = build_request(address, "POST", &format!("{path}/claim"), &claim);
    while !round.is_over() {
        let claimed: ClaimResponse<'_> = serde_json::from_slice(client.request(&claim).await?).context("claimed")?;
        let jobs = claimed.jobs.len();
        if jobs == 0 {
            continue;
        }
        let end = |job: &ClaimedJob<'_>| format!(r#"{{"id":"{}","fence":{},"outcome":"ack"}}"#, job.id, job.fence);
        let ends: Vec<String> = claimed.jobs.iter().map(end).collect();
        let body = format!(r#"{{"ends":[{}]}}"#, ends.join(","));
        let settle = build_request(address, "POST", &format!("{path}/settle"), &body);
        ensure!(client.request(&settle).await? == br#"{"lost":[]}"#, "a job was lost");
        round.settled_count.set(round.settled_count.get() + jobs);
        round.settled.add_permits(jobs);
        *round.duration.borrow_mut() = round.started.elapsed();
    }
    Ok(())
}
