//! Cron rules: a rule as stored, and the operations that fire its ticks.

use std::time::{Duration, SystemTime};

use serde::Serialize;

use crate::cron::CronRule;
use crate::job::JobId;
use crate::job::push::{Push, PushResult};

/// Most rules fired in one operation, and most returned as due.
pub const CRON_FIRINGS_MAX: usize = 150;
/// Maximum due rules that are read to find those that can be read: far more than a queue has.
pub(crate) const DUE_CRONS_READ_MAX: usize = 100_000;
/// Most rules on one page.
pub const CRON_PAGE_SIZE: usize = 500;
/// How long a waiting tick waits until it is checked again, unless its rule is passed as freed earlier.
pub const WAITING_TICK_RECHECK_INTERVAL: Duration = Duration::from_secs(5);

/// A rule as stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CronRecord {
    /// The rule.
    #[serde(flatten)]
    pub rule: CronRule,
    /// Increases with every change of the rule and every tick, so that a caller with an older revision changes nothing.
    pub revision: u64,
    /// Whether the rule is paused and does not fire.
    pub paused: bool,
    /// The next tick to fire; in the past if it is due and has not fired yet.
    #[serde(serialize_with = "crate::clock::as_micros_option")]
    pub next: Option<SystemTime>,
    /// Whether that tick is due and waits for the job of an earlier tick to end.
    pub waiting: bool,
    /// The newest tick that fired.
    #[serde(serialize_with = "crate::clock::as_micros_option")]
    pub last: Option<SystemTime>,
}

impl CronRecord {
    /// Returns a rule that has not fired yet and fires next at `next`.
    #[must_use]
    pub fn new(rule: CronRule, revision: u64, next: Option<SystemTime>) -> Self {
        CronRecord { rule, revision, paused: false, next, waiting: false, last: None }
    }

    /// Returns the job of the newest tick that fired.
    /// The job may be gone, or may not have been pushed because another had its unique key.
    #[must_use]
    pub fn last_job(&self) -> Option<JobId> {
        self.last.map(|tick| self.job_of_tick(tick))
    }

    /// Returns the id of the job that the rule pushes at this tick. There is no such job if the tick did not fire, if
    /// another job had its unique key, or if the job is no longer kept.
    #[must_use]
    pub fn job_of_tick(&self, tick: SystemTime) -> JobId {
        crate::cron::tick_job_id(&self.rule.name, crate::clock::to_micros(tick))
    }
}

/// A rule to store.
#[derive(Clone, Debug)]
pub struct PutCron {
    /// The rule after the change.
    pub record: CronRecord,
    /// The revision that the rule must have now; `None` if it must not exist.
    pub expected_revision: Option<u64>,
}

/// The result of storing a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PutCronResult {
    /// The rule is stored as given.
    Applied,
    /// Nothing changed: the rule does not have the expected revision. Read it again.
    Stale,
    /// Nothing changed: its old or new queue is moving to another store.
    Moving,
}

/// A page of rules.
#[derive(Debug, Default)]
pub struct CronPage {
    /// The rules; a rule changed while paging may appear twice.
    pub rules: Vec<CronRecord>,
    /// The start of the next page, if there may be one.
    pub next_cursor: Option<String>,
}

/// Rules of a queue that have a tick due.
#[derive(Debug)]
pub struct DueCrons {
    /// The readable rules, longest overdue first; at most [`CRON_FIRINGS_MAX`]. Unreadable ones stay due and delay no
    /// other rule.
    pub rules: Vec<CronRecord>,
    /// The store's time at this operation.
    pub now: SystemTime,
    /// Time from `now` until another tick may be due; `None` if there is none.
    pub next_tick: Option<Duration>,
    /// The latest time at which a tick of the queue was planned, if it is after `now`: the clock was set back since, and
    /// ticks may be too late. The caller plans all rules of the queue again, then calls
    /// [`CronStore::confirm_ticks`](crate::store::CronStore::confirm_ticks).
    pub planned_at: Option<SystemTime>,
}

/// Whether a tick waits for the job that has its unique key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverlapWait {
    /// The tick does not wait: it counts as fired, and that job stays.
    Never,
    /// The tick waits while that job is running.
    WhileRunning,
    /// The tick waits while that job is unfinished.
    WhileUnfinished,
}

/// One or more ticks of one rule to fire.
#[derive(Debug)]
pub struct CronFiring {
    /// The rule.
    pub name: String,
    /// The revision that the caller read.
    pub revision: u64,
    /// The next tick that the caller read.
    pub tick: SystemTime,
    /// The next tick after this firing.
    pub next: Option<SystemTime>,
    /// The newest tick that this fires; `None` if it only skips ticks.
    pub last: Option<SystemTime>,
    /// The jobs, each with the id derived from its tick.
    pub jobs: Vec<Push>,
    /// The policy if another job has the unique key of the first job.
    pub overlap_wait: OverlapWait,
}

/// The result of a firing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CronFiringResult {
    /// The tick fired, with these results for its jobs.
    Fired(Vec<PushResult>),
    /// The queue is full: the tick is skipped without a job.
    QueueFull,
    /// The tick waits, because this job has its unique key.
    Waiting(JobId),
    /// Nothing changed: another node fired it, or the rule was changed, paused or removed.
    Stale,
}

/// The reply to [`CronStore::fire_crons`](crate::store::CronStore::fire_crons).
#[derive(Debug)]
pub struct FireCronsReply {
    /// One result per firing, in order.
    pub results: Vec<CronFiringResult>,
    /// Time until another tick of this queue may be due.
    pub next_tick: Option<Duration>,
}
