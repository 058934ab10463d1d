//! One queue between two stores: taken over from whoever moved it before, carried batch by batch, let go.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::client::Duly;
use crate::clock::{Clock, Micros, from_micros, to_micros};
use crate::error::{Error, Result};
use crate::job::push::is_word;
use crate::job::{Failure, Fence, JobId, JobRecord, State, UNREADABLE_KIND};
use crate::node::NodeId;
use crate::store::{FAILURES_MAX, Filter, TRANSFER_BATCH_MAX, TransferBatch, TransferBatchResult, TransferCheckpoint};
use crate::transfer::QueueTransferReport;
use crate::transfer::retrying_store::RetryingStore;

/// How often a marker is read again because another mover has just changed it: it can do so once, then it is refused.
const TAKE_OVERS_MAX: u32 = 5;
/// How many batches in a row may be gone already when they are deleted: an answer may be lost.
const EMPTY_DELETES_MAX: u32 = 3;
/// Jobs in the first batch; later ones are larger as long as they stay below so many bytes.
const FIRST_BATCH_JOBS: usize = 50;
const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The stores at both ends.
#[derive(Clone)]
pub(crate) struct TransferStores {
    /// The store that the jobs leave.
    pub(crate) source: RetryingStore,
    /// The store that they go to.
    pub(crate) target: RetryingStore,
    pub(crate) mover: NodeId,
    /// Where that is, for people.
    pub(crate) target_url: String,
    /// Another system's programs have filled the store that the jobs leave.
    pub(crate) is_source_foreign: bool,
    /// How long dead jobs stay there.
    keep_dead: Duration,
    clock: Clock,
}

impl TransferStores {
    pub(crate) fn new(source: &Duly, target: &Duly, mover: NodeId, to: String, calls_left: Option<u64>) -> Self {
        let calls_left = calls_left.map(|calls| Arc::new(AtomicU64::new(calls)));
        TransferStores {
            source: RetryingStore::new(source.store.clone(), calls_left.clone()),
            target: RetryingStore::new(target.store.clone(), calls_left),
            mover,
            target_url: to,
            is_source_foreign: false,
            keep_dead: target.options.keep_dead,
            clock: target.options.clock.clone(),
        }
    }

    /// The same the other way round, to put in order what was carried that way.
    pub(crate) fn reversed(&self, to: &str) -> Self {
        TransferStores {
            source: self.target.clone(),
            target: self.source.clone(),
            target_url: to.to_owned(),
            ..self.clone()
        }
    }

    /// The note that a move has left in the store that the jobs go to.
    pub(crate) async fn read_checkpoint(&self, queue: &str, begun_by: NodeId) -> Result<Option<String>> {
        let marker = TransferCheckpoint { begun_by, expected: None, replacement: None };
        match self.put_batch(queue, Arc::new([]), marker, Fence(0)).await? {
            TransferBatchResult::CheckpointMismatch(note) => Ok(note),
            TransferBatchResult::Applied { .. } | TransferBatchResult::UniqueTaken(_) => Ok(None),
        }
    }

    async fn put_batch(
        &self,
        queue: &str,
        jobs: Arc<[JobRecord]>,
        marker: TransferCheckpoint,
        fence: Fence,
    ) -> Result<TransferBatchResult> {
        let batch = TransferBatch {
            queue: queue.to_owned(),
            jobs,
            checkpoint: marker,
            fence_floor: fence,
            keep_dead: self.keep_dead,
        };
        self.target.transfer_in(&batch).await
    }
}

/// What a mover notes in the store that the jobs go to.
#[derive(Debug, Serialize, Deserialize)]
struct CheckpointState {
    mover: NodeId,
    /// Counts this mover's batches, so that no two notes are the same.
    batch_number: u64,
    /// The jobs that came last, and when each was pushed.
    jobs: Vec<(JobId, Micros)>,
}

