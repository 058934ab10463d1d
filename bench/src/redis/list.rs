//! List on a server: as in a file.

use anyhow::Result;

use super::duly_side::{self, DEFAULTS};
use super::server::RedisServer;
use crate::config::BenchConfig;
use crate::list::{fill_store, measure, store_sizes};
use crate::report::ReportLine;

const GROUP: &str = "redis-list";

pub(crate) async fn run(setting: &BenchConfig) -> Result<Vec<ReportLine>> {
    let servers = [RedisServer::start().await?, RedisServer::start().await?];
    let mut stores = Vec::new();
    for (server, size) in servers.iter().zip(store_sizes(setting)) {
        let duly = duly_side::open(server, DEFAULTS).await?;
        fill_store(&duly, size).await?;
        stores.push(duly);
    }
    measure(GROUP, setting, &stores).await
}
