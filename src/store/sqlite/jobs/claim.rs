//! Claim: takes back, promotes and takes jobs, in one bounded operation.

use std::time::Duration;

use rusqlite::{OptionalExtension, params};

use crate::clock::from_micros;
use crate::job::{Failure, Fence, HeldJob, JobRun, Locator, Outcome, RunOutcome};
use crate::node::NodeId;
use crate::store::sqlite::cron;
use crate::store::sqlite::inbox;
use crate::store::sqlite::jobs::counts::CountColumn;
use crate::store::sqlite::jobs::{deferred, job_index, runs, state};
use crate::store::sqlite::nodes;
use crate::store::sqlite::nodes::registry::NodeRegistry;
use crate::store::sqlite::rows::{
    DUE_ATTEMPTS_CRASHES, JOB_COLUMNS, JOB_COLUMNS_LEN, read_integer, read_job, read_u32,
};
use crate::store::sqlite::tx::Tx;
use crate::store::{
    CANCELLED_INDEX, CLAIM_MAX, CRASH_SUSPECT_MIN, Claim, ClaimReply, PROMOTE_MAX, PROMOTE_MIN, TAKE_BACK_MAX,
    TAKEN_BACK_INDEX, outcome_index,
};

/// The error in the history for an attempt whose node died.
const NODE_DIED_ERROR: &str = "the node died while it held this job, or was paused for longer than its lease";

/// The result of one claim.
struct ClaimBatch {
    jobs: Vec<HeldJob>,
    now: i64,
    more: bool,
    /// Other nodes with free slots should claim too.
    wake_others: bool,
    next_due: Option<Duration>,
    next_tick: Option<Duration>,
}

/// Implements `JobStore::claim`.
pub(crate) fn claim(
    tx: &Tx<'_>,
    registry: &NodeRegistry,
    node: NodeId,
    claim: &Claim,
    heartbeat_interval: Duration,
) -> rusqlite::Result<ClaimReply> {
    let node_no = nodes::ensure_node(tx, registry, node)?;
    let queue = tx.ensure_queue(&claim.queue)?;
    if claim.resync {
        let with_args = claim.args_bytes_max.is_none();
        return Ok(ClaimReply::new(tx.now, resync(tx, node_no, queue, &claim.queue, with_args)?));
    }
    let taken_back = match claim.suspect {
        Some(suspect) => take_back_if_dead(tx, registry, suspect, queue)?,
        None => 0,
    };
    let claimed = claim_batch(tx, node_no, queue, claim)?;
    // Recorded while the write lock is held: a push that this claim did not see will see the node as idle.
    let has_room = claimed.jobs.len() < claim.max.min(CLAIM_MAX);
    let idle_rank = registry.set_idle(node, &claim.queue, has_room && !claimed.more);
    // Perhaps only this node knows of a job that is due before the next heartbeat.
    let is_due_soon = claimed.next_due.is_some_and(|due| due < heartbeat_interval);
    if claimed.wake_others || (!has_room && is_due_soon) {
        tx.wake_one(&claim.queue);
    }
    Ok(ClaimReply {
        has_more: claimed.more || taken_back == TAKE_BACK_MAX,
        next_due: claimed.next_due,
        next_tick: claimed.next_tick,
        idle_rank,
        taken_back,
        suspect_has_more: taken_back == TAKE_BACK_MAX,
        ..ClaimReply::new(claimed.now, claimed.jobs)
    })
}

