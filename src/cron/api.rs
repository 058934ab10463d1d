//! The API of cron rules: put, apply, list, pause, trigger.
//!
//! Every change reads the rule, decides, and writes it back only if it is unchanged; otherwise it starts over.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use serde::Serialize;

use crate::client::Duly;
use crate::clock::to_micros;
use crate::cron::{CronRule, Missed, Overlap, first_tick, next_tick};
use crate::error::{Error, Result};
use crate::job::JobId;
use crate::job::push::{Push, PushResult, check_name};
use crate::store::{CronRecord, CronStore, PutCron, PutCronResult};

/// Maximum rules of a store that can be listed or applied at once.
pub const CRONS_MAX: usize = 100_000;
/// Maximum tries of a change that collides with concurrent changes.
const UPDATE_TRIES_MAX: u32 = 20;

/// A cron rule under construction; created by [`Duly::cron`].
#[must_use = "call `push`"]
#[derive(Debug)]
pub struct Cron {
    duly: Duly,
    name: String,
    pattern: String,
    tz: Option<String>,
    missed: Missed,
    overlap: Overlap,
    jitter: Duration,
}

impl Cron {
    /// Sets the time zone of the pattern (default UTC).
    pub fn tz(mut self, tz: impl Into<String>) -> Self {
        self.tz = Some(tz.into());
        self
    }

    /// Sets what happens to ticks that no node fired in time (default: once).
    pub fn missed(mut self, missed: Missed) -> Self {
        self.missed = missed;
        self
    }

    /// Sets what a tick does while the job of an earlier tick is unfinished (default: allow).
    pub fn overlap(mut self, overlap: Overlap) -> Self {
        self.overlap = overlap;
        self
    }

    /// Sets the maximum delay of a job after its tick, to spread rules with the same time.
    pub fn jitter(mut self, jitter: Duration) -> Self {
        self.jitter = jitter;
        self
    }

    /// Stores the rule, which pushes this job at each of its times from now on.
    ///
    /// Storing the same rule again is a no-op. A different rule with the same name replaces it and keeps its due tick.
    pub async fn push(self, job: impl Into<Push>) -> Result<CronRecord> {
        let rule = CronRule::new(self.name, self.pattern, job)?;
        let rule = rule.missed(self.missed).overlap(self.overlap).jitter(self.jitter);
        self.duly
            .put_cron(match self.tz {
                Some(tz) => rule.tz(tz),
                None => rule,
            })
            .await
    }
}

/// The change of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum CronChange {
    /// The rule is added.
    Add,
    /// The rule replaces a different one with the same name.
    Update,
    /// The rule is removed.
    Remove,
    /// The rule exists already.
    Unchanged,
}

/// Changes that make the rules of a store equal to the given ones, by name.
pub type CronChanges = BTreeMap<String, CronChange>;

impl Duly {
    /// Starts a rule that pushes a job at each time of a pattern. Complete it with [`Cron::push`].
    ///
    /// ```
    /// # use duly::{Duly, Push};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let rule = duly.cron("report", "0 3 * * *").tz("Europe/Berlin").push(Push::new("report", "{}")).await?;
    /// assert!(rule.next.is_some());
    /// # Ok(())
    /// # }
    /// ```
    pub fn cron(&self, name: impl Into<String>, pattern: impl Into<String>) -> Cron {
        Cron {
            duly: self.clone(),
            name: name.into(),
            pattern: pattern.into(),
            tz: None,
            missed: Missed::default(),
            overlap: Overlap::default(),
            jitter: Duration::ZERO,
        }
    }

    /// Stores a rule. Storing the same rule again is a no-op. A paused rule stays paused.
    pub async fn put_cron(&self, rule: CronRule) -> Result<CronRecord> {
        self.put_cron_if(rule, |_| Ok::<(), Error>(())).await
    }

    /// Like [`Duly::put_cron`], but only if `condition` accepts the stored rule, or `None` if there is none yet.
    ///
    /// The check and the write are atomic. Returns the error of `condition` if it rejects the change.
    pub async fn put_cron_if<E: From<Error>>(
        &self,
        rule: CronRule,
        condition: impl Fn(Option<&CronRecord>) -> Result<(), E>,
    ) -> Result<CronRecord, E> {
        let schedule = rule.check()?;
        let put = |found: Option<CronRecord>, now| match found {
            Some(found) if found.rule == rule => Ok(None),
            Some(found) => {
                let next = next_tick(&schedule, &found, now).filter(|_| !found.paused);
                // A waiting tick keeps waiting only if the new rule waits too, in the same queue.
                let waits = matches!(rule.overlap, Overlap::Queue | Overlap::Replace) && found.rule.queue == rule.queue;
                let waiting = found.waiting && waits;
                Ok(Some(CronRecord { rule: rule.clone(), next, waiting, ..found }))
            }
            None => {
                let next = first_tick(&schedule, None, now);
                Ok(Some(CronRecord::new(rule.clone(), 0, next)))
            }
        };
        self.update_cron(&rule.name, |found, now| condition(found.as_ref()).and_then(|()| put(found, now))).await
    }

    /// Returns all rules by name, at most [`CRONS_MAX`].
    pub async fn crons(&self) -> Result<Vec<CronRecord>> {
        let mut found = BTreeMap::new();
        let mut cursor: Option<String> = None;
        loop {
            let page = self.store.crons(None, cursor.as_deref()).await?;
            found.extend(page.rules.into_iter().map(|record| (record.rule.name.clone(), record)));
            if found.len() > CRONS_MAX {
                return Err(Error::invalid("crons", format!("the store has more than {CRONS_MAX} rules")));
            }
            match page.next_cursor {
                Some(next) => cursor = Some(next),
                None => return Ok(found.into_values().collect()),
            }
        }
    }

