//! Cron: rules that push a job at each time of a pattern.
//!
//! `schedule` finds the times of a pattern, `rule` is the data of a rule, `plan` decides which ticks fire, and `api` is
//! the public API.

pub(crate) mod api;
mod parse_error;
pub(crate) mod plan;
pub(crate) mod rule;
mod schedule;

pub use self::api::{Cron, CronChange, CronChanges};
pub(crate) use self::plan::{FIRE_BYTES_MAX, FIRE_JOBS_MAX, first_tick, next_tick, plan_firing};
pub use self::rule::{CronRule, Missed, Overlap};
pub(crate) use self::rule::{cron_unique_key, rule_name_from_key, tick_job_id};
pub use self::schedule::Schedule;
pub(crate) use self::schedule::UTC;
pub use crate::store::CronRecord;

#[cfg(test)]
mod tests;
