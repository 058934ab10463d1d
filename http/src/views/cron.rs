//! Cron rules.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::{millis, raw_json, rfc3339, unix_ms};
use crate::identity::Identity;
use crate::json;
use crate::openapi::{OverlapName, PriorityName};
use duly::cron::{CronRecord, Schedule};

/// The number of next ticks of a rule.
pub(crate) const TICKS: usize = 5;

/// A stored rule.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[non_exhaustive]
#[schema(as = Cron)]
pub struct RuleView {
    /// The name, unique in the store.
    pub name: String,
    /// The pattern: five fields, or six with the seconds first.
    pub pattern: String,
    /// The pattern in plain English.
    pub description: String,
    /// The time zone of the pattern.
    pub tz: String,
    /// The queue of its jobs.
    pub queue: String,
    /// The kind of its jobs.
    pub kind: String,
    /// The args of its jobs. Absent for roles below operator.
    #[serde(default, deserialize_with = "json::present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub args: Option<Box<RawValue>>,
    /// The priority of its jobs.
    #[schema(value_type = PriorityName)]
    pub priority: String,
    /// The number of failed attempts after which a job is dead.
    pub max_attempts: u32,
    /// The timeout of one attempt.
    pub timeout_ms: u64,
    /// How long a done job of the rule is kept; absent if the rule does not set it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_ms: Option<u64>,
    /// Words to find its jobs by.
    pub tags: Vec<String>,
    /// The policy for ticks that no worker fired in time: `skip`, `once`, or `all:N`.
    #[schema(pattern = "^(skip|once|all:[1-9][0-9]{0,3})$")]
    pub missed: String,
    /// The policy for a tick while an earlier job is unfinished: `allow`, `skip`, `queue` or `replace`.
    #[schema(value_type = OverlapName)]
    pub overlap: String,
    /// The most milliseconds by which a job is due after its tick.
    pub jitter_ms: u64,
    /// It does not fire.
    pub paused: bool,
    /// A tick is due and waits for the job of an earlier one to end. Absent if not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub waiting: bool,
    /// Grows with every change.
    pub revision: u64,
    /// The newest tick that fired.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<String>,
    /// The same in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_ms: Option<i64>,
    /// The job of that tick. It may be gone, or may not have been pushed because another had its unique key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_job: Option<String>,
    /// The next ticks; empty while the rule is paused.
    pub next: Vec<String>,
    /// The same in milliseconds since 1970.
    pub next_ms: Vec<i64>,
}

impl RuleView {
    /// Returns the whole rule with its ticks after `now`, as an operator sees it.
    #[must_use]
    pub fn new(record: &CronRecord, now: SystemTime) -> Self {
        let rule = &record.rule;
        let schedule = rule.schedule().ok();
        let times: Vec<_> = match (&schedule, record.paused) {
            (Some(schedule), false) => schedule.ticks_after(now).take(TICKS).collect(),
            _ => Vec::new(),
        };
        RuleView {
            name: rule.name.clone(),
            pattern: rule.pattern.clone(),
            description: schedule.map(|schedule| schedule.describe()).unwrap_or_default(),
            tz: rule.tz.clone(),
            queue: rule.queue.clone(),
            kind: rule.kind.clone(),
            args: Some(raw_json(&rule.args)),
            priority: rule.priority.to_string(),
            max_attempts: rule.max_attempts,
            timeout_ms: millis(rule.timeout),
            keep_ms: rule.keep.map(millis),
            tags: rule.tags.clone(),
            missed: rule.missed.to_string(),
            overlap: rule.overlap.to_string(),
            jitter_ms: millis(rule.jitter),
            paused: record.paused,
            waiting: record.waiting,
            revision: record.revision,
            last: record.last.map(rfc3339),
            last_ms: record.last.map(unix_ms),
            last_job: record.last_job().map(|id| id.to_string()),
            next: times.iter().copied().map(rfc3339).collect(),
            next_ms: times.iter().copied().map(unix_ms).collect(),
        }
    }

    /// Returns the parts of a rule that the client may see.
    pub(crate) fn for_identity(record: &CronRecord, now: SystemTime, identity: &Identity) -> Self {
        let view = RuleView::new(record, now);
        RuleView { args: view.args.filter(|_| identity.can_see_args()), ..view }
    }
}

/// All rules, by name.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[non_exhaustive]
pub struct Rules {
    /// The rules, by name.
    pub rules: Vec<RuleView>,
}

impl Rules {
    /// Returns the whole rules with their ticks after `now`, as an operator sees them.
    #[must_use]
    pub fn new(records: &[CronRecord], now: SystemTime) -> Self {
        Rules { rules: records.iter().map(|record| RuleView::new(record, now)).collect() }
    }
}

/// The meaning of a pattern.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[non_exhaustive]
pub struct Preview {
    /// The pattern in plain English.
    pub description: String,
    /// The next ticks.
    pub next: Vec<String>,
    /// The same in milliseconds since 1970.
    pub next_ms: Vec<i64>,
}

impl Preview {
    /// Returns the meaning of a pattern, with these ticks.
    #[must_use]
    pub fn new(schedule: &Schedule, ticks: &[SystemTime]) -> Self {
        Preview {
            description: schedule.describe(),
            next: ticks.iter().copied().map(rfc3339).collect(),
            next_ms: ticks.iter().copied().map(unix_ms).collect(),
        }
    }
}
