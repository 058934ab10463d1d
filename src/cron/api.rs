//! Cron rules as programs see them: put, changed, applied as a whole, looked at, paused, triggered.
//!
//! Whatever changes a rule reads it, decides, and puts it back if it is still as it was: of two that do so at once, one looks again.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use serde::Serialize;

use crate::client::Duly;
use crate::clock::to_micros;
use crate::cron::{CronRule, Missed, Overlap, first_tick, next_tick};
use crate::error::{Error, Result};
use crate::job::JobId;
use crate::job::push::{Push, PushResult, check_name};
use crate::store::{CronRecord, PutCron, PutCronResult};

/// Most rules of a store that can be listed or applied at once.
pub const CRONS_MAX: usize = 100_000;
/// How often a change is tried again because somebody else has changed the rule meanwhile.
const UPDATE_TRIES_MAX: u32 = 20;

/// A rule to be; made by [`Duly::cron`].
#[must_use = "call `push`"]
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
    /// The time zone in which the pattern is meant (default UTC).
    pub fn tz(mut self, tz: impl Into<String>) -> Self {
        self.tz = Some(tz.into());
        self
    }

    /// What becomes of ticks at which nobody was there to fire (default: once).
    pub fn missed(mut self, missed: Missed) -> Self {
        self.missed = missed;
        self
    }

    /// What a tick does while the job of an earlier one has not ended (default: allow).
    pub fn overlap(mut self, overlap: Overlap) -> Self {
        self.overlap = overlap;
        self
    }

    /// Each job is due so much later than its tick at most: spreads rules that share a time.
    pub fn jitter(mut self, jitter: Duration) -> Self {
        self.jitter = jitter;
        self
    }

    /// Keeps the rule: from now on it pushes this job at each of its times.
    ///
    /// The same rule again changes nothing; another under the same name takes its place, and loses no tick that is due.
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

/// What is done with a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum CronChange {
    /// It is new.
    Add,
    /// It was another one.
    Update,
    /// It goes.
    Remove,
    /// Nothing: it is there already.
    Unchanged,
}

/// What has been, or would be, done to make the rules of a store those that were given; by name.
pub type CronChanges = BTreeMap<String, CronChange>;

impl Duly {
    /// A rule that pushes a job at each time of a pattern, to be completed with [`Cron::push`].
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

    /// Keeps a rule as it is given. The same rule again changes nothing; whether it is paused stays as it is.
    pub async fn put_cron(&self, rule: CronRule) -> Result<CronRecord> {
        self.put_cron_if(rule, |_| Ok::<(), Error>(())).await
    }

