//! The paths of a push: CPU time of Redis per job, as a plain transaction and by each script.

use std::time::Duration;

use anyhow::Result;
use duly::admin::Capacity;
use duly::{Duly, JobId, Push, PushExt};

use super::duly_side::{self, KEEP_NONE};
use super::server::RedisServer;
use super::{print_round, round_count};
use crate::config::{BenchConfig, Noop};
use crate::report::{ReportLine, Unit};
use crate::stats::Comparison;

const GROUP: &str = "redis-push-paths";
/// Jobs per push.
const BATCHES: [usize; 3] = [1, 10, 100];
/// Jobs per round and side.
const JOBS: usize = 20_000;
/// More jobs than a round pushes.
const LARGE_CAPACITY: u64 = 1_000_000_000;
/// Later than the end of the measurement.
const LATER: Duration = Duration::from_secs(3_600);

pub(crate) async fn run(config: &BenchConfig) -> Result<Vec<ReportLine>> {
    let server = RedisServer::start().await?;
    let jobs = if config.is_quick { JOBS / 20 } else { JOBS };
    let (mut ready, mut scheduled) = (BATCHES.map(|_| Comparison::default()), BATCHES.map(|_| Comparison::default()));
    for round in 0..round_count(config) {
        for (index, batch) in BATCHES.into_iter().enumerate() {
            let now = || Noop::new().into();
            let later = || Noop::new().after(LATER);
            let chosen_id = || Noop::new().after(LATER).id(JobId::fresh());
            let unlimited = Capacity::unlimited();
            let transaction = measure_micros(&server, jobs, batch, unlimited, now).await?;
            // A queue with a capacity needs a script.
            let capacity = unlimited.jobs(LARGE_CAPACITY);
            ready[index].record(transaction, measure_micros(&server, jobs, batch, capacity, now).await?);
            let unchecked = measure_micros(&server, jobs, batch, unlimited, later).await?;
            scheduled[index].record(unchecked, measure_micros(&server, jobs, batch, unlimited, chosen_id).await?);
        }
        print_round(GROUP, config, round);
    }
    let line = |name: &str, batch: usize, other: &str, pair| {
        ReportLine::comparison(
            GROUP,
            format!("Redis CPU per {name} job pushed, batch {batch}"),
            Unit::Micros,
            other,
            pair,
        )
    };
    let ready = BATCHES.iter().zip(&ready).map(|(batch, pair)| line("ready", *batch, "with a capacity", pair));
    let scheduled =
        BATCHES.iter().zip(&scheduled).map(|(batch, pair)| line("scheduled", *batch, "with a chosen id", pair));
    Ok(ready.chain(scheduled).collect())
}

/// Returns the CPU time of Redis per job, in microseconds.
async fn measure_micros(
    server: &RedisServer,
    jobs: usize,
    batch: usize,
    capacity: Capacity,
    job: impl Fn() -> Push,
) -> Result<f64> {
    server.flush().await?;
    let duly: Duly = duly_side::open(server, KEEP_NONE).await?;
    duly.queues().set_capacity("default", capacity).await?;
    // Loads the script, and reports to the client that the queue has no capacity.
    duly.push(job()).await?;
    let before = server.cpu_time().await?;
    for _ in 0..jobs / batch {
        duly.push_all((0..batch).map(|_| job())).await?;
    }
    Ok((server.cpu_time().await? - before).as_secs_f64() * 1e6 / jobs as f64)
}
