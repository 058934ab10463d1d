//! Changes by administrators and attempts, in the model: edits, capacities, progress, results.

use std::sync::Arc;

use duly::admin::Capacity;
use duly::job::JobProgress;
use duly::store::{AdminStore, ChangeResult, JobEdit, JobStore, ProgressStore, ProgressUpdate, Store};
use duly::{Error, JobId, NodeId, Priority, Push, PushResult};

use crate::model::history::{Bug, Difference, History, QUEUES, same};
use crate::model::reference::{Model, Position, PushSpec};

/// Args of edits, of several lengths.
const ARGS: [&str; 4] = ["{}", "[]", r#"{"n":12345678901234567890}"#, r#""a\tb\nc ü""#];

/// Progress, log and result of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobReport {
    pub progress: Option<f64>,
    /// Attempt and text.
    pub lines: Vec<(u32, String)>,
    pub result: Option<String>,
}

impl Model {
    /// Changes a job that is not running.
    pub fn edit(&mut self, id: JobId, args: Option<&'static str>, priority: Option<Priority>) -> ChangeResult {
        let index = match self.find_changeable(id) {
            Ok(index) => index,
            Err(refused) => return refused,
        };
        let tail = self.next_number();
        let job = &mut self.jobs[index];
        job.args = args.unwrap_or(job.args);
        if let Some(priority) = priority.filter(|priority| *priority != job.spec.priority) {
            job.spec.priority = priority;
            if let Position::Ready { seq } = &mut job.position {
                *seq = tail;
            }
        }
        ChangeResult::Applied
    }

    /// Pushes all jobs, or none if that would exceed the capacity of a queue.
    pub fn push_all(&mut self, pushes: Vec<PushSpec>) -> Result<Vec<PushResult>, Capacity> {
        let before = self.clone();
        self.begin_push();
        let queues: Vec<&str> = pushes.iter().map(|spec| spec.queue).collect();
        let pushed = pushes.into_iter().map(|spec| self.push(spec)).collect();
        for queue in queues {
            let capacity = self.capacities.get(queue).copied().unwrap_or_default();
            let (old, new) = (before.unfinished(queue), self.unfinished(queue));
            let is_exceeded = |max: Option<u64>, old: u64, new: u64| max.is_some_and(|max| new > old && new > max);
            if is_exceeded(capacity.jobs, old.0, new.0) || is_exceeded(capacity.bytes, old.1, new.1) {
                *self = before;
                return Err(capacity);
            }
        }
        Ok(pushed)
    }

    /// Returns the number of unfinished jobs of a queue and the bytes of their args.
    pub fn unfinished(&self, queue: &str) -> (u64, u64) {
        let all = self.jobs.iter().filter(|job| job.spec.queue == queue && !job.position.has_ended());
        all.fold((0, 0), |(jobs, bytes), job| (jobs + 1, bytes + job.args.len() as u64))
    }

    /// Records progress of an attempt. Returns whether the attempt still holds the job.
    fn record_progress(&mut self, node: NodeId, id: JobId, fence: u64, progress: f64, line: &str) -> bool {
        let holds = |position: &Position| match position {
            Position::Held { node: holder, fence: held, .. } => (*holder, *held) == (node, fence),
            _ => false,
        };
        let Some(job) = self.jobs.iter_mut().find(|job| job.spec.id == id && holds(&job.position)) else {
            return false;
        };
        job.report.progress = Some(progress);
        job.report.lines.push((job.attempts + 1, line.to_owned()));
        true
    }
}

impl History {
    /// One random administrative operation, or a progress update.
    pub async fn admin(&mut self, store: &Arc<dyn Store>) -> Result<(), Difference> {
        match self.random.u32(..8) {
            0..4 => self.edit(store).await,
            4 => self.set_capacity(store).await,
            _ => self.record_progress(store).await,
        }
    }

