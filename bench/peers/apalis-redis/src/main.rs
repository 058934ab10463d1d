//! apalis with apalis-redis, in the fastest settings found: batches as large as the concurrency, no second write to lock a job,
//! no events, one poll per 100 ms.
//!
//! Each push uses its set of scheduled jobs, and each fetch takes all due jobs in one Lua call. With 8,000 waiting jobs the
//! worker fails, so it is measured with fewer. Due times are whole seconds. Done jobs stay in Redis.

use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, anyhow};
use apalis::prelude::*;
use apalis_redis::{Client, Config, ConnectionManager, RedisStorage};
use peer_kit::{Args, BULK, Peer, RunCounter};
use redis::aio::ConnectionManagerConfig;

/// The polling interval of the worker. With shorter ones, some jobs were never started in our trials.
const POLL: Duration = Duration::from_millis(100);
/// Longest wait for a reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);
const QUEUE: &str = "bench";

struct ApalisRedis {
    storage: RedisStorage<Args>,
    conn: ConnectionManager,
}

impl Peer for ApalisRedis {
    const NAME: &'static str = "apalis-redis 1.0";

    async fn connect(url: &str) -> Result<Self> {
        let conn = connect(url).await?;
        Ok(ApalisRedis { storage: storage(conn.clone(), BULK), conn })
    }

    async fn push_bulk(&mut self, args: &Args, jobs: usize) -> Result<()> {
        for at in (0..jobs).step_by(BULK) {
            let batch = vec![args.clone(); BULK.min(jobs - at)];
            self.storage.push_bulk(batch).await.map_err(|e| anyhow!("{e}"))?;
        }
        Ok(())
    }

    async fn push(&mut self, args: Args) -> Result<()> {
        self.storage.push(args).await.map_err(|e| anyhow!("{e}"))
    }

    async fn push_at(&mut self, args: Args, due: SystemTime) -> Result<()> {
        let task = TaskBuilder::new(args).run_at_time(due).build();
        self.storage.push_task(task).await.map_err(|e| anyhow!("{e}"))
    }

    async fn work(url: String, concurrency: usize, ran: RunCounter) -> Result<()> {
        let storage = storage(connect(&url).await?, concurrency);
        let handler = move |args: Args| {
            let ran = ran.clone();
            async move {
                ran.run(args).await;
                Ok::<(), BoxDynError>(())
            }
        };
        // Each node needs a unique name.
        let name = format!("bench-{}", std::process::id());
        let worker = WorkerBuilder::new(name).backend(storage.poll_with_interval(POLL)).build(handler);
        // A separate task: as a part of this future, the worker would make it not `Send`.
        tokio::spawn(worker.run()).await?.context("the worker has failed")
    }

    async fn recorded(&mut self, jobs: usize) -> Result<bool> {
        let key = self.storage.get_config().done_jobs_set();
        let done: usize = redis::cmd("SCARD").arg(key).query_async(&mut self.conn).await?;
        Ok(done >= jobs)
    }
}

async fn connect(url: &str) -> Result<ConnectionManager> {
    // The default is half a second, after which the worker fails.
    let config = ConnectionManagerConfig::new().set_response_timeout(Some(REPLY_TIMEOUT));
    Ok(Client::open(url)?.get_connection_manager_with_config(config).await?)
}

fn storage(conn: ConnectionManager, batch: usize) -> RedisStorage<Args> {
    let config = Config::default().queue(QUEUE).batch_size(batch).lock_tasks(false).emit_events(false);
    RedisStorage::new(conn).with_config(config)
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<()> {
    peer_kit::main::<ApalisRedis>().await
}