/// Takes up to `max` jobs of a queue for a node.
fn claim_batch(tx: &Tx<'_>, node: i64, queue: i64, claim: &Claim) -> rusqlite::Result<ClaimBatch> {
    let max = claim.max.min(CLAIM_MAX);
    let mut claimed =
        ClaimBatch { jobs: Vec::new(), now: tx.now, more: false, wake_others: false, next_due: None, next_tick: None };
    // If ticks were planned in the future, the clock was set back: a check has them planned again.
    let (paused, moving, tick): (bool, bool, Option<i64>) = tx
        .statement(
            "SELECT paused, transfer_mark IS NOT NULL, iif(planned_at > ?2, ?2, cron_check_at)
               FROM duly_queue WHERE queue_no = ?1",
        )?
        .query_row([queue, tx.now], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    claimed.next_tick = cron::duration_until(tick.filter(|_| !moving), tx.now);
    if paused || moving {
        return Ok(claimed);
    }
    let promote_max = PROMOTE_MAX.min(PROMOTE_MIN.max(4 * max));
    let promoted = promote(tx, queue, promote_max)?;
    let picks_more = deferred::adopt(tx, queue, claim.kinds.as_deref(), claim.excluded_kind.as_deref(), max)?;
    claimed.jobs = take_ready(tx, node, queue, claim, max)?;
    let may_leave_jobs = claimed.jobs.len() == max || claim.args_bytes_max.is_some();
    claimed.wake_others = promoted == promote_max || (may_leave_jobs && has_ready(tx, queue)?);
    // A drained worker must not leave before the rows of its queue: those of other queues may have come first.
    claimed.more = claimed.wake_others || picks_more || inbox::has_more_rows_of(tx, &claim.queue)?;
    claimed.next_due = next_due(tx, queue)?;
    Ok(claimed)
}

/// Returns every job that a node holds in a queue, after the reply to a claim was lost.
fn resync(tx: &Tx<'_>, node: i64, queue: i64, name: &str, with_args: bool) -> rusqlite::Result<Vec<HeldJob>> {
    tx.statement(&format!(
        "SELECT {JOB_COLUMNS}, h.job_no, h.priority, h.seq, h.due_at, h.attempts, h.crashes, h.fence
           FROM duly_running h JOIN duly_job j ON j.job_no = h.job_no
           WHERE h.node_no = ?1 AND h.queue_no = ?2 ORDER BY h.priority, h.seq"
    ))?
    .query_map([node, queue], |row| {
        let fence: i64 = row.get(JOB_COLUMNS_LEN + 6)?;
        let mut held = read_held_job(row, name, fence)?;
        if !with_args {
            held.drop_args();
        }
        Ok(held)
    })?
    .collect()
}

/// Implements `JobStore::set_alone`.
pub(crate) fn set_alone(tx: &Tx<'_>, node: NodeId, held: &HeldJob, alone: bool) -> rusqlite::Result<bool> {
    let place: Option<(i64, i64)> = tx
        .statement(
            "SELECT h.node_no, h.queue_no FROM duly_running h JOIN duly_node n ON n.node_no = h.node_no
              WHERE h.job_no = ?1 AND h.fence = ?2 AND n.id = ?3",
        )?
        .query_row(params![held.locator.value(), held.fence.0.cast_signed(), node.as_bytes()], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .optional()?;
    let Some((node_no, queue_no)) = place else {
        return Ok(false);
    };
    if alone {
        tx.statement(
            "UPDATE duly_running SET alone = NULL WHERE node_no = ?1 AND queue_no = ?2 AND alone IS NOT NULL",
        )?
        .execute([node_no, queue_no])?;
    }
    tx.statement("UPDATE duly_running SET alone = ?2 WHERE job_no = ?1")?
        .execute(params![held.locator.value(), alone.then_some(1)])?;
    Ok(true)
}

/// Takes back the jobs of the suspect in this queue, if its lease is lost.
fn take_back_if_dead(tx: &Tx<'_>, registry: &NodeRegistry, suspect: NodeId, queue: i64) -> rusqlite::Result<usize> {
    let node_no = tx
        .statement("SELECT node_no FROM duly_node WHERE id = ?1")?
        .query_row([suspect.as_bytes()], |row| row.get(0))
        .optional()?;
    match node_no {
        Some(node_no) if registry.can_take_back(suspect) => take_back(tx, node_no, suspect, queue),
        _ => Ok(0),
    }
}

/// Returns the jobs of a dead node in this queue to their old positions, and counts a crash for each, except for
/// bystanders: suspects that did not run alone.
fn take_back(tx: &Tx<'_>, dead: i64, id: NodeId, queue: i64) -> rusqlite::Result<usize> {
    let held: Vec<TakenJob> = tx
        .statement(
            "SELECT job_no, attempts, crashes, due_at, cancel_keep_ms, coalesce(alone, 0), acked IS NOT NULL
               FROM duly_running WHERE node_no = ?1 AND queue_no = ?2 ORDER BY priority, seq LIMIT ?3",
        )?
        .query_map(params![dead, queue, TAKE_BACK_MAX], |row| {
            Ok(TakenJob {
                job_no: row.get(0)?,
                attempts: read_u32(row, 1),
                crashes: read_u32(row, 2),
                due: read_integer(row, 3),
                cancel_keep_ms: row.get(4)?,
                alone: row.get::<_, i64>(5)? == 1,
                acked: row.get(6)?,
            })
        })?
        .collect::<rusqlite::Result<_>>()?;
    let count = held.len();
    tx.change_count(queue, CountColumn::Running, -(count as i64));
    let (acked, held): (Vec<TakenJob>, Vec<TakenJob>) = held.into_iter().partition(|job| job.acked);
    for job in &acked {
        end_acked(tx, queue, job)?;
    }
    let returned = held.iter().filter(|job| job.cancel_keep_ms.is_none()).count();
    tx.change_count(queue, CountColumn::Ready, returned as i64);
    if !held.is_empty() {
        tx.increment_counter(queue, TAKEN_BACK_INDEX, held.len() as u64);
    }
    for job in &held {
        let TakenJob { job_no, attempts, .. } = job;
        let (at, attempt) = (from_micros(tx.now), attempts.saturating_add(1));
        let failure = Failure { at, attempt, node: id, error: NODE_DIED_ERROR.to_owned() };
        runs::record(tx, *job_no, &JobRun::failed(RunOutcome::Crash, failure))?;
        if let Some(keep_ms) = job.cancel_keep_ms {
            end_cancelled(tx, queue, job, keep_ms)?;
            continue;
        }
        tx.statement(&format!(
            "INSERT INTO duly_ready (queue_no, priority, seq, job_no, due_at, attempts, crashes)
             WITH held (queue_no, priority, seq, job_no, due_at, attempts, crashes) AS (
               SELECT queue_no, priority, seq, job_no, {DUE_ATTEMPTS_CRASHES} FROM duly_running WHERE job_no = ?1)
             SELECT queue_no, priority, seq, job_no, due_at, attempts, ?2 FROM held",
        ))?
        .execute(params![job_no, job.crashes_with_this()])?;
        tx.statement("DELETE FROM duly_running WHERE job_no = ?1")?.execute([job_no])?;
    }
    Ok(count)
}

/// A job that is taken back from a dead node.
struct TakenJob {
    job_no: i64,
    attempts: u32,
    crashes: u32,
    due: i64,
    /// Set if the job was cancelled.
    cancel_keep_ms: Option<i64>,
    /// The dead node ran no other job.
    alone: bool,
    /// Its handler has acked it in a transaction.
    acked: bool,
}

impl TakenJob {
    /// Returns the number of crashes including this one, if it counts.
    fn crashes_with_this(&self) -> u32 {
        let counts = self.alone || self.crashes < CRASH_SUSPECT_MIN;
        self.crashes.saturating_add(u32::from(counts))
    }
}

/// Ends a job that its handler acked in a transaction before its node died.
fn end_acked(tx: &Tx<'_>, queue: i64, job: &TakenJob) -> rusqlite::Result<()> {
    tx.statement("DELETE FROM duly_running WHERE job_no = ?1")?.execute([job.job_no])?;
    let (bytes, _) = state::read_args_bytes_and_queue(tx, job.job_no)?;
    tx.change_count(queue, CountColumn::UnfinishedBytes, -bytes);
    tx.increment_counter(queue, outcome_index(&Outcome::Ack), 1);
    state::insert_acked(tx, job.job_no, job.due, job.attempts, job.crashes, None)
}

/// Ends a cancelled job of a dead node.
fn end_cancelled(tx: &Tx<'_>, queue: i64, job: &TakenJob, keep_ms: i64) -> rusqlite::Result<()> {
    tx.statement("DELETE FROM duly_running WHERE job_no = ?1")?.execute([job.job_no])?;
    let (bytes, _) = state::read_args_bytes_and_queue(tx, job.job_no)?;
    tx.change_count(queue, CountColumn::UnfinishedBytes, -bytes);
    tx.increment_counter(queue, CANCELLED_INDEX, 1);
    state::insert_cancelled(tx, job.job_no, keep_ms, job.due, job.attempts, job.crashes_with_this())
}

/// Moves up to `max` due jobs to the tail of the ready ones.
fn promote(tx: &Tx<'_>, queue: i64, max: usize) -> rusqlite::Result<usize> {
    struct DueRow {
        due: i64,
        job_no: i64,
        priority: i64,
        attempts: u32,
        crashes: u32,
    }
    let due: Vec<DueRow> = tx
        .statement(
            "SELECT due_at, job_no, priority, attempts, crashes FROM duly_scheduled
              WHERE queue_no = ?1 AND due_at <= ?2 ORDER BY due_at, job_no LIMIT ?3",
        )?
        .query_map(params![queue, tx.now, max], |row| {
            Ok(DueRow {
                due: row.get(0)?,
                job_no: row.get(1)?,
                priority: row.get(2)?,
                attempts: read_u32(row, 3),
                crashes: read_u32(row, 4),
            })
        })?
        .collect::<rusqlite::Result<_>>()?;
    let Some(last) = due.last() else {
        return Ok(0);
    };
    tx.statement("DELETE FROM duly_scheduled WHERE queue_no = ?1 AND (due_at, job_no) <= (?2, ?3)")?
        .execute(params![queue, last.due, last.job_no])?;
    tx.change_count(queue, CountColumn::Scheduled, -(due.len() as i64));
    for d in &due {
        job_index::unindex_scheduled(tx, queue, d.job_no, d.due)?;
        state::insert_ready(tx, queue, d.job_no, d.priority, tx.next_number()?, d.due, d.attempts, d.crashes)?;
    }
    Ok(due.len())
}

/// Takes the first `max` ready jobs, or as many as the claim accepts by their size.
fn take_ready(tx: &Tx<'_>, node: i64, queue: i64, claim: &Claim, max: usize) -> rusqlite::Result<Vec<HeldJob>> {
    let (mut jobs, mut bytes) = (Vec::new(), 0);
    let mut last = (0, 0);
    let mut select = tx.statement(&format!(
        "SELECT {JOB_COLUMNS}, r.job_no, r.priority, r.seq, r.due_at, r.attempts, r.crashes
           FROM duly_ready r JOIN duly_job j ON j.job_no = r.job_no
          WHERE r.queue_no = ?1 ORDER BY r.priority, r.seq LIMIT ?2"
    ))?;
    let mut rows = select.query(params![queue, max])?;
    while let Some(row) = rows.next()? {
        // All jobs of a claim share one fence. It is drawn only if the claim takes a job.
        let held = read_held_job(row, &claim.queue, 0)?;
        bytes += held.args_bytes;
        if !jobs.is_empty() && claim.args_bytes_max.is_some_and(|max| bytes > max) {
            break;
        }
        jobs.push(held);
        last = (row.get(JOB_COLUMNS_LEN + 1)?, row.get(JOB_COLUMNS_LEN + 2)?);
    }
    drop(rows);
    if jobs.is_empty() {
        return Ok(jobs);
    }
    let fence = tx.next_fence()?;
    for held in &mut jobs {
        held.fence = Fence(fence.unsigned_abs());
    }
    let range = params![queue, last.0, last.1, node, fence];
    tx.statement(&format!(
        "INSERT INTO duly_running (job_no, node_no, queue_no, fence, priority, seq, due_at, attempts, crashes)
         SELECT job_no, ?4, queue_no, ?5, priority, seq, {DUE_ATTEMPTS_CRASHES} FROM duly_ready
          WHERE queue_no = ?1 AND (priority, seq) <= (?2, ?3)",
    ))?
    .execute(range)?;
    tx.statement("DELETE FROM duly_ready WHERE queue_no = ?1 AND (priority, seq) <= (?2, ?3)")?
        .execute(params![queue, last.0, last.1])?;
    tx.change_count(queue, CountColumn::Ready, -(jobs.len() as i64));
    tx.change_count(queue, CountColumn::Running, jobs.len() as i64);
    Ok(jobs)
}

fn read_held_job(row: &rusqlite::Row<'_>, queue: &str, fence: i64) -> rusqlite::Result<HeldJob> {
    let job = read_job(row, queue.to_owned())?;
    Ok(HeldJob {
        args_bytes: job.args.len(),
        job,
        fence: Fence(fence.unsigned_abs()),
        due: from_micros(read_integer(row, JOB_COLUMNS_LEN + 3)),
        attempts: read_u32(row, JOB_COLUMNS_LEN + 4),
        crashes: read_u32(row, JOB_COLUMNS_LEN + 5),
        locator: Locator::new(row.get(JOB_COLUMNS_LEN)?),
    })
}

fn has_ready(tx: &Tx<'_>, queue: i64) -> rusqlite::Result<bool> {
    tx.statement("SELECT EXISTS (SELECT 1 FROM duly_ready WHERE queue_no = ?1)")?.query_row([queue], |row| row.get(0))
}

fn next_due(tx: &Tx<'_>, queue: i64) -> rusqlite::Result<Option<Duration>> {
    let due: Option<i64> = tx
        .statement("SELECT min(due_at) FROM duly_scheduled WHERE queue_no = ?1")?
        .query_row([queue], |row| row.get(0))?;
    Ok(due.map(|due| Duration::from_micros(u64::try_from(due - tx.now).unwrap_or(0))))
}
