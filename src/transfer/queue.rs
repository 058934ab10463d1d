//! The transfer of one queue: taken over from an earlier mover, transferred batch by batch, completed.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::client::Duly;
use crate::clock::{Clock, Micros, from_micros, to_micros};
use crate::error::{ConflictKind, Error, Result};
use crate::job::push::is_word;
use crate::job::{Failure, Fence, JobId, JobRecord, JobRun, RunOutcome, State, UNREADABLE_KIND};
use crate::node::NodeId;
use crate::store::{Filter, TRANSFER_BATCH_MAX, TransferBatch, TransferBatchResult, TransferCheckpoint};
use crate::transfer::QueueTransferReport;
use crate::transfer::retrying_store::RetryingStore;

/// How often the checkpoint is read again if another mover changed it. It can do so once; then it is rejected.
const TAKE_OVERS_MAX: u32 = 5;
/// How many batches in a row other programs may take completely.
const EMPTY_BATCHES_MAX: u32 = 100;
/// Jobs in the first batch; later batches grow while they stay below this many bytes.
const FIRST_BATCH_JOBS: usize = 50;
const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The source and the target of a transfer.
#[derive(Clone)]
pub(crate) struct TransferStores {
    /// The store that the jobs leave.
    pub(crate) source: RetryingStore,
    /// The store that they go to.
    pub(crate) target: RetryingStore,
    pub(crate) mover: NodeId,
    /// The target for people.
    pub(crate) target_url: String,
    /// Whether another system's programs write to the source.
    pub(crate) is_source_foreign: bool,
    /// How long the target keeps dead jobs.
    keep_dead: Duration,
    clock: Clock,
}

impl TransferStores {
    pub(crate) fn new(
        source: &Duly,
        target: &Duly,
        mover: NodeId,
        target_url: String,
        calls_left: Option<u64>,
    ) -> Self {
        let calls_left = calls_left.map(|calls| Arc::new(AtomicU64::new(calls)));
        TransferStores {
            source: RetryingStore::new(source.store.clone(), calls_left.clone()),
            target: RetryingStore::new(target.store.clone(), calls_left),
            mover,
            target_url,
            is_source_foreign: false,
            keep_dead: target.options.keep_dead,
            clock: target.options.clock.clone(),
        }
    }

    /// Returns the opposite direction, to resolve an unfinished transfer.
    pub(crate) fn reversed(&self, target_url: &str) -> Self {
        TransferStores {
            source: self.target.clone(),
            target: self.source.clone(),
            target_url: target_url.to_owned(),
            ..self.clone()
        }
    }

    /// Returns the checkpoint of a transfer in the target.
    pub(crate) async fn read_checkpoint(&self, queue: &str, begun_by: NodeId) -> Result<Option<String>> {
        let checkpoint = TransferCheckpoint { begun_by, expected: None, replacement: None };
        match self.put_batch(queue, Arc::new([]), checkpoint, Fence(0)).await? {
            TransferBatchResult::CheckpointMismatch(text) => Ok(text),
            TransferBatchResult::Applied { .. } | TransferBatchResult::UniqueTaken(_) => Ok(None),
        }
    }

    async fn put_batch(
        &self,
        queue: &str,
        jobs: Arc<[JobRecord]>,
        checkpoint: TransferCheckpoint,
        fence_floor: Fence,
    ) -> Result<TransferBatchResult> {
        let batch = TransferBatch { queue: queue.to_owned(), jobs, checkpoint, fence_floor, keep_dead: self.keep_dead };
        self.target.transfer_in(&batch).await
    }
}

/// The content of a checkpoint.
#[derive(Debug, Serialize, Deserialize)]
struct CheckpointState {
    mover: NodeId,
    /// Counts this mover's batches, so that no two checkpoints are equal.
    batch_number: u64,
    /// The jobs of the last batch and when each was pushed.
    jobs: Vec<(JobId, Micros)>,
}

impl CheckpointState {
    fn to_json(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|e| Error::store("transfer", e.to_string()))
    }

    fn from_json(text: &str) -> Result<Self> {
        serde_json::from_str(text).map_err(|e| {
            let reason = format!("cannot read the checkpoint of an earlier move: {e}; use the version that wrote it");
            Error::store("transfer", reason)
        })
    }

    fn job_keys(&self) -> Vec<(JobId, SystemTime)> {
        self.jobs.iter().map(|(id, pushed)| (*id, from_micros(*pushed))).collect()
    }
}