    async fn edit(&mut self, store: &Arc<dyn Store>) -> Result<(), Difference> {
        let id = self.some_id();
        let args = self.random.bool().then(|| *self.random.choice(&ARGS).expect("some"));
        let priority = self.random.bool().then(|| *self.random.choice(&Priority::ALL).expect("some"));
        let edit = JobEdit::new()
            .args(args.map(str::to_owned).filter(|_| self.bug != Some(Bug::ForgetsEdits)))
            .priority(priority);
        let result = store.edit(id, edit).await.expect("edits");
        same("edit", result, self.model.edit(id, args, priority))
    }

    async fn set_capacity(&mut self, store: &Arc<dyn Store>) -> Result<(), Difference> {
        let queue = *self.random.choice(&QUEUES).expect("some");
        let maybe = |random: &mut fastrand::Rng, max: u64| (random.u32(..3) == 0).then(|| random.u64(..max));
        let capacity = Capacity::unlimited().jobs(maybe(&mut self.random, 8)).bytes(maybe(&mut self.random, 60));
        let previous = self.model.capacities.insert(queue, capacity).unwrap_or_default();
        if self.bug == Some(Bug::IgnoresCapacity) {
            return Ok(());
        }
        same("set_capacity", store.set_capacity(queue, capacity).await.expect("sets"), previous)
    }

    async fn record_progress(&mut self, store: &Arc<dyn Store>) -> Result<(), Difference> {
        let Some((node, held)) = self.some_claim() else {
            return Ok(());
        };
        let (done, line) = (f64::from(self.random.u8(..=100)) / 100.0, format!("line {}", self.random.u32(..100)));
        let progress = JobProgress::new(done, "so far", self.clock.now());
        let update = ProgressUpdate::from_held(&held, Some(progress), vec![(self.clock.now(), line.clone())]);
        let is_recorded = self.model.record_progress(node, held.job.id, held.fence.0, done, &line);
        let lost = store.record_progress(node, vec![update]).await.expect("records");
        same("record_progress", lost, if is_recorded { vec![] } else { vec![held.job.id] })
    }

    /// Keeps the pushes to one queue if a queue has a capacity: a push is all or nothing per queue only.
    pub fn keep_one_queue(&self, pushes: &mut Vec<(PushSpec, Push)>) {
        if self.model.capacities.values().all(Capacity::is_unlimited) {
            return;
        }
        let queue = pushes.first().map(|(spec, _)| spec.queue);
        pushes.retain(|(spec, _)| Some(spec.queue) == queue);
    }

    /// Turns [`Error::Full`] into a value that can be compared.
    pub fn capacity_error_as_value(result: duly::Result<Vec<PushResult>>) -> Result<Vec<PushResult>, Capacity> {
        match result {
            Ok(pushed) => Ok(pushed),
            Err(Error::Full { capacity, .. }) => Err(capacity),
            Err(other) => panic!("{other}"),
        }
    }

    /// Compares all details of one job, and the counts of each queue.
    pub async fn compare_job(&mut self, store: &Arc<dyn Store>) -> Result<(), Difference> {
        for counts in store.counts().await.expect("counts") {
            let queue = counts.queue.as_str();
            let unfinished = (counts.scheduled + counts.ready + counts.running, counts.bytes);
            same("jobs and bytes", unfinished, self.model.unfinished(queue))?;
            same("capacity", counts.capacity, self.expected_capacity(queue))?;
            same("paused", counts.paused, self.model.paused.contains(queue))?;
        }
        let id = self.some_id();
        let found = store.get(id).await.expect("reads").map(|record| {
            let lines = record.log.into_iter().map(|line| (line.attempt, line.line)).collect();
            let report =
                JobReport { progress: record.progress.map(|progress| progress.fraction), lines, result: record.result };
            (record.job.args, record.job.priority, report)
        });
        let expected = self.model.find(id).map(|index| &self.model.jobs[index]);
        let expected = expected.map(|job| (job.args.to_owned(), job.spec.priority, job.report.clone()));
        same("job", found, expected)
    }

    fn expected_capacity(&self, queue: &str) -> Capacity {
        match self.bug {
            Some(Bug::IgnoresCapacity) => Capacity::default(),
            _ => self.model.capacities.get(queue).copied().unwrap_or_default(),
        }
    }
}
