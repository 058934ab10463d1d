//! The baseline: LPUSH and RPOP of the same bytes through the same client, one request at a time per connection.
//!
//! It is not a job system: a killed process loses its popped jobs. The ratio to it is the overhead of duly.

use std::time::Instant;

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Client, cmd};
use anyhow::{Result, ensure};

use super::server::RedisServer;
use crate::config::{BULK_JOBS, noop_args};

const LIST_KEY: &str = "bare";

pub(super) struct RedisBaseline {
    conn: MultiplexedConnection,
    args: String,
}

impl RedisBaseline {
    pub(super) async fn connect(server: &RedisServer) -> Result<Self> {
        let client = Client::open(format!("{}?protocol=resp3", server.url()))?;
        let conn = client.get_multiplexed_async_connection_with_config(&AsyncConnectionConfig::new()).await?;
        Ok(RedisBaseline { conn, args: noop_args() })
    }

    /// Returns pushes per second, each awaited.
    pub(super) async fn measure_single_pushes(&mut self, jobs: usize) -> Result<f64> {
        let begin = Instant::now();
        for _ in 0..jobs {
            self.push(1).await?;
        }
        Ok(jobs as f64 / begin.elapsed().as_secs_f64())
    }

    /// Returns jobs per second, pushed in bulk.
    pub(super) async fn measure_bulk_pushes(&mut self, jobs: usize) -> Result<f64> {
        let begin = Instant::now();
        for pushed in (0..jobs).step_by(BULK_JOBS) {
            self.push(BULK_JOBS.min(jobs - pushed)).await?;
        }
        Ok(jobs as f64 / begin.elapsed().as_secs_f64())
    }

    /// Pushes and pops this many jobs, `batch` at a time, each batch awaited.
    pub(super) async fn push_and_pop(&mut self, batch: usize, jobs: usize) -> Result<()> {
        for _ in 0..jobs / batch {
            self.push(batch).await?;
            let popped: Vec<String> = cmd("RPOP").arg(LIST_KEY).arg(batch).query_async(&mut self.conn).await?;
            ensure!(popped.len() == batch, "{} of {batch} jobs were popped", popped.len());
        }
        Ok(())
    }

    async fn push(&mut self, jobs: usize) -> Result<()> {
        let mut push = cmd("LPUSH");
        push.arg(LIST_KEY);
        (0..jobs).for_each(|_| _ = push.arg(&self.args));
        Ok(push.query_async(&mut self.conn).await?)
    }
}
