//! The cron rules of a store: put, list, pause, trigger.
//!
//! Every change reads the rule, decides, and writes it back only if it is unchanged; otherwise it starts over.

use std::collections::BTreeMap;
use std::time::SystemTime;

use crate::client::Duly;
use crate::clock::to_micros;
use crate::cron::{CronRule, Overlap, first_tick, next_tick, plan_again};
use crate::error::{ConflictKind, Error, Result};
use crate::job::JobId;
use crate::job::push::{PushResult, check_name};
use crate::store::{CronRecord, CronStore, PutCron, PutCronResult, Store};

/// Maximum rules of a store that can be listed or applied at once.
pub const CRONS_MAX: usize = 100_000;
/// Maximum tries of a change that collides with concurrent changes.
const UPDATE_TRIES_MAX: u32 = 20;

/// The cron rules of a store, from [`Duly::crons`].
///
/// # Examples
///
/// ```
/// # use duly::{Duly, Push};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> duly::Result<()> {
/// # let duly = Duly::open(":memory:").await?;
/// duly.cron("report", "0 3 * * *").push(Push::new("report", "{}")).await?;
/// for record in duly.crons().list().await? {
///     println!("{} next {:?}", record.rule.name, record.next);
/// }
/// duly.crons().pause("report").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Crons<'d> {
    pub(super) duly: &'d Duly,
}

impl<'d> Crons<'d> {
    pub(super) fn new(duly: &'d Duly) -> Self {
        Crons { duly }
    }

