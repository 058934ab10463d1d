//! Settle: records the outcomes of attempts, each only if the node still holds the job with the same fence.

use std::time::Duration;

use rusqlite::{CachedStatement, OptionalExtension, params};

use crate::NodeId;
use crate::clock::{Micros, from_micros, micros, to_micros};
use crate::job::{JobId, JobRun, Outcome, RunOutcome};
use crate::store::sqlite::jobs::counts::CountColumn;
use crate::store::sqlite::jobs::state::{STATE_CANCELLED, STATE_DEAD, STATE_DONE};
use crate::store::sqlite::jobs::{deferred, progress, runs, state};
use crate::store::sqlite::rows::to_millis;
use crate::store::sqlite::tx::Tx;
use crate::store::{AttemptEnd, CANCELLED_INDEX, outcome_index, timing_indexes};

/// Records outcomes. Returns the jobs that the node no longer held.
pub(crate) fn settle(tx: &Tx<'_>, node: i64, id: NodeId, ends: &[AttemptEnd]) -> rusqlite::Result<Vec<JobId>> {
    let (mut lost, mut deferred_ends) = (Vec::new(), Vec::new());
    let mut acks = AckWriter::new(tx, node, id)?;
    for end in ends {
        let recorded = match &end.outcome {
            Outcome::Ack => acks.settle_ack(end)?.map(|queue| (queue, AfterSettle::Ended)),
            other => settle_other(tx, node, id, end, other)?,
        };
        match recorded {
            Some((queue, next)) => {
                count_outcome(tx, queue, end, next);
                let due = deferred_until(tx, end).filter(|_| next == AfterSettle::Continues);
                deferred_ends.extend(due.map(|due| (queue, end, due)));
            }
            None => lost.push(end.id()),
        }
    }
    deferred::add_hints(tx, &deferred_ends)?;
    Ok(lost)
}

/// The next state of a job after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AfterSettle {
    /// The job is done or dead.
    Ended,
    /// The job is cancelled; callers that wait for it are notified already.
    Cancelled,
    /// The job is done, because its handler acked it in a transaction. Callers that wait for it are notified already.
    Acked,
    /// The job runs again.
    Continues,
}

/// Returns the due time of a job that its node deferred for lack of a handler.
fn deferred_until(tx: &Tx<'_>, end: &AttemptEnd) -> Option<Micros> {
    match end.outcome {
        Outcome::Release { after } if end.is_deferred() && !after.is_zero() => Some(due_after(tx, after)),
        _ => None,
    }
}

fn due_after(tx: &Tx<'_>, after: Duration) -> Micros {
    tx.now.saturating_add(micros(after))
}

/// Counts a recorded outcome. The attempt of a job that ended cancelled has not failed, whatever its outcome.
fn count_outcome(tx: &Tx<'_>, queue: i64, end: &AttemptEnd, next: AfterSettle) {
    tx.change_count(queue, CountColumn::Running, -1);
    if next != AfterSettle::Continues {
        tx.change_count(queue, CountColumn::UnfinishedBytes, -(end.held().args_bytes as u64).cast_signed());
    }
    if next == AfterSettle::Ended {
        tx.notify_completed(queue, end.id());
    }
    let index = match next {
        AfterSettle::Cancelled => CANCELLED_INDEX,
        AfterSettle::Acked => outcome_index(&Outcome::Ack),
        AfterSettle::Ended | AfterSettle::Continues => outcome_index(&end.outcome),
    };
    tx.increment_counter(queue, index, 1);
    if let Some(timing) = end.timing {
        timing_indexes(timing.lateness, timing.duration)
            .into_iter()
            .for_each(|index| tx.increment_counter(queue, index, 1));
    }
}

/// The common case, an ack, with prepared statements.
struct AckWriter<'t> {
    tx: &'t Tx<'t>,
    node: i64,
    id: NodeId,
    delete_running: CachedStatement<'t>,
    delete_job: CachedStatement<'t>,
    /// The queue of the last ack: most batches have only one.
    last_queue: Option<(String, i64)>,
}

impl<'t> AckWriter<'t> {
    fn new(tx: &'t Tx<'t>, node: i64, id: NodeId) -> rusqlite::Result<Self> {
        Ok(AckWriter {
            tx,
            node,
            id,
            delete_running: tx
                .statement("DELETE FROM duly_running WHERE job_no = ?1 AND node_no = ?2 AND fence = ?3")?,
            delete_job: tx.statement("DELETE FROM duly_job WHERE job_no = ?1")?,
            last_queue: None,
        })
    }