impl CheckpointState {
    fn to_json(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|e| Error::store("move", e.to_string()))
    }

    fn from_json(text: &str) -> Result<Self> {
        serde_json::from_str(text).map_err(|e| {
            Error::store("move", format!("what an earlier move has noted cannot be read: {e}; was it a newer duly's?"))
        })
    }

    fn job_keys(&self) -> Vec<(JobId, SystemTime)> {
        self.jobs.iter().map(|(id, pushed)| (*id, from_micros(*pushed))).collect()
    }
}

/// A queue in a mover's hands.
pub(crate) struct QueueTransfer<'e> {
    stores: &'e TransferStores,
    queue: &'e str,
    begun_by: NodeId,
    fence: Fence,
    /// The marker as we have left it.
    checkpoint: Option<String>,
    batch_number: u64,
    /// How many jobs to read next.
    batch_limit: usize,
    /// How often a job has gone under each id, where another system's programs may give one to several.
    transferred_ids: HashMap<JobId, u32>,
    /// How often in a row nothing was found that was to be deleted.
    empty_deletes: u32,
}

impl<'e> QueueTransfer<'e> {
    /// Takes a queue for this mover, and puts in order what an earlier one has left.
    pub(crate) async fn begin(ends: &'e TransferStores, queue: &'e str) -> Result<Self> {
        let marked = ends.source.set_transfer_mark(queue, ends.mover, Some(&ends.target_url)).await?;
        let Some(moving) = marked.mark else {
            return Err(Error::store("move", "the store did not keep its mark"));
        };
        let mut carrier = QueueTransfer {
            stores: ends,
            queue,
            begun_by: moving.begun_by,
            fence: marked.last_fence,
            checkpoint: None,
            batch_number: 0,
            batch_limit: FIRST_BATCH_JOBS,
            transferred_ids: HashMap::new(),
            empty_deletes: 0,
        };
        let last = carrier.take_over().await?;
        carrier.delete_from_source(&last).await?;
        Ok(carrier)
    }

    /// Puts our name on the marker. Answers what came last, which may not have been deleted yet.
    async fn take_over(&mut self) -> Result<Vec<(JobId, SystemTime)>> {
        let mut found: Option<String> = None;
        for _ in 0..TAKE_OVERS_MAX {
            let last = found.as_deref().map(CheckpointState::from_json).transpose()?;
            let jobs = last.map(|note| note.jobs).unwrap_or_default();
            let note = CheckpointState { mover: self.stores.mover, batch_number: 0, jobs };
            self.checkpoint = found;
            match self.put_batch(Arc::new([]), Some(note.to_json()?)).await? {
                TransferBatchResult::CheckpointMismatch(other) => found = other,
                TransferBatchResult::Applied { .. } | TransferBatchResult::UniqueTaken(_) => return Ok(note.job_keys()),
            }
        }
        Err(self.taken_over_error())
    }

    /// Puts jobs into the other store, and changes the marker with them. Only if it answers yes is anything changed.
    async fn put_batch(&mut self, jobs: Arc<[JobRecord]>, is: Option<String>) -> Result<TransferBatchResult> {
        let marker =
            TransferCheckpoint { begun_by: self.begun_by, expected: self.checkpoint.clone(), replacement: is.clone() };
        let moved_in = self.stores.put_batch(self.queue, jobs, marker, self.fence).await?;
        if let TransferBatchResult::Applied { .. } = moved_in {
            self.checkpoint = is;
        }
        Ok(moved_in)
    }

    /// Deletes jobs where they came from. Answers how many were still there.
    async fn delete_from_source(&self, jobs: &[(JobId, SystemTime)]) -> Result<usize> {
        let gone = self.stores.source.transfer_out(self.queue, self.stores.mover, jobs).await?;
        gone.ok_or_else(|| self.taken_over_error())
    }

    fn taken_over_error(&self) -> Error {
        Error::Conflict(format!("another move has taken queue {} over", self.queue))
    }

    /// The next jobs in this state; `None` if there are no more.
    pub(crate) async fn read_batch(&mut self, state: State) -> Result<Option<Vec<JobRecord>>> {
        let mut cursor: Option<String> = None;
        loop {
            let filter = Filter {
                queue: Some(self.queue.to_owned()),
                state: Some(state),
                limit: self.batch_limit,
                cursor,
                with_details: true,
                ..Filter::default()
            };
            let page = self.stores.source.list(filter).await?;
            if !page.jobs.is_empty() {
                return self.select_batch(page.jobs).map(Some);
            }
            match page.next_cursor {
                Some(next) => cursor = Some(next),
                None => return Ok(None),
            }
        }
    }

