//! What the contract says of cron rules: a rule as it is kept, and the step that fires ticks.

use std::time::{Duration, SystemTime};

use serde::Serialize;

use crate::cron::CronRule;
use crate::job::JobId;
use crate::job::push::{Push, PushResult};

/// Most rules that are fired in one step, and that are read as due at once.
pub const CRON_FIRINGS_MAX: usize = 150;
/// Most rules on one page.
pub const CRON_PAGE_SIZE: usize = 500;
/// How long a tick that was held back waits for a second look, if nobody says sooner that its way is free.
pub const WAITING_TICK_RECHECK_INTERVAL: Duration = Duration::from_secs(5);

/// A rule as a store keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CronRecord {
    /// The rule itself.
    #[serde(flatten)]
    pub rule: CronRule,
    /// Grows with every change of the rule and with every tick, so that who has read an older one changes nothing.
    pub revision: u64,
    /// It does not fire.
    pub paused: bool,
    /// The tick that is fired next; past, if nobody has fired it yet.
    #[serde(serialize_with = "crate::clock::as_micros_option")]
    pub next: Option<SystemTime>,
    /// That tick is due, and waits for the job of an earlier one to end.
    pub waiting: bool,
    /// The newest tick that was fired.
    #[serde(serialize_with = "crate::clock::as_micros_option")]
    pub last: Option<SystemTime>,
}

impl CronRecord {
    /// A rule that has not fired yet, and will at this moment.
    #[must_use]
    pub fn new(rule: CronRule, revision: u64, next: Option<SystemTime>) -> Self {
        CronRecord { rule, revision, paused: false, next, waiting: false, last: None }
    }

    /// The job of the newest tick that was fired. It may be gone, or another may have been in its way.
    #[must_use]
    pub fn last_job(&self) -> Option<JobId> {
        Some(crate::cron::tick_job_id(&self.rule.name, crate::clock::to_micros(self.last?)))
    }
}

/// A rule to be kept.
#[derive(Clone, Debug)]
pub struct PutCron {
    /// The rule as it will be.
    pub record: CronRecord,
    /// The revision it must have now; `None` if there must be no such rule.
    pub expected_revision: Option<u64>,
}

/// What became of a rule that was put.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PutCronResult {
    /// It is kept as it was given.
    Applied,
    /// Nothing was changed: the rule is not as it must have been. Read it again.
    Stale,
    /// Nothing was changed: a queue it is in, or would be in, is moving to another store.
    Moving,
}

/// A page of rules.
#[derive(Debug, Default)]
pub struct CronPage {
    /// The rules; one that is changed meanwhile may be shown twice.
    pub rules: Vec<CronRecord>,
    /// Where the next page starts, if there may be one.
    pub next_cursor: Option<String>,
}

/// Rules of a queue that have a tick due.
#[derive(Debug)]
pub struct DueCrons {
    /// The rules, those that have waited longest first; at most [`CRON_FIRE_MAX`].
    pub rules: Vec<CronRecord>,
    /// The store's time at this step.
    pub now: SystemTime,
    /// How long from `now` until there may be another tick to fire; `None` if there is none.
    pub next_tick: Option<Duration>,
}

/// Whether a tick waits for the job that has its unique key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverlapWait {
    /// It does not: that job stays, and the tick has been fired.
    Never,
    /// While that job is running.
    WhileRunning,
    /// As long as there is one.
    WhileUnfinished,
}

/// A tick to be fired, or several of one rule.
#[derive(Debug)]
pub struct CronFiring {
    /// The rule.
    pub name: String,
    /// The revision under which it was read.
    pub revision: u64,
    /// The tick that was its next.
    pub tick: SystemTime,
    /// The tick that will be.
    pub next: Option<SystemTime>,
    /// The newest tick that this fires; `None` if it only lets ticks go by.
    pub last: Option<SystemTime>,
    /// Their jobs, each under the id that belongs to its tick.
    pub jobs: Vec<Push>,
    /// What to do if another job has the unique key of the first of them.
    pub overlap_wait: OverlapWait,
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CronFiringResult {
    /// It was fired, and this became of its jobs.
    Fired(Vec<PushResult>),
    /// The queue is full: the tick has gone by without a job.
    QueueFull,
    /// It waits, since this job has its unique key.
    Waiting(JobId),
    /// Nothing was changed: another node has fired it, or the rule has changed, is paused or gone.
    Stale,
}

/// What a step that fires answers.
#[derive(Debug)]
pub struct FireCronsReply {
    /// For each fire, in their order.
    pub results: Vec<CronFiringResult>,
    /// How long until there may be another tick to fire in this queue.
    pub next_tick: Option<Duration>,
}