/// A queue that this mover transfers.
pub(crate) struct QueueTransfer<'e> {
    stores: &'e TransferStores,
    queue: &'e str,
    begun_by: NodeId,
    fence: Fence,
    /// The checkpoint as last written.
    checkpoint: Option<String>,
    batch_number: u64,
    /// The size of the next batch.
    batch_limit: usize,
    /// How often each id was transferred; another system's programs may give one id to several jobs.
    transferred_ids: HashMap<JobId, u32>,
    /// How often in a row other programs had taken all jobs of a batch.
    empty_batches: u32,
    /// Jobs that the target has and the source may still have.
    undeleted: Vec<(JobId, Micros)>,
}

impl<'e> QueueTransfer<'e> {
    /// Takes over a queue for this mover and resolves the last batch of an earlier one.
    pub(crate) async fn begin(stores: &'e TransferStores, queue: &'e str) -> Result<Self> {
        let reply = stores.source.set_transfer_mark(queue, stores.mover, Some(&stores.target_url)).await?;
        let Some(mark) = reply.mark else {
            let reason = format!("cannot mark queue {queue} as moving; run the move again");
            return Err(Error::store("transfer", reason));
        };
        let mut transfer = QueueTransfer {
            stores,
            queue,
            begun_by: mark.begun_by,
            fence: reply.last_fence,
            checkpoint: None,
            batch_number: 0,
            batch_limit: FIRST_BATCH_JOBS,
            transferred_ids: HashMap::new(),
            empty_batches: 0,
            undeleted: Vec::new(),
        };
        let last_batch = transfer.take_over().await?;
        transfer.delete_from_source(&last_batch).await?;
        Ok(transfer)
    }

    /// Writes this mover's id to the checkpoint. Returns the last batch, which the source may still have.
    async fn take_over(&mut self) -> Result<Vec<(JobId, SystemTime)>> {
        let mut found: Option<String> = None;
        for _ in 0..TAKE_OVERS_MAX {
            let last_state = found.as_deref().map(CheckpointState::from_json).transpose()?;
            let jobs = last_state.map(|state| state.jobs).unwrap_or_default();
            let state = CheckpointState { mover: self.stores.mover, batch_number: 0, jobs };
            self.checkpoint = found;
            match self.put_batch(Arc::new([]), Some(state.to_json()?)).await? {
                TransferBatchResult::CheckpointMismatch(other) => found = other,
                TransferBatchResult::Applied { .. } | TransferBatchResult::UniqueTaken(_) => {
                    return Ok(state.job_keys());
                }
            }
        }
        Err(self.taken_over_error())
    }

    /// Adds jobs to the target and updates the checkpoint. Changes something only if the result is `Applied`.
    async fn put_batch(&mut self, jobs: Arc<[JobRecord]>, text: Option<String>) -> Result<TransferBatchResult> {
        let (expected, replacement) = (self.checkpoint.clone(), text.clone());
        let checkpoint = TransferCheckpoint { begun_by: self.begun_by, expected, replacement };
        let result = self.stores.put_batch(self.queue, jobs, checkpoint, self.fence).await?;
        if let TransferBatchResult::Applied { .. } = result {
            self.checkpoint = text;
        }
        Ok(result)
    }

    /// Deletes jobs from the source. Returns how many were still there.
    async fn delete_from_source(&self, jobs: &[(JobId, SystemTime)]) -> Result<usize> {
        let deleted = self.stores.source.transfer_out(self.queue, self.stores.mover, jobs).await?;
        deleted.ok_or_else(|| self.taken_over_error())
    }

    fn taken_over_error(&self) -> Error {
        Error::conflict(
            ConflictKind::TakenOver,
            format!(
                "another move has taken over queue {}, so this one has stopped; let that move complete",
                self.queue
            ),
        )
    }

    /// Returns the next jobs in this state; `None` if there are no more.
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

