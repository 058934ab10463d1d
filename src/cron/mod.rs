//! Cron: rules that push a job at each time of a pattern.
//!
//! `schedule` finds the times of a pattern, `rule` is the data of a rule, `plan` decides which ticks fire, `builder`
//! adds a rule, `description` puts a pattern into words, `crons` manages the rules of a store, and `changes` applies a
//! list of rules.

pub(crate) mod builder;
mod changes;
pub(crate) mod crons;
mod description;
mod parse_error;
pub(crate) mod plan;
pub(crate) mod rule;
mod schedule;

pub use self::builder::Cron;
pub use self::changes::{CronChange, CronChanges};
pub use self::crons::Crons;
pub(crate) use self::crons::plan_ticks_again;
pub(crate) use self::plan::{FIRE_BYTES_MAX, FIRE_JOBS_MAX, first_tick, next_tick, plan_again, plan_firing};
pub use self::rule::{CronRule, Missed, Overlap};
pub(crate) use self::rule::{cron_unique_key, rule_name_from_key, tick_job_id};
pub use self::schedule::Schedule;
pub(crate) use self::schedule::UTC;
pub use crate::store::CronRecord;

#[cfg(test)]
mod tests;