    /// As many of these jobs as fit into one step.
    fn select_batch(&mut self, mut jobs: Vec<JobRecord>) -> Result<Vec<JobRecord>> {
        if let Some(strange) = jobs.iter().find(|record| record.job.kind == UNREADABLE_KIND) {
            let id = strange.job.id;
            return Err(Error::store("move", format!("job {id} was written by a newer duly: move with that one")));
        }
        if let Some(odd) = jobs.iter().find(|record| !is_word(&record.job.kind)) {
            let (id, kind) = (odd.job.id, &odd.job.kind);
            let reason =
                format!("job {id} is of the kind {kind:?}, which only its own store can keep: remove it there first");
            return Err(Error::store("move", reason));
        }
        if let Some(running) = jobs.iter().find(|record| record.state == State::Running) {
            return Err(Error::Conflict(format!("job {} runs although its queue is moving", running.job.id)));
        }
        let (fit, limit) = fit_batch(&jobs.iter().map(job_bytes).collect::<Vec<_>>(), self.batch_limit);
        jobs.truncate(fit);
        self.batch_limit = limit;
        // Each id once in a step: a second job with one is for the next.
        let mut ids = HashSet::new();
        let twice = jobs.iter().position(|record| !ids.insert(record.job.id));
        jobs.truncate(twice.unwrap_or(fit));
        Ok(jobs)
    }

    /// Nothing goes on if what is to be deleted is never found, and comes again each time.
    fn check_progress(&mut self, deleted: usize, named: &[(JobId, Micros)]) -> Result<()> {
        self.empty_deletes = if deleted == 0 { self.empty_deletes + 1 } else { 0 };
        match self.empty_deletes {
            0..=EMPTY_DELETES_MAX => Ok(()),
            _ => Err(Error::Conflict(format!(
                "jobs of queue {} come back each time they are deleted, such as {}; stop whatever else writes there",
                self.queue,
                named.first().map(|(id, _)| id.to_string()).unwrap_or_default()
            ))),
        }
    }

    /// A second job under an id that has gone is another job, where ids are not duly's: it gets one of its own.
    fn make_id_unique(&self, record: &mut JobRecord) {
        if let Some(no) = self.transferred_ids.get(&record.job.id) {
            record.job.id = JobId::from_name(&format!("{} {no} {}", record.job.id, to_micros(record.job.pushed)));
        }
    }

    /// Brings jobs to the other store, and deletes them here.
    pub(crate) async fn transfer_batch(
        &mut self,
        mut jobs: Vec<JobRecord>,
        moved: &mut QueueTransferReport,
    ) -> Result<()> {
        let named: Vec<_> = jobs.iter().map(|record| (record.job.id, to_micros(record.job.pushed))).collect();
        jobs.iter_mut().for_each(|record| self.make_id_unique(record));
        self.batch_number += 1;
        let note = CheckpointState { mover: self.stores.mover, batch_number: self.batch_number, jobs: named };
        let is = note.to_json()?;
        let (mut jobs, mut buried): (Arc<[JobRecord]>, u64) = (jobs.into(), 0);
        // Each turn there are fewer that have a key to be taken.
        let known = loop {
            match self.put_batch(jobs.clone(), Some(is.clone())).await? {
                TransferBatchResult::Applied { skipped: known } => break known,
                TransferBatchResult::CheckpointMismatch(_) => return Err(self.taken_over_error()),
                TransferBatchResult::UniqueTaken(taken) => {
                    let mut some = jobs.to_vec();
                    some.iter_mut()
                        .filter(|record| taken.contains(&record.job.id))
                        .for_each(|r| self.bury_for_taken_key(r));
                    (jobs, buried) = (some.into(), buried + taken.len() as u64);
                }
            }
        };
        // One that was not found may still be there, and then it is the same job when it comes again.
        let deleted = self.delete_from_source(&note.job_keys()).await?;
        if deleted == note.jobs.len() && self.stores.is_source_foreign {
            note.jobs.iter().for_each(|(id, _)| *self.transferred_ids.entry(*id).or_default() += 1);
        }
        self.check_progress(deleted, &note.jobs)?;
        count_transferred(&jobs, &known, moved);
        moved.buried += buried;
        Ok(())
    }

