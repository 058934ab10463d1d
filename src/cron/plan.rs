//! Decides which ticks of a rule fire now, and which one is next. Pure logic: the store gives the time.

use std::time::{Duration, SystemTime};

use super::rule::{CronRule, Missed, Overlap, tick_job_id};
use super::{Schedule, cron_unique_key};
use crate::clock::{Micros, from_micros, micros, to_micros};
use crate::job::push::Push;
use crate::store::{CronFiring, CronRecord, OverlapWait};

/// A tick that fires later than this counts as missed.
/// Long enough for a failover or a restart, which should not trigger the [`Missed`] policy.
pub const MISSED_AFTER: Duration = Duration::from_secs(10);
/// Maximum missed ticks of a rule that fire later.
pub const MISSED_TICKS_MAX: u32 = 1_000;
/// Maximum ticks to scan: enough for a window that reaches back twice as far as needed, with a tick each second.
const TICKS_SCANNED_MAX: usize = 4 * MISSED_TICKS_MAX as usize;
/// The shortest interval between two ticks of a rule.
const TICK_INTERVAL_MIN: Micros = 1_000_000;

/// Maximum jobs, and maximum bytes of their args, in one request to the store. The rest follows in the next request, so
/// that other clients get their turn in between.
pub(crate) const FIRE_JOBS_MAX: usize = 300;
pub(crate) const FIRE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Returns the request to the store for a rule with a due tick.
pub(crate) fn plan_firing(schedule: &Schedule, record: &CronRecord, now: SystemTime) -> Option<CronFiring> {
    let (tick, now) = (to_micros(record.next?), to_micros(now));
    let mut ticks = ticks_to_fire(schedule, record, tick, now);
    let max = (FIRE_BYTES_MAX / record.rule.args.len().max(1)).clamp(1, FIRE_JOBS_MAX);
    let postponed = ticks.get(max).copied();
    ticks.truncate(max);
    let jobs: Vec<Push> = ticks.iter().map(|tick| job_for_tick(&record.rule, *tick)).collect();
    Some(CronFiring {
        name: record.rule.name.clone(),
        revision: record.revision,
        tick: from_micros(tick),
        next: postponed.or_else(|| schedule.next_after(now.max(tick))).map(from_micros),
        last: ticks.last().map(|tick| from_micros(*tick)),
        jobs,
        overlap_wait: match record.rule.overlap {
            Overlap::Allow | Overlap::Skip => OverlapWait::Never,
            Overlap::Queue => OverlapWait::WhileRunning,
            Overlap::Replace => OverlapWait::WhileUnfinished,
        },
    })
}

/// Returns the ticks to fire, oldest first: all that are on time, and as many missed ones as the rule wants.
fn ticks_to_fire(schedule: &Schedule, record: &CronRecord, first: Micros, now: Micros) -> Vec<Micros> {
    let wanted = match record.rule.missed {
        Missed::Skip => 0,
        Missed::Once => 1,
        Missed::All(max) => max.min(MISSED_TICKS_MAX) as usize,
    };
    // A tick that waited for another job is late on purpose.
    let on_time = |tick: Micros| tick >= now - micros(MISSED_AFTER) || (record.waiting && tick == first);
    let missed_count = |ticks: &[Micros]| ticks.iter().filter(|tick| !on_time(**tick)).count();
    // The window doubles until it holds enough ticks, so that a month of one tick per second is not scanned as a whole.
    // If it holds more than can be scanned, it is bisected: the newest ticks count.
    let (mut window, mut too_short, mut too_long) = (micros(MISSED_AFTER), 0, None);
    let all = loop {
        let all = ticks_between(schedule, first, first.max(now.saturating_sub(window)), now);
        let too_many = all.len() == TICKS_SCANNED_MAX && window - too_short > TICK_INTERVAL_MIN;
        if !too_many && (missed_count(&all) >= wanted || now.saturating_sub(window) <= first) {
            break all;
        }
        if too_many {
            too_long = Some(window);
        } else {
            too_short = window;
        }
        window = too_long.map_or(window.saturating_mul(2), |too_long| too_short + (too_long - too_short) / 2);
    };
    // After the clock was behind, ticks that had fired before seem to be missed.
    let fired = record.last.map(to_micros).filter(|last| *last <= now).unwrap_or(Micros::MIN);
    let all: Vec<Micros> = all.into_iter().filter(|tick| *tick > fired).collect();
    let missed: Vec<Micros> = all.iter().copied().filter(|tick| !on_time(*tick)).collect();
    let mut ticks: Vec<Micros> = missed[missed.len().saturating_sub(wanted)..].to_vec();
    if record.waiting && !all.contains(&first) {
        ticks.push(first);
    }
    ticks.extend(all.into_iter().filter(|tick| on_time(*tick)));
    // Without overlap, only the newest tick fires.
    if record.rule.overlap != Overlap::Allow {
        ticks.drain(..ticks.len().saturating_sub(1));
    }
    ticks
}

