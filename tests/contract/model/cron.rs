//! Cron rules in the model: what is kept, which ticks fire, and what they push.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use duly::store::{CronFiring, CronFiringResult, CronRecord, OverlapWait, PutCron, PutCronResult, Store};
use duly::{CronRule, JobId, Priority, Push, UniqueConflict};

use crate::model::history::{Difference, History, QUEUES, same};
use crate::model::reference::{At, Model, Pushing};

const NAMES: [&str; 3] = ["a", "b", "c"];
const KEYS: [Option<&str>; 3] = [None, Some("x"), Some("y")];

/// The rules, by name.
pub type Rules = BTreeMap<&'static str, CronRecord>;

impl Model {
    /// The job that a tick waits for.
    fn in_the_way(&self, queue: &str, key: Option<&str>, hold: OverlapWait) -> Option<JobId> {
        let job = self.holder(queue, key?).map(|at| &self.jobs[at])?;
        let running = matches!(job.at, At::Held { .. });
        let waits = hold == OverlapWait::WhileUnfinished || (hold == OverlapWait::WhileRunning && running);
        waits.then_some(job.pushing.id)
    }
}

impl History {
    /// One random thing that somebody does with rules.
    pub async fn cron(&mut self, store: &Arc<dyn Store>) -> Result<(), Difference> {
        let name = *self.random.choice(&NAMES).expect("some");
        match self.random.u32(..10) {
            0..3 => self.put_cron(store, name).await?,
            3 => {
                let removed = store.remove_cron(name).await.expect("removes");
                same("remove_cron", removed, self.model.rules.remove(name).is_some())?;
            }
            _ => self.fire_cron(store, name).await?,
        }
        same("cron", store.cron(name).await.expect("looks"), self.model.rules.get(name).cloned())?;
        self.due(store).await
    }

    async fn put_cron(&mut self, store: &Arc<dyn Store>, name: &'static str) -> Result<(), Difference> {
        let found = self.model.rules.get(name);
        let (old, was) = (found.map(|record| record.rule.queue.clone()), found.map(|record| record.revision));
        let was = if self.random.u32(..5) == 0 { Some(77) } else { was };
        let queue = *self.random.choice(&QUEUES).expect("some");
        let rule = CronRule::new(name, "* * * * * *", Push::new("job", "{}").queue(queue)).expect("a rule");
        let after = Duration::from_micros(self.random.u64(..1_500_000));
        let mut record = CronRecord::new(rule, self.random.u64(100..1_000), Some(self.clock.now() + after));
        record.paused = self.random.u32(..4) == 0;
        let moving = |queue: &str| self.model.moving.iter().any(|moving| *moving == queue);
        let stale = found.map(|record| record.revision) != was;
        let moves = moving(queue) || old.is_some_and(|old| moving(&old));
        let put = store.put_cron(PutCron { record: record.clone(), expected_revision: was }).await.expect("puts");
        match (stale, moves) {
            // Which of the two is told first is the store's own.
            (true, true) if put != PutCronResult::Applied => return Ok(()),
            (true, _) => return same("put_cron", put, PutCronResult::Stale),
            (_, true) => same("put_cron", &put, &PutCronResult::Moving)?,
            (false, false) => {
                same("put_cron", put, PutCronResult::Applied)?;
                self.model.rules.insert(name, record);
                return Ok(());
            }
        }
        // A rule that could not go to another queue stays as it was, but for its revision.
        if let Some(here) = store.cron(name).await.expect("looks") {
            self.model.rules.entry(name).and_modify(|record| record.revision = here.revision);
        }
        Ok(())
    }

    async fn fire_cron(&mut self, store: &Arc<dyn Store>, name: &'static str) -> Result<(), Difference> {
        let Some(record) = self.model.rules.get(name).cloned() else {
            return Ok(());
        };
        let (queue, now) = (QUEUES[usize::from(record.rule.queue != QUEUES[0])], self.clock.now());
        // A tick that finds its queue full goes by: the contract has that.
        if self.model.limits.get(queue).is_some_and(|limit| !limit.is_unlimited()) {
            return Ok(());
        }
        let tick = record.next.unwrap_or(now);
        let revision = if self.random.u32(..6) == 0 { 5 } else { record.revision };
        let hold = *self
            .random
            .choice(&[OverlapWait::Never, OverlapWait::WhileRunning, OverlapWait::WhileUnfinished])
            .expect("some");
        let unique = *self.random.choice(&KEYS).expect("some");
        let after = *self.random.choice(&[0, 0, 5_000]).expect("some");
        let micros = tick.duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_micros();
        let id = JobId::from_name(&format!("cron:{name}:{micros}"));
        let conflict = UniqueConflict::Keep;
        let pushing = Pushing { id, queue, priority: Priority::Normal, after, unique, conflict, keep: true };
        let mut job = Push::new("job", "{}").queue(queue).id(id).keep(Duration::from_secs(1 << 30));
        if after > 0 {
            job = job.at(now + Duration::from_micros(after.unsigned_abs()));
        }
        if let Some(key) = unique {
            job = job.unique(key);
        }
        let next = (self.random.u32(..8) > 0).then(|| now + Duration::from_millis(self.random.u64(1..2_000)));
        let name = record.rule.name.clone();
        let fire = CronFiring { name, revision, tick, next, last: Some(tick), jobs: vec![job], overlap_wait: hold };
        let answer = store.fire_crons(queue, vec![fire]).await.expect("fires").results.pop().expect("is answered");
        same("fire_crons", answer, self.fired(record, revision, pushing, hold, next))
    }

    /// What should become of a tick.
    fn fired(
        &mut self,
        mut record: CronRecord,
        revision: u64,
        pushing: Pushing,
        hold: OverlapWait,
        next: Option<std::time::SystemTime>,
    ) -> CronFiringResult {
        let due = record.next.is_some_and(|tick| tick <= self.clock.now());
        let moving = self.model.moving.contains(pushing.queue);
        if revision != record.revision || !due || record.paused || moving {
            return CronFiringResult::Stale;
        }
        let holder = self.model.in_the_way(pushing.queue, pushing.unique, hold);
        record.revision += 1;
        record.waiting = holder.is_some();
        if holder.is_none() {
            (record.last, record.next) = (record.next, next);
        }
        let name = NAMES.into_iter().find(|name| *name == record.rule.name).expect("one of ours");
        self.model.rules.insert(name, record);
        match holder {
            Some(holder) => CronFiringResult::Waiting(holder),
            None => {
                self.model.begin_push();
                CronFiringResult::Fired(vec![self.model.push(pushing)])
            }
        }
    }

    /// What is due is what the model says; what is held back waits for a while.
    async fn due(&mut self, store: &Arc<dyn Store>) -> Result<(), Difference> {
        for queue in QUEUES {
            let due = store.due_crons(queue, &NAMES.map(str::to_owned)).await.expect("looks");
            let mut names: Vec<&str> = due.rules.iter().map(|record| record.rule.name.as_str()).collect();
            names.sort_unstable();
            let now = self.clock.now();
            let is_due = |record: &&CronRecord| {
                record.rule.queue == queue && !record.paused && record.next.is_some_and(|tick| tick <= now)
            };
            let moving = self.model.moving.contains(queue);
            let expected = self.model.rules.values().filter(is_due).filter(|_| !moving);
            same("due_crons", names, expected.map(|record| record.rule.name.as_str()).collect())?;
        }
        Ok(())
    }
}
