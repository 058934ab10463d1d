//! oxana, in the fastest settings found: one poll per 10 ms, instead of 10 s for an empty queue and 300 ms for scheduled
//! jobs, and enough connections for all jobs at once. Heartbeats and the timeout of a dead process have their defaults.

use std::convert::Infallible;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use async_trait::async_trait;
use oxana::{FromContext, Job, JobContext, Queue, QueueConfig, Storage, Worker};
use peer_kit::{Args, BULK, Peer, RunCounter};
use serde::{Deserialize, Serialize};

/// The polling interval for an empty queue and for scheduled jobs.
const POLL: Duration = Duration::from_millis(10);
/// Connections in addition to one for each job.
const SPARE: usize = 10;

struct Oxana(Storage);

#[derive(Clone, Copy)]
struct Bench;

impl Queue for Bench {
    fn to_config() -> QueueConfig {
        QueueConfig::as_static("bench")
    }
}

#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct Noop(Args);

impl Job for Noop {}

struct Handler(RunCounter);

impl FromContext<RunCounter> for Handler {
    fn from_context(ran: &RunCounter) -> Self {
        Handler(ran.clone())
    }
}

#[async_trait]
impl Worker<Noop> for Handler {
    type Error = Infallible;

    async fn process(&self, job: Noop, _ctx: &JobContext) -> Result<(), Infallible> {
        self.0.run(job.0).await;
        Ok(())
    }
}

impl Peer for Oxana {
    const NAME: &'static str = "oxana 2.5";

    async fn connect(url: &str) -> Result<Self> {
        Ok(Oxana(Storage::builder().build_from_redis_url(url)?))
    }

    async fn push_bulk(&mut self, args: &Args, jobs: usize) -> Result<()> {
        for at in (0..jobs).step_by(BULK) {
            let batch = (0..BULK.min(jobs - at)).map(|_| Noop(args.clone()));
            self.0.enqueue_list(Bench, batch).await?;
        }
        Ok(())
    }

    async fn push(&mut self, args: Args) -> Result<()> {
        self.0.enqueue(Bench, Noop(args)).await?;
        Ok(())
    }

    async fn push_at(&mut self, args: Args, due: SystemTime) -> Result<()> {
        self.0.enqueue_at(Bench, Noop(args), due.into()).await?;
        Ok(())
    }

    async fn work(url: String, concurrency: usize, ran: RunCounter) -> Result<()> {
        let storage = Storage::builder().max_pool_size(concurrency + SPARE).build_from_redis_url(url)?;
        let runtime = storage
            .runtime(ran)
            .queue_with_concurrency::<Bench>(concurrency)
            .worker::<Handler, Noop>()
            .dequeue_timeout(POLL)
            .schedule_poll_interval(POLL);
        runtime.run().await?;
        Ok(())
    }

    async fn recorded(&mut self, _jobs: usize) -> Result<bool> {
        Ok(self.0.jobs_count().await? == 0)
    }
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<()> {
    peer_kit::main::<Oxana>().await
}
