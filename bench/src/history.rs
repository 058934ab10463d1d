//! What the history costs: whole lives with it and without, in turn.

use std::time::Duration;

use anyhow::Result;

use crate::config::BenchConfig;
use crate::lifecycle;
use crate::report::{ReportLine, Unit};
use crate::stats::Comparison;

const GROUP: &str = "history";
/// Batch sizes.
pub(crate) const BATCHES: [usize; 2] = [10, 100];
/// Options of a store that keeps no history.
const WITHOUT_HISTORY: &str = "?keep=0&history=off";
const WITH_HISTORY: &str = "?keep=0";
/// The least that is left of the throughput: it may cost 5 %.
pub(crate) const GOAL_RATIO_MIN: f64 = 0.95;
/// A difference of a few percent drowns in what else a machine does: many rounds, each short, and each side first as often as
/// last.
const ROUNDS: usize = 50;

pub(crate) fn round_count(setting: &BenchConfig) -> usize {
    if setting.is_quick { 2 } else { ROUNDS }
}

/// How long one side works in a round.
pub(crate) fn round_duration(setting: &BenchConfig) -> Duration {
    setting.round_duration() / 5
}

pub(crate) async fn run(setting: &BenchConfig) -> Result<Vec<ReportLine>> {
    let mut lines = Vec::new();
    for batch in BATCHES {
        let mut pair = Comparison::default();
        for round in 0..round_count(setting) {
            let dir = setting.fresh_dir("history")?;
            let mut sides = [(WITH_HISTORY, 0.0), (WITHOUT_HISTORY, 0.0)];
            if round % 2 == 1 {
                sides.reverse();
            }
            for (at, (options, lives)) in sides.iter_mut().enumerate() {
                *lives = lifecycle::measure_lifecycles(
                    &dir.join(format!("{at}.db")),
                    options,
                    batch,
                    round_duration(setting),
                )
                .await?;
            }
            sides.sort_by_key(|(options, _)| options.len());
            pair.record(sides[0].1, sides[1].1);
        }
        eprintln!("{GROUP}, batch {batch}: {} rounds", round_count(setting));
        let name = format!("life with the history, batch {batch}");
        lines.push(
            ReportLine::comparison(GROUP, name, Unit::PerSecond, "history=off", &pair).ratio_at_least(GOAL_RATIO_MIN),
        );
    }
    Ok(lines)
}