    /// Of two unfinished jobs with one unique key only one may stay so; the other is kept for people to look at.
    fn bury_for_taken_key(&self, record: &mut JobRecord) {
        let now = self.stores.clock.now();
        record.state = State::Dead;
        record.ended = Some(now);
        record.failures.push(Failure {
            at: now,
            attempt: record.attempts.saturating_add(1),
            node: self.stores.mover,
            error: "when it was moved here, another job had its unique key".to_owned(),
        });
        let too_many = record.failures.len().saturating_sub(FAILURES_MAX);
        record.failures.drain(..too_many);
    }

    /// Nothing is left: the marker goes, then the mark.
    pub(crate) async fn finish(mut self) -> Result<()> {
        if let TransferBatchResult::CheckpointMismatch(_) = self.put_batch(Arc::new([]), None).await? {
            return Err(self.taken_over_error());
        }
        self.stores.source.set_transfer_mark(self.queue, self.stores.mover, None).await.map(drop)
    }
}

/// About how much room a job takes on its way.
fn job_bytes(record: &JobRecord) -> usize {
    let history: usize = record.failures.iter().map(|failed| failed.error.len()).sum();
    let said: usize = record.log.iter().map(|said| said.line.len()).sum();
    record.job.args.len() + history + said + record.result.as_ref().map_or(0, String::len)
}

/// How many jobs of these sizes go into one step, at least one; and how many to read after `limit`.
fn fit_batch(sizes: &[usize], limit: usize) -> (usize, usize) {
    let mut sum = 0;
    let fit = sizes.iter().take_while(|size| {
        sum += **size;
        sum <= BATCH_BYTES_MAX
    });
    let fit = fit.count().max(1).min(sizes.len());
    let next = if fit < sizes.len() || sum > BATCH_BYTES_MAX / 2 { fit } else { 2 * limit };
    (fit, next.clamp(1, TRANSFER_BATCH_MAX))
}

fn count_transferred(jobs: &[JobRecord], known: &[JobId], moved: &mut QueueTransferReport) {
    let known: HashSet<&JobId> = known.iter().collect();
    for record in jobs {
        let count = match record.state {
            _ if known.contains(&record.job.id) => &mut moved.already_present,
            State::Ready | State::Running => &mut moved.ready,
            State::Scheduled => &mut moved.scheduled,
            State::Dead => &mut moved.dead,
            State::Done => &mut moved.done,
        };
        *count += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_grow_up_to_byte_limit() {
        assert_eq!(fit_batch(&[10; 50], 50), (50, 100));
        assert_eq!(fit_batch(&[10; 7], 400), (7, TRANSFER_BATCH_MAX));
        assert_eq!(fit_batch(&[BATCH_BYTES_MAX + 1, 1], 50), (1, 1), "one goes, however heavy");
        assert_eq!(fit_batch(&[BATCH_BYTES_MAX / 4; 8], 50), (4, 4));
        assert_eq!(fit_batch(&[BATCH_BYTES_MAX], 1), (1, 1));
        assert_eq!(fit_batch(&[10], 1), (1, 2), "and they grow again");
    }

    #[test]
    fn checkpoint_state_round_trips_as_json() {
        let note = CheckpointState { mover: NodeId::fresh(), batch_number: 7, jobs: vec![(JobId::from_name("a"), 5)] };
        let read = CheckpointState::from_json(&note.to_json().expect("writes")).expect("reads");
        assert_eq!((read.mover, read.batch_number, read.jobs), (note.mover, note.batch_number, note.jobs));
        assert!(CheckpointState::from_json("nonsense").is_err());
    }
}