    /// Returns the queue; `None` if the node does not hold the job, and nothing was recorded.
    fn settle_ack(&mut self, end: &AttemptEnd) -> rusqlite::Result<Option<i64>> {
        if self.delete_running.execute(params![end.held().locator.value(), self.node, end.fence().0.cast_signed()])?
            == 0
        {
            return Ok(None);
        }
        let queue = self.queue_no(end.queue())?;
        if !end.keep.is_zero() {
            progress::set_result(self.tx, end.held().locator.value(), end.result.as_deref())?;
            let ack = recorded_run(self.tx, self.id, end);
            keep_ended(self.tx, queue, end, STATE_DONE, end.held().attempts, ack.as_ref())?;
            return Ok(Some(queue));
        }
        self.delete_job.execute([end.held().locator.value()])?;
        runs::delete(self.tx, end.held().locator.value())?;
        progress::delete(self.tx, end.held().locator.value())?;
        if let Some(key) = &end.held().job.unique {
            state::free_unique_key(self.tx, queue, key.as_str(), end.held().locator.value())?;
        }
        self.tx.remember_removed_id(queue, end.id().as_bytes())?;
        Ok(Some(queue))
    }

    fn queue_no(&mut self, name: &str) -> rusqlite::Result<i64> {
        match &self.last_queue {
            Some((last, queue_no)) if last == name => Ok(*queue_no),
            _ => {
                let queue_no = self.tx.ensure_queue(name)?;
                self.last_queue = Some((name.to_owned(), queue_no));
                Ok(queue_no)
            }
        }
    }
}

/// The old position of a job that its node gave up.
struct ReadyPosition {
    queue_no: i64,
    priority: i64,
    seq: i64,
    /// Set if the job was cancelled.
    cancel_keep_ms: Option<i64>,
    /// The handler has acked the job in a transaction.
    acked: bool,
}

/// Removes a job from its node, if node and fence match.
fn remove_running(tx: &Tx<'_>, node: i64, end: &AttemptEnd) -> rusqlite::Result<Option<ReadyPosition>> {
    tx.statement(
        "DELETE FROM duly_running WHERE job_no = ?1 AND node_no = ?2 AND fence = ?3
         RETURNING queue_no, priority, seq, cancel_keep_ms, acked IS NOT NULL",
    )?
    .query_row(params![end.held().locator.value(), node, end.fence().0.cast_signed()], |row| {
        let [queue_no, priority, seq] = [row.get(0)?, row.get(1)?, row.get(2)?];
        Ok(ReadyPosition { queue_no, priority, seq, cancel_keep_ms: row.get(3)?, acked: row.get(4)? })
    })
    .optional()
}

/// Records any outcome but an ack. Returns the queue and the next state; `None` if the node does not hold the job, and
/// nothing was recorded.
fn settle_other(
    tx: &Tx<'_>,
    node: i64,
    id: NodeId,
    end: &AttemptEnd,
    outcome: &Outcome,
) -> rusqlite::Result<Option<(i64, AfterSettle)>> {
    let Some(position) = remove_running(tx, node, end)? else {
        return Ok(None);
    };
    let ReadyPosition { queue_no: queue, priority, seq, cancel_keep_ms, acked } = position;
    let (job_no, attempts, crashes) = (end.held().locator.value(), end.held().attempts, end.held().crashes);
    let attempt = attempts.saturating_add(1);
    if acked {
        let ack = recorded_run(tx, id, end).map(|run| JobRun { outcome: RunOutcome::Ack, error: None, ..run });
        state::insert_acked(tx, job_no, to_micros(end.held().due), attempts, crashes, ack.as_ref())?;
        return Ok(Some((queue, AfterSettle::Acked)));
    }
    if let Some(keep_ms) = cancel_keep_ms {
        settle_cancelled(tx, id, end, keep_ms)?;
        return Ok(Some((queue, AfterSettle::Cancelled)));
    }
    if let Some(run) = recorded_run(tx, id, end) {
        runs::record(tx, job_no, &run)?;
    }
    match outcome {
        Outcome::Ack => {}
        Outcome::Bury { .. } => keep_ended(tx, queue, end, STATE_DEAD, attempt, None)?,
        Outcome::Retry { after, .. } => {
            match after.is_zero() {
                true => state::insert_ready(tx, queue, job_no, priority, tx.next_number()?, tx.now, attempt, crashes)?,
                false => state::insert_scheduled(tx, queue, job_no, priority, due_after(tx, *after), attempt, crashes)?,
            }
            tx.wake_one(end.queue());
        }
        Outcome::Release { after } => {
            match after.is_zero() {
                true => {
                    state::insert_ready(tx, queue, job_no, priority, seq, to_micros(end.held().due), attempts, crashes)?
                }
                false => {
                    state::insert_scheduled(tx, queue, job_no, priority, due_after(tx, *after), attempts, crashes)?
                }
            }
            tx.wake_one(end.queue());
        }
    }
    let next = if matches!(outcome, Outcome::Bury { .. }) { AfterSettle::Ended } else { AfterSettle::Continues };
    Ok(Some((queue, next)))
}

