//! Cron: rules that push a job at each time of a pattern.
//!
//! `schedule` says when a pattern matches, `rule` is the data of a rule, `plan` decides which ticks fire,
//! and `api` is what programs call.

pub(crate) mod api;
mod parse_error;
mod plan;
mod rule;
mod schedule;

pub(crate) use self::plan::{FIRE_BYTES_MAX, FIRE_JOBS_MAX, first_tick, next_tick, plan_firing};
pub use self::plan::{MISSED_AFTER, MISSED_TICKS_MAX};
pub use self::rule::{CRON_ARGS_BYTES_MAX, CronRule, JITTER_MAX, Missed, Overlap};
pub(crate) use self::rule::{cron_unique_key, rule_name_from_key, tick_job_id};
pub use self::schedule::Schedule;
pub(crate) use self::schedule::UTC;

#[cfg(test)]
mod tests;
