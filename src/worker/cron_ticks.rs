//! Fires cron rules. When a tick is due, a worker reads the rules of the queue, plans the jobs and pushes them.
//!
//! No node is special: every idle worker checks due ticks, and the store lets the first one fire them.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::client::Duly;
use crate::cron::{self, CronRule, FIRE_BYTES_MAX, FIRE_JOBS_MAX, Overlap, Schedule, rule_name_from_key};
use crate::error::{Error, Result};
use crate::job::push::Push;
use crate::job::{JobId, JobRecord, State, UniqueKey};
use crate::store::{ChangeResult, ChangeTarget, CronFiring, CronFiringResult, CronRecord, CronStore, JobStore, Store};
use crate::worker::backoff::Backoff;
use crate::worker::middleware::{AfterPush, before_push};

/// Delay after a check that fired nothing although a tick was due.
const NOTHING_FIRED_DELAY: Duration = Duration::from_secs(1);
/// Minimum delay after a check before the tick was due: a test may have stopped the clock.
const EARLY_CHECK_DELAY: Duration = Duration::from_micros(200);
/// Maximum delay after a batch in which other nodes had fired every tick.
const LOST_RACE_DELAY_MAX: Duration = Duration::from_millis(20);
/// Maximum unblocked rules to remember; others are found by a later check.
const UNBLOCKED_RULES_MAX: usize = 1_000;

/// The result of a check of the ticks of a queue.
pub(super) struct TickReport {
    /// How many rules had a due tick, and how many of those this node fired.
    due_rules: usize,
    fired_rules: usize,
    /// Time until the next tick.
    next_tick: Option<Duration>,
    /// Rules with a blocking job that has been removed.
    unblocked_rules: Vec<String>,
}

/// When to fire the cron rules of one queue.
#[derive(Debug, Default)]
pub(super) struct CronTicks {
    /// When to fire the next tick.
    next_at: Option<Instant>,
    /// The store has reported that the tick is due.
    is_due: bool,
    /// A request to fire ticks is in flight; there is at most one.
    in_flight: bool,
    backoff: Backoff,
    /// Earliest time of the next check, after one that fired nothing.
    not_before: Option<Instant>,
    /// Cron rules that a finished job may have unblocked.
    unblocked_rules: Vec<String>,
}

impl CronTicks {
    pub(super) fn is_in_flight(&self) -> bool {
        self.in_flight
    }

    /// Returns when to check ticks next.
    pub(super) fn next_check_at(&self, now: Instant) -> Option<Instant> {
        let at = if self.unblocked_rules.is_empty() { self.next_at } else { Some(now) };
        at.filter(|_| !self.in_flight).map(|at| self.not_before.map_or(at, |not_before| at.max(not_before)))
    }

    /// Returns whether ticks should be checked now.
    fn should_check(&self, now: Instant) -> bool {
        self.next_check_at(now).is_some_and(|at| at <= now)
    }

    /// Returns whether the store has reported a due tick that can be fired now.
    pub(super) fn can_fire(&self, now: Instant) -> bool {
        (self.is_due || !self.unblocked_rules.is_empty()) && self.should_check(now)
    }

    /// Checks the ticks at this time.
    pub(super) fn check_at(&mut self, at: Instant) {
        self.next_at = Some(at);
    }

    /// Records the time until the next tick, as a claim reply reports it.
    pub(super) fn record_next_tick(&mut self, at: Option<Instant>, is_due: bool) {
        (self.next_at, self.is_due) = (at, is_due);
    }

    /// Begins a check if one is due. Returns the unblocked rules that it covers.
    pub(super) fn begin_check(&mut self, now: Instant) -> Option<Vec<String>> {
        if !self.should_check(now) {
            return None;
        }
        self.in_flight = true;
        self.next_at = None;
        Some(std::mem::take(&mut self.unblocked_rules))
    }

