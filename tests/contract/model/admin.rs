//! What people and attempts do to jobs, in the model: edits, limits, notes, results.

use std::sync::Arc;

use duly::store::{ChangeResult, JobEdit, ProgressUpdate, Store};
use duly::{Capacity, Error, JobId, JobProgress, NodeId, Priority, Push, PushResult};

use crate::model::history::{Bug, Difference, History, QUEUES, same};
use crate::model::reference::{At, Model, Pushing};

/// What a job may get for its args: texts of several lengths.
const ARGS: [&str; 4] = ["{}", "[]", r#"{"n":12345678901234567890}"#, r#""a\tb\nc ü""#];

/// What attempts have said of a job, and what it gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Said {
    pub progress: Option<f64>,
    /// The attempt, and the line.
    pub lines: Vec<(u32, String)>,
    pub result: Option<String>,
}

impl Model {
    /// Changes a job that is not running.
    pub fn edit(&mut self, id: JobId, args: Option<&'static str>, priority: Option<Priority>) -> ChangeResult {
        let Some(at) = self.find(id) else {
            return ChangeResult::NotFound;
        };
        if matches!(self.jobs[at].at, At::Held { .. }) {
            return ChangeResult::Running;
        }
        if self.moving.contains(self.jobs[at].pushing.queue) {
            return ChangeResult::Moving;
        }
        let tail = self.next();
        let job = &mut self.jobs[at];
        job.args = args.unwrap_or(job.args);
        if let Some(priority) = priority.filter(|priority| *priority != job.pushing.priority) {
            job.pushing.priority = priority;
            if let At::Ready { seq } = &mut job.at {
                *seq = tail;
            }
        }
        ChangeResult::Applied
    }

    /// Pushes all or none: none if the queue would be too full.
    pub fn push_all(&mut self, pushes: Vec<Pushing>) -> Result<Vec<PushResult>, Capacity> {
        let before = self.clone();
        self.begin_push();
        let queues: Vec<&str> = pushes.iter().map(|pushing| pushing.queue).collect();
        let pushed = pushes.into_iter().map(|pushing| self.push(pushing)).collect();
        for queue in queues {
            let limit = self.limits.get(queue).copied().unwrap_or_default();
            let (was, is) = (before.unfinished(queue), self.unfinished(queue));
            let over = |limit: Option<u64>, was: u64, is: u64| limit.is_some_and(|limit| is > was && is > limit);
            if over(limit.jobs, was.0, is.0) || over(limit.bytes, was.1, is.1) {
                *self = before;
                return Err(limit);
            }
        }
        Ok(pushed)
    }

    /// Jobs of a queue that have not ended, and bytes of their args.
    pub fn unfinished(&self, queue: &str) -> (u64, u64) {
        let all = self.jobs.iter().filter(|job| job.pushing.queue == queue && !matches!(job.at, At::Done | At::Dead));
        all.fold((0, 0), |(jobs, bytes), job| (jobs + 1, bytes + job.args.len() as u64))
    }

    /// What an attempt says; answers whether it is still its own to say.
    fn note(&mut self, node: NodeId, id: JobId, fence: u64, progress: f64, line: &str) -> bool {
        let holds =
            |at: &At| matches!(at, At::Held { node: holder, fence: held, .. } if (*holder, *held) == (node, fence));
        let Some(job) = self.jobs.iter_mut().find(|job| job.pushing.id == id && holds(&job.at)) else {
            return false;
        };
        job.said.progress = Some(progress);
        job.said.lines.push((job.attempts + 1, line.to_owned()));
        true
    }
}

impl History {
    /// One random thing that somebody does to jobs or queues.
    pub async fn operate(&mut self, store: &Arc<dyn Store>) -> Result<(), Difference> {
        match self.random.u32(..8) {
            0..4 => self.edit(store).await,
            4 => self.limit(store).await,
            _ => self.note(store).await,
        }
    }