    /// Stores a rule. Storing the same rule again is a no-op. A paused rule stays paused.
    ///
    /// # Errors
    ///
    /// - [`Error::Invalid`]: the rule is invalid.
    /// - [`Error::Conflict`]: its queue is moving to another store, or too many clients change the rule at the same time.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, Push, cron::CronRule};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let rule = CronRule::new("report", "0 3 * * *", Push::new("report", "{}"))?.tz("Europe/Berlin");
    /// let record = duly.crons().put(rule).await?;
    /// assert!(record.next.is_some());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn put(self, rule: CronRule) -> Result<CronRecord> {
        self.put_if(rule, |_| Ok::<(), Error>(())).await
    }

    /// Like [`Crons::put`], but only if `condition` accepts the stored rule, or `None` if there is none yet.
    ///
    /// The check and the write are atomic. Returns the error of `condition` if it rejects the change.
    ///
    /// # Errors
    ///
    /// - The error of `condition`, if it rejects the change.
    /// - [`Error::Invalid`]: the rule is invalid.
    /// - [`Error::Conflict`]: other clients change the rule at the same time, or its queue is moving to another store.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, Error, Push, cron::{CronRecord, CronRule}};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let rule = CronRule::new("report", "0 3 * * *", Push::new("report", "{}"))?;
    /// let only_new = |found: Option<&CronRecord>| match found {
    ///     None => Ok(()),
    ///     Some(_) => Err(Error::invalid("cron", "the rule exists already")),
    /// };
    /// duly.crons().put_if(rule.clone(), only_new).await?;
    /// assert!(duly.crons().put_if(rule, only_new).await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn put_if<E: From<Error>>(
        self,
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
        self.update(&rule.name, |found, now| condition(found.as_ref()).and_then(|()| put(found, now))).await
    }

    /// Returns all rules by name, at most [`CRONS_MAX`].
    ///
    /// # Errors
    ///
    /// - [`Error::Invalid`]: the store has more than [`CRONS_MAX`] rules.
    /// - [`Error::Unsupported`]: the store has no cron rules.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, Push};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// # duly.cron("report", "0 3 * * *").push(Push::new("report", "{}")).await?;
    /// for record in duly.crons().list().await? {
    ///     println!("{} next at {:?}", record.rule.name, record.next);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn list(self) -> Result<Vec<CronRecord>> {
        let mut found = BTreeMap::new();
        let mut cursor: Option<String> = None;
        loop {
            let page = self.duly.store.crons(None, cursor.as_deref()).await?;
            found.extend(page.rules.into_iter().map(|record| (record.rule.name.clone(), record)));
            if found.len() > CRONS_MAX {
                return Err(Error::invalid(
                    "crons",
                    format!("the store has more than {CRONS_MAX} rules; remove some of them"),
                ));
            }
            match page.next_cursor {
                Some(next) => cursor = Some(next),
                None => return Ok(found.into_values().collect()),
            }
        }
    }

    /// Returns one rule.
    ///
    /// # Errors
    ///
    /// - [`Error::Invalid`]: the name is invalid.
    /// - [`Error::Unsupported`]: the store has no cron rules.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// assert!(duly.crons().get("report").await?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn get(self, name: &str) -> Result<Option<CronRecord>> {
        check_name("cron", name)?;
        self.duly.store.cron(name).await
    }

    /// Returns the rules that would fire too late: their next tick was planned while the clock of the store was ahead.
    /// A worker of the queue corrects them within a lease; [`Duly::repair`] corrects them at once.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Crons::list`], but an empty list if the store has no cron rules.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// for record in duly.crons().delayed().await? {
    ///     eprintln!("{} waits until {:?}, which is too late", record.rule.name, record.next);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn delayed(self) -> Result<Vec<CronRecord>> {
        let mut rules = match self.list().await {
            Err(Error::Unsupported { .. }) => Vec::new(),
            rules => rules?,
        };
        let now = self.duly.store.now();
        rules.retain(|record| {
            let planned = record.rule.schedule().ok().and_then(|schedule| plan_again(&schedule, record, now));
            planned.is_some_and(|planned| planned.next != record.next)
        });
        Ok(rules)
    }

    /// Deletes a rule. The jobs that it has pushed stay.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NotFound`] if there is no such rule.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, Push};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// # duly.cron("report", "0 3 * * *").push(Push::new("report", "{}")).await?;
    /// duly.crons().remove("report").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn remove(self, name: &str) -> Result<()> {
        check_name("cron", name)?;
        match self.duly.store.remove_cron(name).await? {
            true => Ok(()),
            false => Err(cron_not_found(name)),
        }
    }

    /// Pauses a rule until it is resumed. Ticks during the pause do not count as missed.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NotFound`] if there is no such rule.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, Push};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// # duly.cron("report", "0 3 * * *").push(Push::new("report", "{}")).await?;
    /// duly.crons().pause("report").await?;
    /// assert!(duly.crons().resume("report").await?.next.is_some());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn pause(self, name: &str) -> Result<CronRecord> {
        self.update(name, |found, _| {
            let found = found.ok_or_else(|| cron_not_found(name))?;
            Ok((!found.paused).then_some(CronRecord { paused: true, next: None, waiting: false, ..found }))
        })
        .await
    }

    /// Resumes a paused rule from its next time on.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NotFound`] if there is no such rule.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, Push};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// # duly.cron("report", "0 3 * * *").push(Push::new("report", "{}")).await?;
    /// duly.crons().pause("report").await?;
    /// assert!(!duly.crons().resume("report").await?.paused);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn resume(self, name: &str) -> Result<CronRecord> {
        self.update(name, |found, now| {
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
    /// If the rule forbids overlap and one of its jobs is unfinished, this pushes nothing and returns that job.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NotFound`] if there is no such rule, and the errors of [`Duly::push`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, Push};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// # duly.cron("report", "0 3 * * *").push(Push::new("report", "{}")).await?;
    /// let id = duly.crons().trigger("report").await?.id();
    /// assert_eq!(duly.jobs().get(id).await?.expect("is pushed").job.kind, "report");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn trigger(self, name: &str) -> Result<PushResult> {
        self.trigger_with_id(name, None).await
    }

    /// Like [`Crons::trigger`], with an id for the job: a second call with the same id pushes nothing.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Crons::trigger`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, JobId, Push};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// # duly.cron("report", "0 3 * * *").push(Push::new("report", "{}")).await?;
    /// let id = JobId::from_name("report for ada");
    /// assert!(duly.crons().trigger_with_id("report", Some(id)).await?.is_new());
    /// assert!(!duly.crons().trigger_with_id("report", Some(id)).await?.is_new());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn trigger_with_id(self, name: &str, id: Option<JobId>) -> Result<PushResult> {
        let record = self.get(name).await?.ok_or_else(|| cron_not_found(name))?;
        let job = record.rule.to_push();
        self.duly
            .push(match id {
                Some(id) => job.id(id),
                None => job,
            })
            .await
    }

    /// Reads a rule, decides, and writes it back unless it has changed. If `decide` returns `None`, the rule stays.
    async fn update<E: From<Error>>(
        self,
        name: &str,
        decide: impl Fn(Option<CronRecord>, SystemTime) -> Result<Option<CronRecord>, E>,
    ) -> Result<CronRecord, E> {
        check_name("cron", name)?;
        for _ in 0..UPDATE_TRIES_MAX {
            let found = self.duly.store.cron(name).await?;
            let (revision, now) = (found.as_ref().map(|found| found.revision), self.duly.store.now());
            let Some(mut record) = decide(found.clone(), now)? else {
                return found.ok_or_else(|| cron_not_found(name).into());
            };
            // Based on the clock, so that it also grows over a deleted rule.
            record.revision = to_micros(now).unsigned_abs().max(revision.map_or(0, |revision| revision + 1));
            match self.duly.store.put_cron(PutCron { record: record.clone(), expected_revision: revision }).await? {
                PutCronResult::Applied => return Ok(record),
                PutCronResult::Stale => {}
                PutCronResult::Moving => {
                    let reason = "is moving to another store; wait until that has finished, then change the rule there";
                    return Err(Error::conflict(
                        ConflictKind::Moving,
                        format!("the queue of cron rule {name} {reason}"),
                    )
                    .into());
                }
            }
        }
        Err(Error::conflict(
            ConflictKind::Changed,
            format!("gave up updating cron rule {name}: too many concurrent changes; try again"),
        )
        .into())
    }
}

/// Plans the ticks of a queue again that are later than their patterns say. Other nodes may do the same.
pub(crate) async fn plan_ticks_again(store: &dyn Store, queue: &str, now: SystemTime) -> Result<()> {
    let mut cursor: Option<String> = None;
    for _ in 0..CRONS_MAX {
        let page = store.crons(Some(queue), cursor.as_deref()).await?;
        for record in page.rules.iter().filter(|record| record.rule.queue == queue) {
            let planned = record.rule.schedule().ok().and_then(|schedule| plan_again(&schedule, record, now));
            if let Some(planned) = planned {
                // A rule that was changed meanwhile was planned by its change.
                store.put_cron(PutCron { record: planned, expected_revision: Some(record.revision) }).await?;
            }
        }
        cursor = page.next_cursor;
        if cursor.is_none() {
            return Ok(());
        }
    }
    Ok(())
}

fn cron_not_found(name: &str) -> Error {
    Error::not_found("cron rule", name)
}