    /// Records the result of a check. Returns whether rules were fired, so that a claim may find their jobs.
    pub(super) fn record_report(&mut self, report: TickReport, now: Instant) -> bool {
        self.in_flight = false;
        self.backoff.reset();
        let next_tick = report.next_tick.map(|tick| now + tick);
        // A claim in flight may have reported an earlier tick.
        self.next_at = [self.next_at, next_tick].into_iter().flatten().min();
        self.is_due = report.next_tick.is_some_and(|tick| tick.is_zero());
        self.unblocked_rules.extend(report.unblocked_rules);
        self.not_before = match (report.due_rules, report.fired_rules) {
            (_, 1..) => None,
            (0, 0) => Some(now + if self.is_due { NOTHING_FIRED_DELAY } else { EARLY_CHECK_DELAY }),
            (_, 0) => Some(now + LOST_RACE_DELAY_MAX.mul_f64(fastrand::f64())),
        };
        report.fired_rules > 0
    }

    /// Records a failed check and returns the delay before the next one. The ticks stay due.
    pub(super) fn record_failure(&mut self, now: Instant, lease: Duration) -> Duration {
        let retry_in = self.backoff.record_failure(now, lease);
        self.in_flight = false;
        (self.next_at, self.is_due, self.not_before) = (Some(now), true, Some(now + retry_in));
        retry_in
    }

    /// The store does not support cron rules.
    pub(super) fn record_unsupported(&mut self) {
        self.in_flight = false;
    }

    /// Remembers the rule of a finished job if the rule forbids overlap: one of its ticks may have waited for the job.
    pub(super) fn unblock_rule(&mut self, unique: Option<&str>) {
        if let Some(name) = unique.and_then(rule_name_from_key)
            && self.unblocked_rules.len() < UNBLOCKED_RULES_MAX
        {
            self.unblocked_rules.push(name.to_owned());
        }
    }
}

/// Reads the due rules, plans their jobs and fires one batch.
pub(super) async fn fire_batch(
    store: Arc<dyn Store>,
    duly: Duly,
    queue: &str,
    unblocked: Vec<String>,
) -> Result<TickReport> {
    let mut due = store.due_crons(queue, &unblocked).await?;
    if let Some(planned_at) = due.planned_at {
        tracing::warn!(queue, "the clock of the store was set back; planning the ticks of its cron rules again");
        cron::plan_ticks_again(&*store, queue, due.now).await?;
        store.confirm_ticks(queue, planned_at).await?;
        due = store.due_crons(queue, &unblocked).await?;
    }
    let planned =
        due.rules.into_iter().filter_map(|record| plan_firing(&duly, &record, due.now).map(|firing| (record, firing)));
    let planned = take_first_batch(planned);
    if planned.is_empty() {
        return Ok(TickReport { due_rules: 0, fired_rules: 0, next_tick: due.next_tick, unblocked_rules: Vec::new() });
    }
    let after_pushes: Vec<AfterPush> =
        planned.iter().map(|(_, firing)| AfterPush::new(&duly.middleware, &firing.jobs)).collect();
    let (records, firings): (Vec<CronRecord>, Vec<CronFiring>) = planned.into_iter().unzip();
    let reply = store.fire_crons(queue, firings).await?;
    let mut report = TickReport {
        due_rules: records.len(),
        fired_rules: 0,
        next_tick: reply.next_tick,
        unblocked_rules: Vec::new(),
    };
    for ((record, after_push), result) in records.into_iter().zip(after_pushes).zip(reply.results) {
        match result {
            CronFiringResult::Fired(pushed) => {
                report.fired_rules += 1;
                after_push.run(&pushed);
            }
            CronFiringResult::QueueFull => {
                report.fired_rules += 1;
                tracing::warn!(rule = record.rule.name, queue, "skipped a cron tick: the queue is full");
            }
            CronFiringResult::Waiting(job) => {
                report.fired_rules += 1;
                if record.rule.overlap == Overlap::Replace && remove_blocking_job(&store, &duly, job).await? {
                    report.unblocked_rules.push(record.rule.name);
                }
            }
            CronFiringResult::Stale => {}
        }
    }
    Ok(report)
}

