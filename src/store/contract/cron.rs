//! Cron rules and their ticks.

use std::time::SystemTime;

use super::capability;
use crate::error::Result;
use crate::store::*;

capability! {
    /// Keeps cron rules and fires their ticks.
    pub trait CronStore(crons: "cron rules") {
        /// Stores a cron rule with its next tick and wakes a node of its queue. Applies only if the rule has the
        /// expected revision, or does not exist if none is expected. The rule may change its queue.
        ///
        /// A rule's name is unique in a store. The store does not evaluate patterns: callers compute the ticks.
        async fn put_cron(&self, change: PutCron) -> Result<PutCronResult>;

        /// Deletes a cron rule; the jobs it pushed stay. Returns whether the rule existed.
        async fn remove_cron(&self, name: &str) -> Result<bool>;

        /// Returns one cron rule.
        async fn cron(&self, name: &str) -> Result<Option<CronRecord>>;

        /// Returns a page of at most [`CRON_PAGE_SIZE`] cron rules, only those of `queue` if given.
        async fn crons(&self, queue: Option<&str>, cursor: Option<&str>) -> Result<CronPage>;

        /// Returns the rules of a queue that have a due tick, and those named in `freed` that have a waiting tick.
        /// Paused rules are left out. Returns none while the queue is moving to another store.
        /// A paused queue does not matter: ticks push jobs, they do not claim.
        async fn due_crons(&self, queue: &str, freed: &[String]) -> Result<DueCrons>;

        /// Records that all ticks of a queue fit the clock again. `planned_at` is the time that
        /// [`CronStore::due_crons`] returned; if ticks have been planned even later since, nothing changes.
        ///
        /// Until then, each claim of the queue reports a due tick.
        async fn confirm_ticks(&self, queue: &str, planned_at: SystemTime) -> Result<()>;

        /// Fires ticks of at most [`CRON_FIRINGS_MAX`] rules of one queue: pushes their jobs and advances each rule to
        /// its next tick. Each rule and its jobs change in one operation, which increments the revision. A rule fires
        /// only if its revision and tick are as the caller read them and the tick is due.
        ///
        /// If another job has the unique key and the overlap policy waits for it, nothing is pushed. The tick then
        /// waits until the rule is passed to [`CronStore::due_crons`] as `freed`, or for
        /// [`WAITING_TICK_RECHECK_INTERVAL`].
        async fn fire_crons(&self, queue: &str, firings: Vec<CronFiring>) -> Result<FireCronsReply>;
    }
}
