//! The cost of the history, and of the records of attempts: lifecycles with and without them, in alternation.

use std::time::Duration;

use anyhow::Result;

use crate::config::BenchConfig;
use crate::lifecycle;
use crate::report::{ReportLine, Unit};
use crate::stats::Comparison;

const GROUP: &str = "history";
/// Batch sizes.
pub(crate) const BATCHES: [usize; 2] = [10, 100];
/// What a store can record or not: its name, the options of a store that does, and the option that switches it off.
/// Attempts are recorded only of jobs that are kept.
pub(crate) const RECORDS: [(&str, &str, &str); 2] =
    [("the history", "keep=0", "history=off"), ("attempts recorded", "keep=1h", "attempts=off")];
/// Either may cost 5 % of the throughput.
pub(crate) const GOAL_RATIO_MIN: f64 = 0.95;
/// Many short rounds with alternating order: a difference of a few percent is smaller than the noise of a machine.
const ROUNDS: usize = 50;

pub(crate) fn round_count(config: &BenchConfig) -> usize {
    if config.is_quick { 2 } else { ROUNDS }
}

/// Returns how long one side works in a round.
pub(crate) fn round_duration(config: &BenchConfig) -> Duration {
    config.round_duration() / 5
}

pub(crate) async fn run(config: &BenchConfig) -> Result<Vec<ReportLine>> {
    let mut lines = Vec::new();
    for (batch, (name, with, switch)) in BATCHES.into_iter().flat_map(|batch| RECORDS.map(|record| (batch, record))) {
        let mut pair = Comparison::default();
        for round in 0..round_count(config) {
            let dir = config.fresh_dir("history")?;
            let mut sides = [(format!("?{with}"), 0.0), (format!("?{with}&{switch}"), 0.0)];
            if round % 2 == 1 {
                sides.reverse();
            }
            for (index, (options, per_second)) in sides.iter_mut().enumerate() {
                *per_second = lifecycle::measure_lifecycles(
                    &dir.join(format!("{index}.db")),
                    options,
                    batch,
                    round_duration(config),
                )
                .await?;
            }
            sides.sort_by_key(|(options, _)| options.len());
            pair.record(sides[0].1, sides[1].1);
        }
        eprintln!("{GROUP}, {switch}, batch {batch}: {} rounds", round_count(config));
        let name = format!("lifecycle with {name}, batch {batch}");
        lines.push(ReportLine::comparison(GROUP, name, Unit::PerSecond, switch, &pair).ratio_at_least(GOAL_RATIO_MIN));
    }
    Ok(lines)
}
