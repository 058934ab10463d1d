//! Which ticks of a rule are fired now, and which is the next. Pure: the store says what time it is.

use std::time::{Duration, SystemTime};

use super::rule::{CronRule, Missed, Overlap, tick_job_id};
use super::{Schedule, cron_unique_key};
use crate::clock::{Micros, from_micros, micros, to_micros};
use crate::job::push::Push;
use crate::store::{CronFiring, CronRecord, OverlapWait};

/// A tick that is fired later than this counts as missed: nobody was there at its time.
/// Long enough for a failover or a restart, in which no tick should go by [`Missed`].
pub const MISSED_AFTER: Duration = Duration::from_secs(10);
/// Most missed ticks of a rule that are made up for.
pub const MISSED_TICKS_MAX: u32 = 1_000;
/// Most ticks that are looked at: a window that reaches back twice as far as is needed, each second.
const TICKS_SCANNED_MAX: usize = 4 * MISSED_TICKS_MAX as usize;
/// No rule has two ticks within less.
const TICK_INTERVAL_MIN: Micros = 1_000_000;

/// Most jobs, and most bytes of their args, that are fired in one step of the store: what is left comes with the next, and
/// others have their turn between.
pub(crate) const FIRE_JOBS_MAX: usize = 300;
pub(crate) const FIRE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// What to ask of the store for a rule that has a tick due.
pub(crate) fn plan_firing(schedule: &Schedule, record: &CronRecord, now: SystemTime) -> Option<CronFiring> {
    let (tick, now) = (to_micros(record.next?), to_micros(now));
    let mut ticks = ticks_to_fire(schedule, record, tick, now);
    let most = (FIRE_BYTES_MAX / record.rule.args.len().max(1)).clamp(1, FIRE_JOBS_MAX);
    let left = ticks.get(most).copied();
    ticks.truncate(most);
    let jobs: Vec<Push> = ticks.iter().map(|tick| job_for_tick(&record.rule, *tick)).collect();
    Some(CronFiring {
        name: record.rule.name.clone(),
        revision: record.revision,
        tick: from_micros(tick),
        next: left.or_else(|| schedule.next_after(now.max(tick))).map(from_micros),
        last: ticks.last().map(|tick| from_micros(*tick)),
        jobs,
        overlap_wait: match record.rule.overlap {
            Overlap::Allow | Overlap::Skip => OverlapWait::Never,
            Overlap::Queue => OverlapWait::WhileRunning,
            Overlap::Replace => OverlapWait::WhileUnfinished,
        },
    })
}

/// The ticks to fire, oldest first: all that are on time, and of those that were missed as many as the rule wants.
fn ticks_to_fire(schedule: &Schedule, record: &CronRecord, first: Micros, now: Micros) -> Vec<Micros> {
    let wanted = match record.rule.missed {
        Missed::Skip => 0,
        Missed::Once => 1,
        Missed::All(most) => most.min(MISSED_TICKS_MAX) as usize,
    };
    // A tick that was held back has waited on purpose.
    let on_time = |tick: Micros| tick >= now - micros(MISSED_AFTER) || (record.waiting && tick == first);
    let missed_of = |all: &[Micros]| all.iter().filter(|tick| !on_time(**tick)).count();
    // Looks back twice as far each time, so that a rule that fires each second is not gone through for a whole month; and if
    // that meets more at once than are looked at, half-way: it is the newest that count.
    let (mut window, mut few, mut many) = (micros(MISSED_AFTER), 0, None);
    let all = loop {
        let all = ticks_between(schedule, first, first.max(now.saturating_sub(window)), now);
        let too_many = all.len() == TICKS_SCANNED_MAX && window - few > TICK_INTERVAL_MIN;
        if !too_many && (missed_of(&all) >= wanted || now.saturating_sub(window) <= first) {
            break all;
        }
        if too_many {
            many = Some(window);
        } else {
            few = window;
        }
        window = many.map_or(window.saturating_mul(2), |many| few + (many - few) / 2);
    };
    let missed: Vec<Micros> = all.iter().copied().filter(|tick| !on_time(*tick)).collect();
    let mut ticks: Vec<Micros> = missed[missed.len().saturating_sub(wanted)..].to_vec();
    if record.waiting && !all.contains(&first) {
        ticks.push(first);
    }
    ticks.extend(all.into_iter().filter(|tick| on_time(*tick)));
    // Of those that must not overlap the newest stands for all.
    if record.rule.overlap != Overlap::Allow {
        ticks.drain(..ticks.len().saturating_sub(1));
    }
    ticks
}

/// The ticks from `from` to now. The first one is one by itself: the pattern may have changed since it was chosen.
fn ticks_between(schedule: &Schedule, first: Micros, from: Micros, now: Micros) -> Vec<Micros> {
    let begin = if from <= first { Some(first) } else { schedule.next_after(from - 1) };
    let ticks = std::iter::successors(begin, |tick| schedule.next_after(*tick));
    ticks.take_while(|tick| *tick <= now).take(TICKS_SCANNED_MAX).collect()
}

fn job_for_tick(rule: &CronRule, tick: Micros) -> Push {
    let id = tick_job_id(&rule.name, tick);
    let push = rule.to_push().id(id);
    let jitter = micros(rule.jitter).unsigned_abs();
    if jitter == 0 {
        return push;
    }
    // From the id, which is as good as random and the same for whoever fires.
    let (dice, _) = id.as_bytes().split_first_chunk::<8>().expect("an id has 16 bytes");
    let delay = Duration::from_micros(u64::from_be_bytes(*dice) % (jitter + 1));
    push.at(from_micros(tick) + delay)
}

/// The first tick of a rule that is new, or comes back from a pause.
pub(crate) fn first_tick(schedule: &Schedule, last: Option<SystemTime>, now: SystemTime) -> Option<SystemTime> {
    // Not before the last one that was fired, in case the clock has gone back since.
    let from = to_micros(now).max(last.map_or(Micros::MIN, to_micros));
    schedule.next_after(from).map(from_micros)
}

/// The next tick of a rule that has been changed: one that is due already stays, so that it is not lost.
pub(crate) fn next_tick(schedule: &Schedule, record: &CronRecord, now: SystemTime) -> Option<SystemTime> {
    match record.next.filter(|next| !record.paused && (*next <= now || record.waiting)) {
        Some(due) => Some(due),
        None => first_tick(schedule, record.last, now),
    }
}

impl CronRecord {
    /// The unique key of its jobs, if no two of them may run at once.
    #[must_use]
    pub fn unique_key(&self) -> Option<String> {
        (self.rule.overlap != Overlap::Allow).then(|| cron_unique_key(&self.rule.name))
    }
}
