//! What the history costs: whole lives with it and without, in turn.

use std::time::Duration;

use anyhow::Result;

use crate::config::Setting;
use crate::lifecycle;
use crate::report::{Line, Unit};
use crate::stats::Pair;

const GROUP: &str = "history";
/// Batch sizes.
pub(crate) const BATCHES: [usize; 2] = [10, 100];
/// Options of a store that keeps no history.
const WITHOUT: &str = "?keep=0&history=off";
const WITH: &str = "?keep=0";
/// The least that is left of the throughput: it may cost 5 %.
pub(crate) const LEAST: f64 = 0.95;
/// A difference of a few percent drowns in what else a machine does: many rounds, each short, and each side first as often as
/// last.
const ROUNDS: usize = 50;

pub(crate) fn rounds(setting: &Setting) -> usize {
    if setting.quick { 2 } else { ROUNDS }
}

/// How long one side works in a round.
pub(crate) fn time(setting: &Setting) -> Duration {
    setting.time() / 5
}

pub(crate) async fn run(setting: &Setting) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    for batch in BATCHES {
        let mut pair = Pair::default();
        for round in 0..rounds(setting) {
            let dir = setting.fresh("history")?;
            let mut sides = [(WITH, 0.0), (WITHOUT, 0.0)];
            if round % 2 == 1 {
                sides.reverse();
            }
            for (at, (options, lives)) in sides.iter_mut().enumerate() {
                *lives = lifecycle::lives(&dir.join(format!("{at}.db")), options, batch, time(setting)).await?;
            }
            sides.sort_by_key(|(options, _)| options.len());
            pair.record(sides[0].1, sides[1].1);
        }
        eprintln!("{GROUP}, batch {batch}: {} rounds", rounds(setting));
        let name = format!("life with the history, batch {batch}");
        lines.push(Line::pair(GROUP, name, Unit::PerSecond, "history=off", &pair).ratio_at_least(LEAST));
    }
    Ok(lines)
}