/// Takes as many firings as fit into one request, at least one. The others stay due.
fn take_first_batch(planned: impl Iterator<Item = (CronRecord, CronFiring)>) -> Vec<(CronRecord, CronFiring)> {
    let (mut jobs, mut bytes) = (0, 0);
    let mut fits = |(_, firing): &(CronRecord, CronFiring)| {
        let first = jobs == 0;
        jobs += firing.jobs.len();
        bytes += firing.jobs.iter().filter_map(Push::job_args).map(str::len).sum::<usize>();
        first || (jobs <= FIRE_JOBS_MAX && bytes <= FIRE_BYTES_MAX)
    };
    planned.take_while(|firing| fits(firing)).collect()
}

fn plan_firing(duly: &Duly, record: &CronRecord, now: std::time::SystemTime) -> Option<CronFiring> {
    let rule = &record.rule;
    let schedule = match Schedule::parse_unchecked(&rule.pattern, &rule.tz) {
        Ok(schedule) => schedule,
        Err(error) => {
            tracing::error!(rule = rule.name, %error, "cron rule cannot fire: invalid pattern or time zone");
            return None;
        }
    };
    let mut firing = cron::plan_firing(&schedule, record, now)?;
    let planned = std::mem::take(&mut firing.jobs);
    firing.jobs = planned.into_iter().filter_map(|job| prepare_job(duly, rule, job)).collect();
    if firing.jobs.is_empty() {
        firing.last = None;
    }
    Some(firing)
}

/// Runs the middleware on the job of a tick. Returns `None` if the middleware rejects the job, so that the tick is
/// skipped.
fn prepare_job(duly: &Duly, rule: &CronRule, mut planned: Push) -> Option<Push> {
    let (id, queue, unique, conflict) = (planned.id, planned.queue.clone(), planned.unique.clone(), planned.conflict);
    if let Some(key) = unique.clone().map(UniqueKey::from_stored) {
        planned = planned.unique(key.key()).unique_scope(key.scope());
    }
    let job = before_push(&duly.middleware, planned).and_then(|mut job| {
        // The tick is identified by its id, and the rule by its queue and key.
        (job.id, job.has_fresh_id, job.queue, job.unique, job.conflict) = (id, false, queue, unique, conflict);
        job.keep.get_or_insert(duly.options.keep);
        job.check().map(|()| job)
    });
    job.inspect_err(|error| tracing::warn!(rule = rule.name, %error, "skipped a cron tick: its job was rejected")).ok()
}

/// Removes or cancels the job that blocks a tick. Returns whether the tick is unblocked; a running job ends later.
async fn remove_blocking_job(store: &Arc<dyn Store>, duly: &Duly, job: JobId) -> Result<bool> {
    let is_waiting = |record: &JobRecord| matches!(record.state, State::Ready | State::Scheduled);
    match store.get(job).await? {
        // Only removed if unchanged: a job that has finished in the meantime must stay.
        Some(record) if is_waiting(&record) => {
            let removed = store.remove_all(vec![ChangeTarget::from_record(&record)]).await?;
            if removed.first() != Some(&ChangeResult::Running) {
                return Ok(true);
            }
        }
        Some(record) if record.state == State::Running => {}
        _ => return Ok(true),
    }
    let duly = duly.clone();
    // If the cancellation fails, the tick keeps waiting and tries again.
    tokio::spawn(async move {
        if let Err(error) = duly.jobs().cancel(job).await {
            tracing::warn!(id = %job, %error, "cannot cancel the job that a cron rule replaces");
        }
    });
    Ok(false)
}

/// Maximum batches per call of [`fire_all_due_ticks`].
const FIRE_BATCHES_MAX: usize = 100;

/// Fires all due ticks of a queue, for callers that work on it without a run loop.
pub(crate) async fn fire_all_due_ticks(duly: &Duly, queue: &str) -> Result<()> {
    for _ in 0..FIRE_BATCHES_MAX {
        match fire_batch(duly.store.clone(), duly.clone(), queue, Vec::new()).await {
            // Ticks that did not fit into one request are still due.
            Ok(report) if report.fired_rules > 0 && report.next_tick.is_some_and(|tick| tick.is_zero()) => {}
            Ok(_) | Err(Error::Unsupported { .. }) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
