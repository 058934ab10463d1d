//! Cron: at a tick of a queue this node works, its rules are read, what to push is worked out, and the store asked to do it.
//!
//! No node is special. Each that has time looks at the tick, and the store lets the first one fire it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::client::Duly;
use crate::clock;
use crate::cron::{self, FIRE_BYTES_MAX, FIRE_JOBS_MAX, Overlap, Schedule, rule_name_from_key};
use crate::error::{Error, Result};
use crate::job::{JobId, JobRecord, Outcome, State};
use crate::store::{ChangeResult, ChangeTarget, CronFiring, CronFiringResult, CronRecord, Store};
use crate::worker::queue_state::QueueState;
use crate::worker::run_loop::WorkerLoop;

/// After a look that has changed nothing although a tick is due, the next one waits so long.
const NOTHING_FIRED_DELAY: Duration = Duration::from_secs(1);
/// After a look that came before the tick, the next one waits so long at least: a test may have stopped the clock.
const EARLY_CHECK_DELAY: Duration = Duration::from_micros(200);
/// Others were quicker with every tick of a batch: let them, for a moment of at most this length.
const LOST_RACE_DELAY_MAX: Duration = Duration::from_millis(20);
/// Most rules that are remembered as free to go on; others are found again after a while.
const UNBLOCKED_RULES_MAX: usize = 1_000;

/// What came of a look at the ticks of a queue.
pub(super) struct TickReport {
    /// How many rules had a tick due, and how many of those were fired here.
    due_rules: usize,
    fired_rules: usize,
    /// How long until there may be another.
    next_tick: Option<Duration>,
    /// Rules whose way has been cleared.
    unblocked_rules: Vec<String>,
}

impl QueueState {
    /// When ticks should be fired next, as it looks at this moment.
    pub(super) fn next_fire_at(&self, now: Instant) -> Option<Instant> {
        let at = if self.unblocked_rules.is_empty() { self.tick_at } else { Some(now) };
        at.filter(|_| !self.fire_in_flight).map(|at| self.fire_not_before.map_or(at, |not_before| at.max(not_before)))
    }

    /// Whether the store has said that a tick is due, and it can be fired at this moment.
    pub(super) fn can_fire_due_tick(&self, now: Instant) -> bool {
        (self.tick_due || !self.unblocked_rules.is_empty()) && self.should_check_ticks(now)
    }

    /// Whether ticks are to be looked at, at this moment.
    pub(super) fn should_check_ticks(&self, now: Instant) -> bool {
        self.next_fire_at(now).is_some_and(|at| at <= now)
    }
}

impl WorkerLoop {
    /// Fires what has come due in each queue.
    pub(super) fn fire_ticks(&mut self, now: Instant) {
        if self.quiet {
            return;
        }
        for (at, lane) in self.queues.iter_mut().enumerate() {
            if !lane.should_check_ticks(now) {
                continue;
            }
            lane.fire_in_flight = true;
            lane.tick_at = None;
            let (queue, freed) = (lane.name.clone(), std::mem::take(&mut lane.unblocked_rules));
            let (store, duly) = (self.store.clone(), self.settings.duly.clone());
            self.requests.push(Box::pin(async move {
                crate::worker::claims::StoreReply::TicksFired(at, fire_batch(store, duly, &queue, freed).await)
            }));
        }
    }

    pub(super) fn handle_tick_report(&mut self, at: usize, ticked: Result<TickReport>) {
        let now = clock::monotonic_now();
        let again_in = self.backoff_delay(self.queues[at].fire_failures);
        let lane = &mut self.queues[at];
        lane.fire_in_flight = false;
        match ticked {
            Ok(ticked) => {
                lane.fire_failures = 0;
                let again = ticked.next_tick.map(|tick| now + tick);
                // A claim that was under way may have been told of an earlier one.
                lane.tick_at = [lane.tick_at, again].into_iter().flatten().min();
                lane.unblocked_rules.extend(ticked.unblocked_rules);
                lane.maybe_ready |= ticked.fired_rules > 0;
                lane.tick_due = ticked.next_tick.is_some_and(|tick| tick.is_zero());
                lane.fire_not_before = match (ticked.due_rules, ticked.fired_rules) {
                    (_, 1..) => None,
                    (0, 0) => Some(now + if lane.tick_due { NOTHING_FIRED_DELAY } else { EARLY_CHECK_DELAY }),
                    (_, 0) => Some(now + LOST_RACE_DELAY_MAX.mul_f64(fastrand::f64())),
                };
            }
            // A store without rules: nothing to fire, ever.
            Err(Error::Unsupported { .. }) => {}
            Err(error) => {
                lane.fire_failures = lane.fire_failures.saturating_add(1);
                (lane.tick_at, lane.tick_due) = (Some(now), true);
                lane.fire_not_before = Some(now + again_in);
                self.report_store_failure("fire_crons", &error, again_in);
            }
        }
    }