    /// Returns as many of these jobs as fit into one batch.
    fn select_batch(&mut self, mut jobs: Vec<JobRecord>) -> Result<Vec<JobRecord>> {
        if let Some(unreadable) = jobs.iter().find(|record| record.job.kind == UNREADABLE_KIND) {
            let id = unreadable.job.id;
            return Err(Error::store(
                "transfer",
                format!("job {id} was written by a newer duly; use that version to move it"),
            ));
        }
        if let Some(foreign) = jobs.iter().find(|record| !is_word(&record.job.kind)) {
            let (id, kind) = (foreign.job.id, &foreign.job.kind);
            let reason = format!(
                "job {id} has the kind {kind:?}, which the target store does not support; remove the job first"
            );
            return Err(Error::store("transfer", reason));
        }
        if let Some(running) = jobs.iter().find(|record| record.state == State::Running) {
            return Err(Error::conflict(
                ConflictKind::Running,
                format!("job {} is running in a moving queue; run the move again", running.job.id),
            ));
        }
        let (fit, limit) = fit_batch(&jobs.iter().map(job_bytes).collect::<Vec<_>>(), self.batch_limit);
        jobs.truncate(fit);
        self.batch_limit = limit;
        // Each id once per batch: a second job with the same id goes into the next one.
        let mut ids = HashSet::new();
        let duplicate = jobs.iter().position(|record| !ids.insert(record.job.id));
        jobs.truncate(duplicate.unwrap_or(fit));
        Ok(jobs)
    }

    /// Reserves jobs in the source. Returns those that no other program has taken since they were listed.
    async fn reserve(&mut self, mut jobs: Vec<JobRecord>) -> Result<Vec<JobRecord>> {
        let keys: Vec<_> = jobs.iter().map(|record| (record.job.id, record.job.pushed)).collect();
        let reserved = self.stores.source.transfer_reserve(self.queue, self.stores.mover, &keys).await?;
        let reserved: HashSet<_> = reserved.ok_or_else(|| self.taken_over_error())?.into_iter().collect();
        jobs.retain(|record| reserved.contains(&(record.job.id, record.job.pushed)));
        self.empty_batches = if jobs.is_empty() { self.empty_batches + 1 } else { 0 };
        match self.empty_batches {
            0..=EMPTY_BATCHES_MAX => Ok(jobs),
            _ => Err(Error::conflict(
                ConflictKind::InUse,
                format!(
                    "other programs take every job of queue {} before it can be moved; stop them first",
                    self.queue
                ),
            )),
        }
    }

    /// Gives a job a new id if its id was transferred before: in another system, that is another job.
    fn make_id_unique(&self, record: &mut JobRecord) {
        if let Some(count) = self.transferred_ids.get(&record.job.id) {
            record.job.id = JobId::from_name(&format!("{} {count} {}", record.job.id, to_micros(record.job.pushed)));
        }
    }

    /// Adds jobs to the target and deletes them from the source, without those that other programs have taken. Returns
    /// how many there were. After an error, reserved jobs return to their places if that is possible.
    pub(crate) async fn transfer_batch(
        &mut self,
        jobs: Vec<JobRecord>,
        report: &mut QueueTransferReport,
    ) -> Result<u64> {
        let result = self.try_transfer_batch(jobs, report).await;
        if let Err(error) = &result
            && self.stores.is_source_foreign
            && let Err(reason) = self.release_reserved(error).await
        {
            tracing::warn!(
                queue = self.queue, %reason,
                "jobs may still be reserved by this move, and other programs do not see them; run the move again"
            );
        }
        result
    }

    /// Returns reserved jobs to their places in the source, except those that the target has.
    async fn release_reserved(&mut self, failure: &Error) -> Result<()> {
        // A new checkpoint tells whether the target has applied the last batch, and prevents that it still does.
        self.batch_number += 1;
        let jobs = self.undeleted.clone();
        let state = CheckpointState { mover: self.stores.mover, batch_number: self.batch_number, jobs };
        let transferred = match self.put_batch(Arc::new([]), Some(state.to_json()?)).await {
            Ok(TransferBatchResult::CheckpointMismatch(found)) => {
                let found = found.as_deref().map(CheckpointState::from_json).transpose()?;
                let own = found.filter(|found| found.mover == self.stores.mover);
                own.ok_or_else(|| self.taken_over_error())?
            }
            Ok(TransferBatchResult::Applied { .. } | TransferBatchResult::UniqueTaken(_)) => state,
            Err(error) if matches!(failure, Error::Unknown { .. }) => return Err(error),
            // The target has refused the batch, and refuses every other write.
            Err(_) => state,
        };
        self.delete_from_source(&transferred.job_keys()).await.map(drop)
    }