/// Ends a cancelled job whose attempt did not succeed.
fn settle_cancelled(tx: &Tx<'_>, id: NodeId, end: &AttemptEnd, keep_ms: i64) -> rusqlite::Result<()> {
    let (job_no, mut attempts, held) = (end.held().locator.value(), end.held().attempts, end.held());
    if let Outcome::Retry { .. } | Outcome::Bury { .. } = &end.outcome {
        attempts = attempts.saturating_add(1);
    }
    if let Some(run) = recorded_run(tx, id, end) {
        runs::record(tx, job_no, &run)?;
    }
    state::insert_cancelled(tx, job_no, keep_ms, to_micros(held.due), attempts, held.crashes)
}

/// Returns the attempt as a run, if it is recorded.
fn recorded_run(tx: &Tx<'_>, id: NodeId, end: &AttemptEnd) -> Option<JobRun> {
    end.is_recorded().then(|| end.to_run(id, from_micros(tx.now)))
}

/// Ends a job that is kept for a while. `ack` is the run that made it done.
fn keep_ended(
    tx: &Tx<'_>,
    queue: i64,
    end: &AttemptEnd,
    state: i64,
    attempts: u32,
    ack: Option<&JobRun>,
) -> rusqlite::Result<()> {
    if let Some(key) = &end.held().job.unique {
        state::free_unique_key(tx, queue, key.as_str(), end.held().locator.value())?;
    }
    let prune_at = tx.now.saturating_add(to_millis(end.keep).saturating_mul(1_000));
    let due = to_micros(end.held().due);
    state::insert_ended(
        tx,
        queue,
        end.held().locator.value(),
        state,
        prune_at,
        tx.now,
        due,
        attempts,
        end.held().crashes,
        ack,
    )
}

/// Deletes ended jobs of a queue: expired ones, then done ones beyond the newest `done_max`.
pub(crate) fn prune(tx: &Tx<'_>, queue: i64, done_max: usize, max: usize) -> rusqlite::Result<usize> {
    // SQLite's integers are signed, and a caller that keeps all jobs may pass a greater number.
    let done_max = i64::try_from(done_max).unwrap_or(i64::MAX);
    let pick = |sql: &str, params: &[&dyn rusqlite::ToSql]| -> rusqlite::Result<Vec<i64>> {
        tx.statement(sql)?.query_map(params, |row| row.get(0))?.collect()
    };
    let mut gone = pick(
        "SELECT job_no FROM duly_ended WHERE queue_no = ?1 AND state IN (?2, ?3, ?4) AND prune_at <= ?5 LIMIT ?6",
        params![queue, STATE_DONE, STATE_DEAD, STATE_CANCELLED, tx.now, max],
    )?;
    if gone.len() < max {
        let beyond = pick(
            "SELECT job_no FROM duly_ended WHERE queue_no = ?1 AND state = ?2 AND prune_at > ?3
              ORDER BY prune_at DESC LIMIT ?4 OFFSET ?5",
            params![queue, STATE_DONE, tx.now, max - gone.len(), done_max],
        )?;
        gone.extend(beyond);
    }
    deferred::delete_stale_hints(tx, queue)?;
    for job_no in &gone {
        state::remove_ended(tx, *job_no)?;
        state::delete_body(tx, *job_no)?;
    }
    Ok(gone.len())
}