    /// A job has ended: if it was one of a rule that lets no two run at once, a tick may have waited for that.
    pub(super) fn unblock_cron_rule(&mut self, lane: usize, unique: Option<&str>, outcome: &Outcome) {
        let freed = &mut self.queues[lane].unblocked_rules;
        if let (Some(name), Outcome::Ack | Outcome::Bury { .. }) = (unique.and_then(rule_name_from_key), outcome)
            && freed.len() < UNBLOCKED_RULES_MAX
        {
            freed.push(name.to_owned());
        }
    }
}

/// Reads what is due, works out what to push, and asks for it.
async fn fire_batch(store: Arc<dyn Store>, duly: Duly, queue: &str, freed: Vec<String>) -> Result<TickReport> {
    let due = store.due_crons(queue, &freed).await?;
    let planned =
        due.rules.into_iter().filter_map(|record| plan_firing(&duly, &record, due.now).map(|fire| (record, fire)));
    let planned = take_first_batch(planned);
    if planned.is_empty() {
        return Ok(TickReport { due_rules: 0, fired_rules: 0, next_tick: due.next_tick, unblocked_rules: Vec::new() });
    }
    let (records, fires): (Vec<CronRecord>, Vec<CronFiring>) = planned.into_iter().unzip();
    let answer = store.fire_crons(queue, fires).await?;
    let mut ticked = TickReport {
        due_rules: records.len(),
        fired_rules: 0,
        next_tick: answer.next_tick,
        unblocked_rules: Vec::new(),
    };
    for (record, fired) in records.into_iter().zip(answer.results) {
        match fired {
            CronFiringResult::Fired(_) => ticked.fired_rules += 1,
            CronFiringResult::QueueFull => {
                ticked.fired_rules += 1;
                tracing::warn!(rule = record.rule.name, queue, "the queue is full: a tick has gone by without a job");
            }
            CronFiringResult::Waiting(job) => {
                ticked.fired_rules += 1;
                if record.rule.overlap == Overlap::Replace && remove_blocking_job(&store, &duly, job).await? {
                    ticked.unblocked_rules.push(record.rule.name);
                }
            }
            CronFiringResult::Stale => {}
        }
    }
    Ok(ticked)
}

/// As many as go in one step, one at least: the others are still due, and come with the next.
fn take_first_batch(planned: impl Iterator<Item = (CronRecord, CronFiring)>) -> Vec<(CronRecord, CronFiring)> {
    let (mut jobs, mut bytes) = (0, 0);
    let mut fits = |(record, fire): &(CronRecord, CronFiring)| {
        let first = jobs == 0;
        jobs += fire.jobs.len();
        bytes += fire.jobs.len() * record.rule.args.len();
        first || (jobs <= FIRE_JOBS_MAX && bytes <= FIRE_BYTES_MAX)
    };
    planned.take_while(|one| fits(one)).collect()
}

fn plan_firing(duly: &Duly, record: &CronRecord, now: std::time::SystemTime) -> Option<CronFiring> {
    let rule = &record.rule;
    let schedule = match Schedule::parse_unchecked(&rule.pattern, &rule.tz) {
        Ok(schedule) => schedule,
        Err(error) => {
            tracing::error!(name = rule.name, %error, "a cron rule cannot fire");
            return None;
        }
    };
    let mut fire = cron::plan_firing(&schedule, record, now)?;
    for job in &mut fire.jobs {
        job.keep.get_or_insert(duly.options.keep);
    }
    Some(fire)
}

/// Puts an end to the job that stands in the way of a tick. Answers whether the way is free; one that runs ends in a while.
async fn remove_blocking_job(store: &Arc<dyn Store>, duly: &Duly, job: JobId) -> Result<bool> {
    let waits = |record: &JobRecord| matches!(record.state, State::Ready | State::Scheduled);
    match store.get(job).await? {
        // Only as it was seen: one that has ended meanwhile is nobody's to delete.
        Some(record) if waits(&record) => {
            let removed = store.remove_all(vec![ChangeTarget::from_record(&record)]).await?;
            if removed.first() != Some(&ChangeResult::Running) {
                return Ok(true);
            }
        }
        Some(record) if record.state == State::Running => {}
        _ => return Ok(true),
    }
    let duly = duly.clone();
    // Whoever runs it is told; if that fails, the tick goes on waiting and comes back to it.
    tokio::spawn(async move {
        if let Err(error) = duly.cancel(job).await {
            tracing::warn!(id = %job, %error, "a job that a cron rule replaces could not be cancelled");
        }
    });
    Ok(false)
}

/// Most steps in which what has come due is fired at a time, without a loop of ours.
const FIRE_BATCHES_MAX: usize = 100;

/// Fires what has come due in a queue, for those who work it without a loop of ours.
pub(crate) async fn fire_all_due_ticks(duly: &Duly, queue: &str) -> Result<()> {
    for _ in 0..FIRE_BATCHES_MAX {
        match fire_batch(duly.store.clone(), duly.clone(), queue, Vec::new()).await {
            // What did not fit into one step is still due.
            Ok(ticked) if ticked.fired_rules > 0 && ticked.next_tick.is_some_and(|tick| tick.is_zero()) => {}
            Ok(_) | Err(Error::Unsupported { .. }) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
