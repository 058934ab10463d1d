//! Cron on a server: the same figures as in a file.

use anyhow::Result;

use super::ours;
use super::server::Server;
use crate::cron::measure;
use crate::report::Line;
use crate::setting::{DEFAULTS, Setting};

pub(crate) async fn run(setting: &Setting) -> Result<Vec<Line>> {
    let server = Server::start().await?;
    let duly = ours::open(&server, DEFAULTS).await?;
    let child = ours::work(&server, DEFAULTS)?;
    let lines = measure("redis-cron", setting, &duly, &child).await?;
    child.kill()?;
    Ok(lines)
}
