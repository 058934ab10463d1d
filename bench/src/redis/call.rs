//! Calls on Redis: a call and its reply beside a bare message there and back.

use anyhow::Result;

use super::duly_side::{self, DEFAULTS};
use super::round_trip::ThereAndBack;
use super::server::Server;
use crate::call::Other;
use crate::config::Setting;
use crate::report::{Line, Unit};
use crate::stats::{Pair, Samples};

const GROUP: &str = "redis-call";
const CALLS: usize = 2_000;
const GOAL: f64 = 1.5;
const BARE: &str = "two bare one-way trips";

pub(crate) async fn run(setting: &Setting) -> Result<Vec<Line>> {
    let server = Server::start().await?;
    let calls = if setting.quick { CALLS / 20 } else { CALLS };
    let (mut one, mut any, mut slowest) = (Pair::default(), Pair::default(), Pair::default());
    for _ in 0..setting.rounds() {
        let Round { ours, any_one, bare } = round(&server, calls).await?;
        one.record(ours.median(), bare.median());
        any.record(any_one.median(), bare.median());
        slowest.record(ours.percentile(99.0), bare.percentile(99.0));
        server.flush().await?;
    }
    let line = |what: &str, pair| Line::pair(GROUP, format!("call and its reply, {what}"), Unit::Micros, BARE, pair);
    Ok(vec![line("p50", &one).ratio_at_most(GOAL), line("p99", &slowest), line("any one that answers, p50", &any)])
}

/// Microseconds of what was done in turn.
#[derive(Default)]
struct Round {
    ours: Samples,
    /// Whoever answers.
    any_one: Samples,
    bare: Samples,
}

async fn round(server: &Server, calls: usize) -> Result<Round> {
    let duly = duly_side::open(server, DEFAULTS).await?;
    let other = Other::start(&duly, &duly_side::url(server, DEFAULTS)).await?;
    let mut bare = ThereAndBack::start(server).await?;
    let mut round = Round::default();
    for _ in 0..calls {
        round.ours.record(other.call().await?);
        round.bare.record(bare.trip().await?);
        round.any_one.record(other.call_any().await?);
    }
    Ok(round)
}
