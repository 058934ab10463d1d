//! rusty-sidekiq, in the fastest settings found: a connection for each task, none of them pinged before use.
//!
//! It has no bulk push, so many tasks push at once. It removes a job from Redis before it runs the job: a killed worker
//! loses it. It polls for scheduled jobs every 5 s and takes 10 of them (fixed in its code).

use std::time::{Duration, SystemTime};

use anyhow::Result;
use async_trait::async_trait;
use peer_kit::{Args, Peer, RunCounter};
use sidekiq::{Processor, ProcessorConfig, RedisConnectionManager, RedisPool, Worker};

/// Tasks that push at the same time.
const PUSHERS: usize = 50;
/// Connections that a worker needs in addition to one for each job: for its heartbeat and its two pollers.
const SPARE: usize = 5;
const QUEUE: &str = "default";

struct RustySidekiq(RedisPool);

struct Noop(RunCounter);

#[async_trait]
impl Worker<Args> for Noop {
    async fn perform(&self, args: Args) -> sidekiq::Result<()> {
        self.0.run(args).await;
        Ok(())
    }
}

impl Peer for RustySidekiq {
    const NAME: &'static str = "rusty-sidekiq 0.15";

    async fn connect(url: &str) -> Result<Self> {
        Ok(RustySidekiq(pool(url, PUSHERS).await?))
    }

    async fn push_bulk(&mut self, args: &Args, jobs: usize) -> Result<()> {
        let pushers: Vec<_> = (0..PUSHERS)
            .map(|at| {
                let (redis, args) = (self.0.clone(), args.clone());
                let share = jobs / PUSHERS + usize::from(at < jobs % PUSHERS);
                tokio::spawn(async move {
                    for _ in 0..share {
                        Noop::perform_async(&redis, args.clone()).await?;
                    }
                    anyhow::Ok(())
                })
            })
            .collect();
        for pusher in pushers {
            pusher.await??;
        }
        Ok(())
    }

    async fn push(&mut self, args: Args) -> Result<()> {
        Ok(Noop::perform_async(&self.0, args).await?)
    }

    async fn push_at(&mut self, args: Args, due: SystemTime) -> Result<()> {
        let wait = due.duration_since(SystemTime::now()).unwrap_or(Duration::ZERO);
        Ok(Noop::perform_in(&self.0, wait, args).await?)
    }

    async fn work(url: String, concurrency: usize, ran: RunCounter) -> Result<()> {
        let config = ProcessorConfig::default().num_workers(concurrency);
        let redis = pool(&url, concurrency + SPARE).await?;
        let mut processor = Processor::new(redis, vec![QUEUE.to_owned()]).with_config(config);
        processor.register(Noop(ran));
        processor.run().await;
        Ok(())
    }
}

async fn pool(url: &str, size: usize) -> Result<RedisPool> {
    let manager = RedisConnectionManager::new(url)?;
    Ok(bb8::Pool::builder().max_size(size as u32).test_on_check_out(false).build(manager).await?)
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<()> {
    peer_kit::main::<RustySidekiq>().await
}