    async fn try_transfer_batch(&mut self, jobs: Vec<JobRecord>, report: &mut QueueTransferReport) -> Result<u64> {
        let mut jobs = self.reserve(jobs).await?;
        if jobs.is_empty() {
            return Ok(0);
        }
        let keys: Vec<_> = jobs.iter().map(|record| (record.job.id, to_micros(record.job.pushed))).collect();
        jobs.iter_mut().for_each(|record| self.make_id_unique(record));
        self.batch_number += 1;
        let state = CheckpointState { mover: self.stores.mover, batch_number: self.batch_number, jobs: keys };
        let text = state.to_json()?;
        let (mut jobs, mut buried): (Arc<[JobRecord]>, u64) = (jobs.into(), 0);
        // Each iteration leaves fewer jobs with a taken key.
        let skipped = loop {
            match self.put_batch(jobs.clone(), Some(text.clone())).await? {
                TransferBatchResult::Applied { skipped } => break skipped,
                TransferBatchResult::CheckpointMismatch(_) => return Err(self.taken_over_error()),
                TransferBatchResult::UniqueTaken(taken) => {
                    let mut records = jobs.to_vec();
                    records
                        .iter_mut()
                        .filter(|record| taken.contains(&record.job.id))
                        .for_each(|r| self.bury_for_taken_key(r));
                    (jobs, buried) = (records.into(), buried + taken.len() as u64);
                }
            }
        };
        self.undeleted.clone_from(&state.jobs);
        // After a lost reply, the jobs are gone already.
        let deleted = self.delete_from_source(&state.job_keys()).await?;
        self.undeleted.clear();
        if deleted == state.jobs.len() && self.stores.is_source_foreign {
            state.jobs.iter().for_each(|(id, _)| *self.transferred_ids.entry(*id).or_default() += 1);
        }
        count_transferred(&jobs, &skipped, report);
        report.buried += buried;
        Ok(state.jobs.len() as u64)
    }

    /// Makes a job dead because another unfinished job has its unique key; it is kept for people to look at.
    fn bury_for_taken_key(&self, record: &mut JobRecord) {
        let now = self.stores.clock.now();
        record.state = State::Dead;
        record.ended = Some(now);
        let failure = Failure {
            at: now,
            attempt: record.attempts.saturating_add(1),
            node: self.stores.mover,
            error: "buried when moved to this store: another job had its unique key".to_owned(),
        };
        record.push_run(JobRun::failed(RunOutcome::Bury, failure));
    }

    /// Completes the transfer: removes the checkpoint, then the mark.
    pub(crate) async fn finish(mut self) -> Result<()> {
        if let TransferBatchResult::CheckpointMismatch(_) = self.put_batch(Arc::new([]), None).await? {
            return Err(self.taken_over_error());
        }
        self.stores.source.set_transfer_mark(self.queue, self.stores.mover, None).await.map(drop)
    }
}

/// Returns the approximate size of a job in a batch.
fn job_bytes(record: &JobRecord) -> usize {
    let history: usize = record.runs.iter().map(JobRun::text_bytes).sum();
    let log: usize = record.log.iter().map(|entry| entry.line.len()).sum();
    record.job.args.len() + history + log + record.result.as_ref().map_or(0, String::len)
}

/// Returns how many jobs of these sizes go into one batch, at least one, and how many to read after `limit`.
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

fn count_transferred(jobs: &[JobRecord], skipped: &[JobId], report: &mut QueueTransferReport) {
    let skipped: HashSet<&JobId> = skipped.iter().collect();
    for record in jobs {
        let count = match record.state {
            _ if skipped.contains(&record.job.id) => &mut report.already_present,
            State::Ready | State::Running => &mut report.ready,
            State::Scheduled => &mut report.scheduled,
            State::Dead => &mut report.dead,
            State::Cancelled => &mut report.cancelled,
            State::Done => &mut report.done,
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
        assert_eq!(fit_batch(&[BATCH_BYTES_MAX + 1, 1], 50), (1, 1), "one job always fits");
        assert_eq!(fit_batch(&[BATCH_BYTES_MAX / 4; 8], 50), (4, 4));
        assert_eq!(fit_batch(&[BATCH_BYTES_MAX], 1), (1, 1));
        assert_eq!(fit_batch(&[10], 1), (1, 2), "batches grow again");
    }

    #[test]
    fn checkpoint_state_round_trips_as_json() {
        let state = CheckpointState { mover: NodeId::fresh(), batch_number: 7, jobs: vec![(JobId::from_name("a"), 5)] };
        let read = CheckpointState::from_json(&state.to_json().expect("writes")).expect("reads");
        assert_eq!((read.mover, read.batch_number, read.jobs), (state.mover, state.batch_number, state.jobs));
        assert!(CheckpointState::from_json("nonsense").is_err());
    }
}
