//! Measurements on Redis: duly compared to its peers and to bare commands, on a private server.

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
mod push_paths;
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
pub(crate) use lateness::run as lateness;
pub(crate) use lifecycle::run as lifecycle;
pub(crate) use list::run as list;
pub(crate) use lock::run as lock;
pub(crate) use memory::run as memory;
pub(crate) use peers_table::run as peers;
pub(crate) use push::run as push;
pub(crate) use push_paths::run as push_paths;
pub(crate) use round_trip::{run_echo, run_popper};
pub(crate) use sidekiq::run as sidekiq_drain;
pub(crate) use wake::run as wake;

use crate::config::BenchConfig;
use crate::redis::peers::RedisPeer;
use crate::report::{ReportLine, Unit};
use crate::stats::Comparison;

/// Fewer rounds: one of a peer takes many seconds.
const ROUNDS_MAX: usize = 3;

fn round_count(config: &BenchConfig) -> usize {
    config.round_count().min(ROUNDS_MAX)
}

fn print_round(group: &str, config: &BenchConfig, round: usize) {
    eprintln!("{group}: round {} of {}", round + 1, round_count(config));
}

/// The goal for the ratio of duly to the best peer.
#[derive(Clone, Copy)]
enum RatioGoal {
    /// More is better: at least this ratio to the largest figure.
    AtLeast(f64),
    /// Less is better: at most this ratio to the smallest figure.
    AtMost(f64),
}

/// Returns a line for each peer; the goal applies to the best peer for which `sets_goal` returns true.
fn compare_with_peers(
    lines: LineSpec<'_>,
    goal: RatioGoal,
    peers: &[RedisPeer],
    pairs: &[Comparison],
    sets_goal: impl Fn(&RedisPeer) -> bool,
) -> Vec<ReportLine> {
    let sides = || peers.iter().zip(pairs);
    let candidates = sides().filter(|(peer, _)| sets_goal(peer)).map(|(peer, pair)| (peer.name, pair.theirs.median()));
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

/// The common parts of the lines for several peers.
#[derive(Clone, Copy)]
struct LineSpec<'a> {
    group: &'static str,
    name: &'a str,
    unit: Unit,
}

/// Returns an empty comparison for each peer.
fn new_comparisons(peers: &[RedisPeer]) -> Vec<Comparison> {
    peers.iter().map(|_| Comparison::default()).collect()
}
