//! Cron on a server: the same figures as in a file.

use anyhow::Result;

use super::duly_side;
use super::server::Server;
use crate::config::{DEFAULTS, Setting};
use crate::cron::measure;
use crate::report::Line;

pub(crate) async fn run(setting: &Setting) -> Result<Vec<Line>> {
    let server = Server::start().await?;
    let duly = duly_side::open(&server, DEFAULTS).await?;
    let child = duly_side::work(&server, DEFAULTS)?;
    let lines = measure("redis-cron", setting, &duly, &child).await?;
    child.kill()?;
    Ok(lines)
}