/// Returns the ticks from `from` to now. `first` counts even if the pattern no longer matches it after a change.
fn ticks_between(schedule: &Schedule, first: Micros, from: Micros, now: Micros) -> Vec<Micros> {
    let start = if from <= first { Some(first) } else { schedule.next_after(from - 1) };
    let ticks = std::iter::successors(start, |tick| schedule.next_after(*tick));
    ticks.take_while(|tick| *tick <= now).take(TICKS_SCANNED_MAX).collect()
}

fn job_for_tick(rule: &CronRule, tick: Micros) -> Push {
    let id = tick_job_id(&rule.name, tick);
    let push = rule.to_push().id(id);
    let jitter = micros(rule.jitter).unsigned_abs();
    if jitter == 0 {
        return push;
    }
    // Derived from the id, which is as good as random and the same on every node.
    let (seed, _) = id.as_bytes().split_first_chunk::<8>().expect("an id has 16 bytes");
    let delay = Duration::from_micros(u64::from_be_bytes(*seed) % (jitter + 1));
    push.at(from_micros(tick) + delay)
}

/// Returns the first tick of a rule that is new or was resumed.
pub(crate) fn first_tick(schedule: &Schedule, last: Option<SystemTime>, now: SystemTime) -> Option<SystemTime> {
    // Not before the last fired tick, in case the clock was set back a little. If it was set back further, a rule that
    // waited for the last tick would stop.
    let last = last.filter(|last| *last <= now + MISSED_AFTER);
    let from = to_micros(now).max(last.map_or(Micros::MIN, to_micros));
    schedule.next_after(from).map(from_micros)
}

/// Returns the rule with its next tick planned again, if that tick is too late: it was planned while the clock was ahead.
/// A tick that waits for a job is checked again at once.
pub(crate) fn plan_again(schedule: &Schedule, record: &CronRecord, now: SystemTime) -> Option<CronRecord> {
    let first = first_tick(schedule, record.last, now);
    let is_late = match (record.next, first) {
        (Some(next), Some(first)) => next > first,
        (next, first) => next.is_none() && first.is_some(),
    };
    let revision = record.revision.saturating_add(1);
    if record.paused || !(is_late || record.waiting) {
        return None;
    }
    Some(match is_late {
        true => CronRecord { next: first, waiting: false, revision, ..record.clone() },
        false => CronRecord { revision, ..record.clone() },
    })
}

/// Returns the next tick of a changed rule. A tick that is due already is kept.
pub(crate) fn next_tick(schedule: &Schedule, record: &CronRecord, now: SystemTime) -> Option<SystemTime> {
    match record.next.filter(|next| !record.paused && (*next <= now || record.waiting)) {
        Some(due) => Some(due),
        None => first_tick(schedule, record.last, now),
    }
}

impl CronRecord {
    /// Returns the unique key of its jobs, if the rule forbids overlap.
    #[must_use]
    pub fn unique_key(&self) -> Option<String> {
        (self.rule.overlap != Overlap::Allow).then(|| cron_unique_key(&self.rule.name))
    }
}
