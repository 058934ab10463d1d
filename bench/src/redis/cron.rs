//! Cron on Redis: the same measurements as on SQLite.

use anyhow::Result;

use super::duly_side;
use super::server::RedisServer;
use crate::config::{BenchConfig, DEFAULTS};
use crate::cron::measure;
use crate::report::ReportLine;

pub(crate) async fn run(config: &BenchConfig) -> Result<Vec<ReportLine>> {
    let server = RedisServer::start().await?;
    let duly = duly_side::open(&server, DEFAULTS).await?;
    let child = duly_side::start_worker(&server, DEFAULTS)?;
    let lines = measure("redis-cron", config, &duly, &child).await?;
    child.kill()?;
    Ok(lines)
}
