//! The same on Redis: duly beside its peers and beside bare commands, all on a server of our own.

mod baseline;
mod call;
mod cron;
mod drain;
mod duly_side;
mod failover;
mod growth;
mod history;
mod lateness;
mod lifecycle;
mod list;
mod lock;
mod lock_contention;
mod memory;
mod peers;
mod peers_table;
mod push;
mod round_trip;
mod server;
mod sidekiq;
mod wake;

pub(crate) use call::run as call;
pub(crate) use cron::run as cron;
pub(crate) use drain::run as drain;
pub(crate) use failover::run as failover;
pub(crate) use growth::run as growth;
pub(crate) use history::run as history;
pub(crate) use lateness::run as late;
pub(crate) use lifecycle::run as life;
pub(crate) use list::run as list;
pub(crate) use lock::run as lock;
pub(crate) use memory::run as memory;
pub(crate) use peers_table::run as peers;
pub(crate) use push::run as push;
pub(crate) use round_trip::{run_echo, run_popper};
pub(crate) use sidekiq::run as sidekiq_drain;
pub(crate) use wake::run as wake;

use crate::config::BenchConfig;
use crate::redis::peers::RedisPeer;
use crate::report::{ReportLine, Unit};
use crate::stats::Comparison;

/// A peer's round takes many seconds: fewer of them.
const ROUNDS_MAX: usize = 3;

fn round_count(setting: &BenchConfig) -> usize {
    setting.round_count().min(ROUNDS_MAX)
}

fn print_round(group: &str, setting: &BenchConfig, round: usize) {
    eprintln!("{group}: round {} of {}", round + 1, round_count(setting));
}

/// How duly should stand to the best peer.
#[derive(Clone, Copy)]
enum RatioGoal {
    /// More is better: at least so many times the most that a peer has.
    AtLeast(f64),
    /// Less is better: at most so many times the least that a peer has.
    AtMost(f64),
}

/// A line against each peer; the goal counts against the best of those that may set it.
fn compare_with_peers(
    lines: LineSpec<'_>,
    goal: RatioGoal,
    peers: &[RedisPeer],
    pairs: &[Comparison],
    may: impl Fn(&RedisPeer) -> bool,
) -> Vec<ReportLine> {
    let sides = || peers.iter().zip(pairs);
    let candidates = sides().filter(|(peer, _)| may(peer)).map(|(peer, pair)| (peer.name, pair.theirs.median()));
    let best = match goal {
        RatioGoal::AtLeast(_) => candidates.max_by(|a, b| a.1.total_cmp(&b.1)),
        RatioGoal::AtMost(_) => candidates.min_by(|a, b| a.1.total_cmp(&b.1)),
    };
    sides()
        .map(|(peer, pair)| {
            let line = ReportLine::comparison(lines.group, lines.name, lines.unit, peer.name, pair);
            match goal {
                _ if best.is_none_or(|(name, _)| name != peer.name) => line,
                RatioGoal::AtLeast(least) => line.ratio_at_least(least),
                RatioGoal::AtMost(most) => line.ratio_at_most(most),
            }
        })
        .collect()
}

/// What lines against several peers share.
#[derive(Clone, Copy)]
struct LineSpec<'a> {
    group: &'static str,
    name: &'a str,
    unit: Unit,
}

/// A pair for each peer.
fn new_comparisons(peers: &[RedisPeer]) -> Vec<Comparison> {
    peers.iter().map(|_| Comparison::default()).collect()
}