    async fn edit(&mut self, store: &Arc<dyn Store>) -> Result<(), Difference> {
        let id = self.some_id();
        let args = self.random.bool().then(|| *self.random.choice(&ARGS).expect("some"));
        let priority = self.random.bool().then(|| *self.random.choice(&Priority::ALL).expect("some"));
        let edit = JobEdit { args: args.map(str::to_owned).filter(|_| self.bug != Some(Bug::ForgetsEdits)), priority };
        let moved = store.edit(id, edit).await.expect("edits");
        same("edit", moved, self.model.edit(id, args, priority))
    }

    async fn limit(&mut self, store: &Arc<dyn Store>) -> Result<(), Difference> {
        let queue = *self.random.choice(&QUEUES).expect("some");
        let some = |random: &mut fastrand::Rng, of: u64| (random.u32(..3) == 0).then(|| random.u64(..of));
        let limit = Capacity { jobs: some(&mut self.random, 8), bytes: some(&mut self.random, 60) };
        let was = self.model.limits.insert(queue, limit).unwrap_or_default();
        if self.bug == Some(Bug::IgnoresLimits) {
            return Ok(());
        }
        same("set_capacity", store.set_capacity(queue, limit).await.expect("sets"), was)
    }

    async fn note(&mut self, store: &Arc<dyn Store>) -> Result<(), Difference> {
        let Some((node, held)) = self.some_claim() else {
            return Ok(());
        };
        let (done, line) = (f64::from(self.random.u8(..=100)) / 100.0, format!("line {}", self.random.u32(..100)));
        let progress = JobProgress::new(done, "so far", self.clock.now());
        let note = ProgressUpdate::from_held(&held, Some(progress), vec![(self.clock.now(), line.clone())]);
        let said = self.model.note(node, held.job.id, held.fence.0, done, &line);
        let lost = store.record_progress(node, vec![note]).await.expect("notes");
        same("note", lost, if said { vec![] } else { vec![held.job.id] })
    }

    /// Pushes to one queue if any has a limit: all or none is promised for each.
    pub fn within_a_queue(&self, pushes: &mut Vec<(Pushing, Push)>) {
        if self.model.limits.values().all(Capacity::is_unlimited) {
            return;
        }
        let queue = pushes.first().map(|(pushing, _)| pushing.queue);
        pushes.retain(|(pushing, _)| Some(pushing.queue) == queue);
    }

    /// What a push answers, with a refusal as a value.
    pub fn answered(answer: duly::Result<Vec<PushResult>>) -> Result<Vec<PushResult>, Capacity> {
        match answer {
            Ok(pushed) => Ok(pushed),
            Err(Error::Full { capacity: limit, .. }) => Err(limit),
            Err(other) => panic!("{other}"),
        }
    }

    /// Everything that is known of one job, and how much is in each queue.
    pub async fn compare_one(&mut self, store: &Arc<dyn Store>) -> Result<(), Difference> {
        for counts in store.counts().await.expect("counts") {
            let queue = counts.queue.as_str();
            let is = (counts.scheduled + counts.ready + counts.running, counts.bytes);
            same("jobs and bytes", is, self.model.unfinished(queue))?;
            same("limit", counts.capacity, self.shown_limit(queue))?;
            same("paused", counts.paused, self.model.paused.contains(queue))?;
        }
        let id = self.some_id();
        let found = store.get(id).await.expect("looks").map(|record| {
            let lines = record.log.into_iter().map(|line| (line.attempt, line.line)).collect();
            let said = Said { progress: record.progress.map(|progress| progress.done), lines, result: record.result };
            (record.job.args, record.job.priority, said)
        });
        let expected = self.model.find(id).map(|at| &self.model.jobs[at]);
        let expected = expected.map(|job| (job.args.to_owned(), job.pushing.priority, job.said.clone()));
        same("job", found, expected)
    }

    fn shown_limit(&self, queue: &str) -> Capacity {
        match self.bug {
            Some(Bug::IgnoresLimits) => Capacity::default(),
            _ => self.model.limits.get(queue).copied().unwrap_or_default(),
        }
    }
}
