//! A queue that the real Sidekiq has filled, drained by duly on Sidekiq's own keys, by Sidekiq, and by rusty-sidekiq.

use anyhow::{Context, Result};
use duly::{Args, Ctx, Duly};
use serde::{Deserialize, Serialize};

use super::duly_side;
use super::peers::Peer;
use super::server::Server;
use super::{Goal, Lines, against, pairs, rounds, told};
use crate::config::{Noop, Setting};
use crate::report::{Line, Unit};

const GROUP: &str = "sidekiq-drain";
const JOBS: usize = 100_000;
const GOAL: f64 = 5.0;

/// The no-op as Ruby pushes it: its class, and a list of what it is called with.
#[derive(Serialize, Deserialize)]
struct OfRuby {
    noop: Noop,
}

impl Args for OfRuby {
    const KIND: &'static str = "Noop";
}

async fn run_one(_job: OfRuby, _ctx: Ctx) {}

pub(crate) async fn run(setting: &Setting) -> Result<Vec<Line>> {
    let peers = Peer::sidekiqs()?;
    let ruby = peers.first().context("Sidekiq is the first of them")?;
    let server = Server::start().await?;
    let jobs = if setting.quick { JOBS / 20 } else { JOBS };
    let mut drains = pairs(&peers);
    for round in 0..rounds(setting) {
        ruby.push(&server, jobs)?;
        let duly = Duly::open(duly_side::sidekiq_url(&server)).await?;
        let ours = duly_side::drain_by(&duly, jobs, |worker| worker.on(run_one)).await?;
        for (peer, pair) in peers.iter().zip(&mut drains) {
            server.flush().await?;
            ruby.push(&server, jobs)?;
            pair.record(ours, peer.drain(&server, jobs)?.per_s);
        }
        server.flush().await?;
        told(GROUP, setting, round);
    }
    let drain = Lines { group: GROUP, name: "drain of a real Sidekiq queue", unit: Unit::PerSecond };
    Ok(against(drain, Goal::AtLeast(GOAL), &peers, &drains, |_| true))
}
