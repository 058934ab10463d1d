//! Cron: rules that push a job at each time of a pattern.
//!
//! `schedule` says when a pattern matches, `rule` is the data of a rule, `plan` decides which ticks fire,
//! and `api` is what programs call.

pub(crate) mod api;
mod parse_error;
mod plan;
mod rule;
mod schedule;

pub(crate) use self::plan::{FIRE_BYTES_MAX, FIRE_JOBS_MAX, fire, first_tick, next_tick};
pub use self::plan::{MISSED_AFTER, MISSED_MAX};
pub use self::rule::{CRON_ARGS_BYTES_MAX, CronRule, JITTER_MAX, Missed, Overlap};
pub(crate) use self::rule::{key_of, rule_of_key, tick_id};
pub use self::schedule::Schedule;
pub(crate) use self::schedule::UTC;

#[cfg(test)]
mod tests;
