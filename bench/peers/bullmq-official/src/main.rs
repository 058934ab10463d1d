//! bullmq-official, BullMQ in Rust with the same scripts, in the fastest settings found: done jobs are not kept.

use std::time::SystemTime;

use anyhow::Result;
use bullmq::options::RedisConnectionOptions;
use bullmq::queue::BulkJob;
use bullmq::types::RemoveOnFinish;
use bullmq::worker::CancellationToken;
use bullmq::{Job, Queue, QueueOptions, Worker, WorkerOptions};
use peer_kit::{Args, BULK, Peer, RunCounter};
use serde_json::Value;

const QUEUE: &str = "bench";

struct BullmqOfficial(Queue);

impl Peer for BullmqOfficial {
    const NAME: &'static str = "bullmq-official 1.4";

    async fn connect(url: &str) -> Result<Self> {
        let options = QueueOptions::new().connection(RedisConnectionOptions::new().url(url));
        Ok(BullmqOfficial(Queue::with_options(QUEUE, options).await?))
    }

    async fn push_bulk(&mut self, args: &Args, jobs: usize) -> Result<()> {
        for at in (0..jobs).step_by(BULK) {
            let batch = (0..BULK.min(jobs - at)).map(|_| BulkJob::new("noop", args)).collect();
            self.0.add_bulk(batch).await?;
        }
        Ok(())
    }

    async fn push(&mut self, args: Args) -> Result<()> {
        self.0.add("noop", args).await?;
        Ok(())
    }

    async fn push_at(&mut self, args: Args, due: SystemTime) -> Result<()> {
        let wait = due.duration_since(SystemTime::now()).unwrap_or_default();
        self.0.add("report", args).delay(wait).await?;
        Ok(())
    }

    async fn work(url: String, concurrency: usize, ran: RunCounter) -> Result<()> {
        let options = WorkerOptions::new()
            .connection(RedisConnectionOptions::new().url(url))
            .concurrency(concurrency)
            .remove_on_complete(RemoveOnFinish::Bool(true))
            .remove_on_fail(RemoveOnFinish::Bool(true));
        let handler = move |job: Job, _stop: CancellationToken| {
            let ran = ran.clone();
            async move {
                ran.run(serde_json::from_value(job.data().clone())?).await;
                Ok(Value::Null)
            }
        };
        let _worker = Worker::with_options(QUEUE, handler, options).await?;
        std::future::pending().await
    }

    async fn recorded(&mut self, _jobs: usize) -> Result<bool> {
        Ok(self.0.count().await? == 0 && self.0.get_active_count().await? == 0)
    }
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<()> {
    peer_kit::main::<BullmqOfficial>().await
}
