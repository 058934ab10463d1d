//! List on a server: a page of 50 by each filter that has an index, and the counts, when a million jobs wait, against ten thousand.

use std::cell::Cell;
use std::time::Duration;

use anyhow::Result;
use duly::{Ctx, Duly, Push};

use super::ours::{self, DEFAULTS};
use super::server::Server;
use crate::growth::FEW;
use crate::list::{FILTERS, measure, of, schedule};
use crate::report::Line;
use crate::setting::{Setting, fill};
use crate::worker::Working;

const GROUP: &str = "redis-list";
/// Dead and done jobs beside ten thousand that wait, and beside a million.
const ENDED_FEW: usize = 5_000;
const ENDED_MANY: usize = 100_000;
/// Jobs at once of the worker that ends them.
const CONCURRENCY: usize = 1_000;
/// Kept for so long, all alike.
const KEEP: Duration = Duration::from_secs(24 * 3600);

/// Of what has ended.
const ENDED: [&str; 5] =
    ["state:dead", "state:dead kind:k3", "state:dead tag:t42", "state:dead since:1h", "state:done since:1h"];

pub(crate) async fn run(setting: &Setting) -> Result<Vec<Line>> {
    let (few, many) = (Server::start(setting).await?, Server::start(setting).await?);
    let mut stores = Vec::new();
    let ended = if setting.quick { ENDED_FEW } else { ENDED_MANY };
    for (server, jobs, ended) in [(&few, FEW, ENDED_FEW), (&many, setting.many(), ended)] {
        let duly = ours::open(server, DEFAULTS).await?;
        end(&duly, ended).await?;
        schedule(&duly, jobs).await?;
        stores.push(duly);
    }
    let filters: Vec<&str> = FILTERS.iter().chain(&ENDED).copied().collect();
    measure(GROUP, setting, &stores, &filters).await
}

/// So many jobs die, and a tenth as many are done.
async fn end(duly: &Duly, jobs: usize) -> Result<()> {
    let n = Cell::new(0u32);
    fill(duly, jobs, || {
        n.set(n.get() + 1);
        of(n.get()).max_attempts(1)
    })
    .await?;
    fill(duly, jobs / 10, || Push::new("done", "null").keep(KEEP)).await?;
    let ends = |ctx: Ctx| async move {
        match ctx.job().kind.as_str() {
            "done" => Ok(()),
            _ => Err("no such thing"),
        }
    };
    let working = Working::start(duly.worker().queue("default", CONCURRENCY).on_any_kind(ends)).await?;
    working.settled(jobs + jobs / 10).await;
    working.stop().await?;
    Ok(())
}
