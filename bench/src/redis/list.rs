//! List on a server: as in a file.

use anyhow::Result;

use super::duly_side::{self, DEFAULTS};
use super::server::Server;
use crate::config::Setting;
use crate::list::{furnish, measure, sizes};
use crate::report::Line;

const GROUP: &str = "redis-list";

pub(crate) async fn run(setting: &Setting) -> Result<Vec<Line>> {
    let servers = [Server::start().await?, Server::start().await?];
    let mut stores = Vec::new();
    for (server, size) in servers.iter().zip(sizes(setting)) {
        let duly = duly_side::open(server, DEFAULTS).await?;
        furnish(&duly, size).await?;
        stores.push(duly);
    }
    measure(GROUP, setting, &stores).await
}
