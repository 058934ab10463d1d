//! List on Redis: the same measurements as on SQLite.

use anyhow::Result;

use super::duly_side::{self, DEFAULTS};
use super::server::RedisServer;
use crate::config::BenchConfig;
use crate::list::{fill_store, measure, store_sizes};
use crate::report::ReportLine;

const GROUP: &str = "redis-list";

pub(crate) async fn run(config: &BenchConfig) -> Result<Vec<ReportLine>> {
    let servers = [RedisServer::start().await?, RedisServer::start().await?];
    let mut stores = Vec::new();
    for (server, size) in servers.iter().zip(store_sizes(config)) {
        let duly = duly_side::open(server, DEFAULTS).await?;
        fill_store(&duly, size).await?;
        stores.push(duly);
    }
    measure(GROUP, config, &stores).await
}
