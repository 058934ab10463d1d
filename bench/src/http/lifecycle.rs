//! Lifecycles over HTTP: pushed, claimed and settled by workers that only send requests.

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

/// Jobs per push, claim and settle.
const BATCH_JOBS: usize = 100;
/// Workers with one request at a time: while one settles, another claims.
const WORKERS: usize = 2;
/// How long a claim waits for a job.
const WAIT_MS: u64 = 200;

/// Runs one round of both sides, each on its own file.
pub(super) async fn run_round(dir: &Path, time: Duration, pair: &mut Comparison) -> Result<()> {
    let duly = open_store(&dir.join("http.db"), KEEP_NONE).await?;
    let server = TestServer::start(&duly, 2 * WORKERS).await?;
    let (address, push) = (server.address, server.push_request(BATCH_JOBS));
    // On a separate thread, like the clients that push.
    let ours = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        tokio::task::LocalSet::new().block_on(&runtime, measure_over_http(address, push, time))
    });
    let ours = ours.await??;
    drop((server, duly));
    pair.record(ours, measure_lifecycles(&dir.join("library.db"), KEEP_NONE, BATCH_JOBS, time).await?);
    Ok(())
}

pub(super) fn report_line(pair: &Comparison) -> ReportLine {
    ReportLine::comparison(GROUP, format!("lifecycle, batch {BATCH_JOBS}"), Unit::PerSecond, "library", pair)
}

/// The progress of a round.
struct RoundState {
    started: Instant,
    /// One permit for each settled job that has not been replaced by a push.
    settled: Semaphore,
    settled_count: Cell<usize>,
    /// The number of pushed jobs, after the last push.
    pushed_total: Cell<Option<usize>>,
    duration: RefCell<Duration>,
}

impl RoundState {
    /// Returns true if all jobs are settled, or if a worker failed and its jobs never will be.
    fn is_over(&self) -> bool {
        self.settled.is_closed() || self.pushed_total.get().is_some_and(|pushed| self.settled_count.get() >= pushed)
    }
}

/// Returns lifecycles per second, from the first push to the last settle; pushes are at most a few batches ahead.
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

/// Runs a worker; its failure ends the round, because its jobs are never settled.
async fn run_worker(address: SocketAddr, round: Rc<RoundState>) -> Result<()> {
    let result = claim_and_ack(address, &round).await;
    if result.is_err() {
        round.settled.close();
    }
    result
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
        let to_json = |job: &ClaimedJob<'_>| format!(r#"{{"id":"{}","fence":{},"outcome":"ack"}}"#, job.id, job.fence);
        let outcomes: Vec<String> = claimed.jobs.iter().map(to_json).collect();
        let body = format!(r#"{{"outcomes":[{}]}}"#, outcomes.join(","));
        let settle = build_request(address, "POST", &format!("{path}/settle"), &body);
        ensure!(client.request(&settle).await? == br#"{"lost":[]}"#, "a job was lost");
        round.settled_count.set(round.settled_count.get() + jobs);
        round.settled.add_permits(jobs);
        *round.duration.borrow_mut() = round.started.elapsed();
    }
    Ok(())
}
