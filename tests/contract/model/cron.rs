//! Cron rules in the model: stored rules, due ticks and pushed jobs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use duly::cron::CronRule;
use duly::job::UniqueConflict;
use duly::store::{CronFiring, CronFiringResult, CronRecord, CronStore, OverlapWait, PutCron, PutCronResult, Store};
use duly::{JobId, Priority, Push};

use crate::model::history::{Difference, History, QUEUES, same};
use crate::model::reference::{Model, Position, PushSpec};

const NAMES: [&str; 3] = ["a", "b", "c"];
const KEYS: [Option<&str>; 3] = [None, Some("x"), Some("y")];

/// The rules, by name.
pub type Rules = BTreeMap<&'static str, CronRecord>;

impl Model {
    /// Returns the job that a tick has to wait for.
    fn blocking_job(&self, queue: &str, key: Option<&str>, overlap_wait: OverlapWait) -> Option<JobId> {
        let job = self.holder(queue, key?).map(|index| &self.jobs[index])?;
        let running = matches!(job.position, Position::Held { .. });
        let must_wait =
            overlap_wait == OverlapWait::WhileUnfinished || (overlap_wait == OverlapWait::WhileRunning && running);
        must_wait.then_some(job.spec.id)
    }
}

impl History {
    /// One random operation on a rule.
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
        same("cron", store.cron(name).await.expect("reads"), self.model.rules.get(name).cloned())?;
        self.due(store).await
    }

    async fn put_cron(&mut self, store: &Arc<dyn Store>, name: &'static str) -> Result<(), Difference> {
        let found = self.model.rules.get(name);
        let (old_queue, revision) =
            (found.map(|record| record.rule.queue.clone()), found.map(|record| record.revision));
        let expected_revision = if self.random.u32(..5) == 0 { Some(77) } else { revision };
        let queue = *self.random.choice(&QUEUES).expect("some");
        let rule = CronRule::new(name, "* * * * * *", Push::new("job", "{}").queue(queue)).expect("a rule");
        let after = Duration::from_micros(self.random.u64(..1_500_000));
        let mut record = CronRecord::new(rule, self.random.u64(100..1_000), Some(self.clock.now() + after));
        record.paused = self.random.u32(..4) == 0;
        let moving = |queue: &str| self.model.moving.iter().any(|moving| *moving == queue);
        let is_stale = revision != expected_revision;
        let is_moving = moving(queue) || old_queue.is_some_and(|old| moving(&old));
        let put = store.put_cron(PutCron { record: record.clone(), expected_revision }).await.expect("puts");
        match (is_stale, is_moving) {
            // The store chooses which of the two it reports.
            (true, true) if put != PutCronResult::Applied => return Ok(()),
            (true, _) => return same("put_cron", put, PutCronResult::Stale),
            (_, true) => same("put_cron", &put, &PutCronResult::Moving)?,
            (false, false) => {
                same("put_cron", put, PutCronResult::Applied)?;
                self.model.rules.insert(name, record);
                return Ok(());
            }
        }
        // A rule that could not change its queue stays unchanged except for its revision.
        if let Some(stored) = store.cron(name).await.expect("reads") {
            self.model.rules.entry(name).and_modify(|record| record.revision = stored.revision);
        }
        Ok(())
    }

    async fn fire_cron(&mut self, store: &Arc<dyn Store>, name: &'static str) -> Result<(), Difference> {
        let Some(record) = self.model.rules.get(name).cloned() else {
            return Ok(());
        };
        let (queue, now) = (QUEUES[usize::from(record.rule.queue != QUEUES[0])], self.clock.now());
        // A tick is skipped if its queue is full. The contract suite covers that.
        if self.model.capacities.get(queue).is_some_and(|capacity| !capacity.is_unlimited()) {
            return Ok(());
        }
        let tick = record.next.unwrap_or(now);
        let revision = if self.random.u32(..6) == 0 { 5 } else { record.revision };
        let overlap_wait = *self
            .random
            .choice(&[OverlapWait::Never, OverlapWait::WhileRunning, OverlapWait::WhileUnfinished])
            .expect("some");
        let unique = *self.random.choice(&KEYS).expect("some");
        let after = *self.random.choice(&[0, 0, 5_000]).expect("some");
        let micros = tick.duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_micros();
        let id = JobId::from_name(&format!("cron:{name}:{micros}"));
        let conflict = UniqueConflict::Keep;
        let spec = PushSpec { id, queue, priority: Priority::Normal, after, unique, conflict, keep: true };
        let mut job = Push::new("job", "{}").queue(queue).id(id).keep(Duration::from_secs(1 << 30));
        if after > 0 {
            job = job.at(now + Duration::from_micros(after.unsigned_abs()));
        }
        if let Some(key) = unique {
            job = job.unique(key);
        }
        let next = (self.random.u32(..8) > 0).then(|| now + Duration::from_millis(self.random.u64(1..2_000)));
        let name = record.rule.name.clone();
        let firing = CronFiring { name, revision, tick, next, last: Some(tick), jobs: vec![job], overlap_wait };
        let result = store.fire_crons(queue, vec![firing]).await.expect("fires").results.pop().expect("one result");
        same("fire_crons", result, self.fired(record, revision, spec, overlap_wait, next))
    }

    /// Returns the expected result of a firing, and applies it to the model.
    fn fired(
        &mut self,
        mut record: CronRecord,
        revision: u64,
        spec: PushSpec,
        overlap_wait: OverlapWait,
        next: Option<std::time::SystemTime>,
    ) -> CronFiringResult {
        let is_due = record.next.is_some_and(|tick| tick <= self.clock.now());
        let moving = self.model.moving.contains(spec.queue);
        if revision != record.revision || !is_due || record.paused || moving {
            return CronFiringResult::Stale;
        }
        let holder = self.model.blocking_job(spec.queue, spec.unique, overlap_wait);
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
                CronFiringResult::Fired(vec![self.model.push(spec)])
            }
        }
    }

    /// Compares the due rules with the model.
    async fn due(&mut self, store: &Arc<dyn Store>) -> Result<(), Difference> {
        for queue in QUEUES {
            let due = store.due_crons(queue, &NAMES.map(str::to_owned)).await.expect("reads");
            let mut names: Vec<&str> = due.rules.iter().map(|record| record.rule.name.as_str()).collect();
            names.sort_unstable();
            let now = self.clock.now();
            // All rules are passed as freed, so a waiting tick is returned, even if the clock was set back before it.
            let is_due = |record: &&CronRecord| {
                let is_due = record.next.is_some_and(|tick| tick <= now || record.waiting);
                record.rule.queue == queue && !record.paused && is_due
            };
            let moving = self.model.moving.contains(queue);
            let expected = self.model.rules.values().filter(is_due).filter(|_| !moving);
            same("due_crons", names, expected.map(|record| record.rule.name.as_str()).collect())?;
        }
        Ok(())
    }
}