    /// Returns one rule.
    pub async fn get_cron(&self, name: &str) -> Result<Option<CronRecord>> {
        check_name("cron", name)?;
        self.store.cron(name).await
    }

    /// Deletes a rule. The jobs that it has pushed stay.
    pub async fn remove_cron(&self, name: &str) -> Result<()> {
        check_name("cron", name)?;
        match self.store.remove_cron(name).await? {
            true => Ok(()),
            false => Err(cron_not_found(name)),
        }
    }

    /// Pauses a rule until it is resumed. Ticks during the pause do not count as missed.
    pub async fn pause_cron(&self, name: &str) -> Result<CronRecord> {
        self.update_cron(name, |found, _| {
            let found = found.ok_or_else(|| cron_not_found(name))?;
            Ok((!found.paused).then_some(CronRecord { paused: true, next: None, waiting: false, ..found }))
        })
        .await
    }

    /// Resumes a paused rule from its next time on.
    pub async fn resume_cron(&self, name: &str) -> Result<CronRecord> {
        self.update_cron(name, |found, now| {
            let found = found.ok_or_else(|| cron_not_found(name))?;
            if !found.paused {
                return Ok(None);
            }
            let next = first_tick(&found.rule.schedule()?, found.last, now);
            Ok(Some(CronRecord { paused: false, next, ..found }))
        })
        .await
    }

    /// Pushes the job of a rule now, even if the rule is paused. Its ticks do not change.
    ///
    /// If the rule forbids overlap and one of its jobs is unfinished, nothing is pushed and that job is returned.
    pub async fn trigger_cron(&self, name: &str) -> Result<PushResult> {
        self.trigger_cron_with_id(name, None).await
    }

    /// Like [`Duly::trigger_cron`], with an id for the job: a second call with the same id pushes nothing.
    pub async fn trigger_cron_with_id(&self, name: &str, id: Option<JobId>) -> Result<PushResult> {
        let record = self.get_cron(name).await?.ok_or_else(|| cron_not_found(name))?;
        let job = record.rule.to_push();
        self.push(match id {
            Some(id) => job.id(id),
            None => job,
        })
        .await
    }

    /// Returns the changes that would make the rules of the store equal to these. `prune` also removes all other rules.
    pub async fn diff_crons(&self, rules: &[CronRule], prune: bool) -> Result<CronChanges> {
        let found: BTreeMap<String, CronRecord> =
            self.crons().await?.into_iter().map(|record| (record.rule.name.clone(), record)).collect();
        let mut changes = CronChanges::new();
        for rule in rules {
            rule.check()?;
            let change = match found.get(&rule.name) {
                None => CronChange::Add,
                Some(record) if record.rule == *rule => CronChange::Unchanged,
                Some(_) => CronChange::Update,
            };
            if changes.insert(rule.name.clone(), change).is_some() {
                return Err(Error::invalid("crons", format!("{} is given twice", rule.name)));
            }
        }
        for name in found.into_keys().filter(|_| prune) {
            changes.entry(name).or_insert(CronChange::Remove);
        }
        Ok(changes)
    }

    /// Makes the rules of the store equal to these. `prune` also removes all other rules.
    ///
    /// Not atomic: if it fails half-way, call it again.
    pub async fn apply_crons(&self, rules: &[CronRule], prune: bool) -> Result<CronChanges> {
        let changes = self.diff_crons(rules, prune).await?;
        for rule in rules.iter().filter(|rule| changes.get(&rule.name) != Some(&CronChange::Unchanged)) {
            self.put_cron(rule.clone()).await?;
        }
        for (name, _) in changes.iter().filter(|(_, change)| **change == CronChange::Remove) {
            // Another client may have removed it already.
            self.store.remove_cron(name).await?;
        }
        Ok(changes)
    }

    /// Reads a rule, decides, and writes it back unless it has changed. If `decide` returns `None`, the rule stays.
    async fn update_cron<E: From<Error>>(
        &self,
        name: &str,
        decide: impl Fn(Option<CronRecord>, SystemTime) -> Result<Option<CronRecord>, E>,
    ) -> Result<CronRecord, E> {
        check_name("cron", name)?;
        for _ in 0..UPDATE_TRIES_MAX {
            let found = self.store.cron(name).await?;
            let (revision, now) = (found.as_ref().map(|found| found.revision), self.store.now());
            let Some(mut record) = decide(found.clone(), now)? else {
                return found.ok_or_else(|| cron_not_found(name).into());
            };
            // Based on the clock, so that it also grows over a deleted rule.
            record.revision = to_micros(now).unsigned_abs().max(revision.map_or(0, |revision| revision + 1));
            match self.store.put_cron(PutCron { record: record.clone(), expected_revision: revision }).await? {
                PutCronResult::Applied => return Ok(record),
                PutCronResult::Stale => {}
                PutCronResult::Moving => {
                    let reason = "is moving to another store; wait until that has finished, then change the rule there";
                    return Err(Error::Conflict(format!("the queue of cron rule {name} {reason}")).into());
                }
            }
        }
        Err(Error::Conflict(format!("gave up updating cron rule {name}: too many concurrent changes")).into())
    }
}

fn cron_not_found(name: &str) -> Error {
    Error::NotFound { what: "cron rule", name: name.to_owned() }
}