    /// As [`Duly::put_cron`], but only if `condition` accepts the stored rule, or `None` if there is none yet.
    ///
    /// The check and the write are atomic. Returns the condition's error if it refuses the change.
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
                // A tick that waits for another job goes on waiting only if the rule still says so.
                let waits = matches!(rule.overlap, Overlap::Queue | Overlap::Replace) && found.rule.queue == rule.queue;
                let held = found.waiting && waits;
                Ok(Some(CronRecord { rule: rule.clone(), next, waiting: held, ..found }))
            }
            None => {
                let next = first_tick(&schedule, None, now);
                Ok(Some(CronRecord::new(rule.clone(), 0, next)))
            }
        };
        self.update_cron(&rule.name, |found, now| condition(found.as_ref()).and_then(|()| put(found, now))).await
    }

    /// All rules, by name; at most [`CRONS_MAX`].
    pub async fn crons(&self) -> Result<Vec<CronRecord>> {
        let mut found = BTreeMap::new();
        let mut cursor: Option<String> = None;
        loop {
            let page = self.store.crons(None, cursor.as_deref()).await?;
            found.extend(page.rules.into_iter().map(|record| (record.rule.name.clone(), record)));
            if found.len() > CRONS_MAX {
                return Err(Error::invalid("crons", format!("there are more than {CRONS_MAX} rules")));
            }
            match page.next_cursor {
                Some(next) => cursor = Some(next),
                None => return Ok(found.into_values().collect()),
            }
        }
    }

    /// One rule.
    pub async fn get_cron(&self, name: &str) -> Result<Option<CronRecord>> {
        check_name("cron", name)?;
        self.store.cron(name).await
    }

    /// Deletes a rule. Jobs that it has pushed stay.
    pub async fn remove_cron(&self, name: &str) -> Result<()> {
        check_name("cron", name)?;
        match self.store.remove_cron(name).await? {
            true => Ok(()),
            false => Err(cron_not_found(name)),
        }
    }

    /// Lets a rule fire no more until it is resumed. Ticks of that time are not made up for.
    pub async fn pause_cron(&self, name: &str) -> Result<CronRecord> {
        self.update_cron(name, |found, _| {
            let found = found.ok_or_else(|| cron_not_found(name))?;
            Ok((!found.paused).then_some(CronRecord { paused: true, next: None, waiting: false, ..found }))
        })
        .await
    }

    /// Lets a paused rule fire again, from its next time on.
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

    /// Pushes the job of a rule now, also of a paused one; its ticks stay as they are.
    ///
    /// If the rule lets no two of its jobs overlap and one has not ended, nothing is pushed, and that one is named.
    pub async fn trigger_cron(&self, name: &str) -> Result<PushResult> {
        self.trigger_cron_with_id(name, None).await
    }

    /// As [`Duly::trigger_cron`], with an id for the job: a second call with the same id pushes nothing.
    pub async fn trigger_cron_with_id(&self, name: &str, id: Option<JobId>) -> Result<PushResult> {
        let record = self.get_cron(name).await?.ok_or_else(|| cron_not_found(name))?;
        let job = record.rule.to_push();
        self.push(match id {
            Some(id) => job.id(id),
            None => job,
        })
        .await
    }

    /// What would be done to make the rules of the store these: add, change, and remove what is not among them if `prune` says so.
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
                return Err(Error::invalid("crons", format!("{} is named twice", rule.name)));
            }
        }
        for name in found.into_keys().filter(|_| prune) {
            changes.entry(name).or_insert(CronChange::Remove);
        }
        Ok(changes)
    }

    /// Makes the rules of the store these: adds, changes, and removes what is not among them if `prune` says so.
    ///
    /// Not one step for all: broken off half-way, it is done by doing it again.
    pub async fn apply_crons(&self, rules: &[CronRule], prune: bool) -> Result<CronChanges> {
        let changes = self.diff_crons(rules, prune).await?;
        for rule in rules.iter().filter(|rule| changes.get(&rule.name) != Some(&CronChange::Unchanged)) {
            self.put_cron(rule.clone()).await?;
        }
        for (name, _) in changes.iter().filter(|(_, change)| **change == CronChange::Remove) {
            // Somebody may have been quicker.
            self.store.remove_cron(name).await?;
        }
        Ok(changes)
    }

    /// Reads a rule, decides, and puts it back unless it has changed meanwhile. `None` of the decision leaves it as it is.
    async fn update_cron<E: From<Error>>(
        &self,
        name: &str,
        decide: impl Fn(Option<CronRecord>, SystemTime) -> Result<Option<CronRecord>, E>,
    ) -> Result<CronRecord, E> {
        check_name("cron", name)?;
        for _ in 0..UPDATE_TRIES_MAX {
            let found = self.store.cron(name).await?;
            let (was, now) = (found.as_ref().map(|found| found.revision), self.store.now());
            let Some(mut record) = decide(found.clone(), now)? else {
                return found.ok_or_else(|| cron_not_found(name).into());
            };
            // Grows also over a rule that was deleted, as long as the clock does.
            record.revision = to_micros(now).unsigned_abs().max(was.map_or(0, |was| was + 1));
            match self.store.put_cron(PutCron { record: record.clone(), expected_revision: was }).await? {
                PutCronResult::Applied => return Ok(record),
                PutCronResult::Stale => {}
                PutCronResult::Moving => {
                    let said = "is moving to another store: let that end, then change it there";
                    return Err(Error::Conflict(format!("the queue of cron rule {name} {said}")).into());
                }
            }
        }
        Err(Error::Conflict(format!("cron rule {name} is changed by others all the time")).into())
    }
}

fn cron_not_found(name: &str) -> Error {
    Error::NotFound { what: "cron rule", name: name.to_owned() }
}
