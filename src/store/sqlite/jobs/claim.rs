//! Claim: takes back, promotes and takes jobs, in one bounded operation.

use std::time::Duration;

use rusqlite::params;

use crate::clock::from_micros;
use crate::job::{Fence, HeldJob, Locator};
use crate::node::NodeId;
use crate::store::sqlite::cron;
use crate::store::sqlite::jobs::counts::CountColumn;
use crate::store::sqlite::jobs::{deferred, failures, job_index, state};
use crate::store::sqlite::nodes;
use crate::store::sqlite::nodes::registry::NodeRegistry;
use crate::store::sqlite::rows::{
    DUE_ATTEMPTS_CRASHES, JOB_COLUMNS, JOB_COLUMNS_LEN, read_integer, read_job, read_u32,
};
use crate::store::sqlite::tx::Tx;
use crate::store::{CLAIM_MAX, Claim, ClaimReply, PROMOTE_MAX, PROMOTE_MIN, TAKE_BACK_MAX, TAKEN_BACK_INDEX};

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
pub(crate) fn claim(tx: &Tx<'_>, registry: &NodeRegistry, node: NodeId, claim: &Claim) -> rusqlite::Result<ClaimReply> {
    let node_no = nodes::ensure_node(tx, registry, node)?;
    let queue = tx.ensure_queue(&claim.queue)?;
    if claim.resync {
        return Ok(ClaimReply::new(tx.now, resync(tx, node_no, queue, &claim.queue)?));
    }
    let taken_back = match claim.suspect {
        Some(suspect) => nodes::take_back_if_dead(tx, registry, suspect, queue)?,
        None => 0,
    };
    let claimed = claim_batch(tx, node_no, queue, claim)?;
    // Recorded while the write lock is held: a push that this claim did not see will see the node as idle.
    let has_room = claimed.jobs.len() < claim.max.min(CLAIM_MAX);
    let idle_rank = registry.set_idle(node, &claim.queue, has_room && !claimed.more);
    if claimed.wake_others {
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
    let (paused, moving, tick): (bool, bool, Option<i64>) = tx
        .statement("SELECT paused, transfer_mark IS NOT NULL, cron_check_at FROM duly_queue WHERE queue_no = ?1")?
        .query_row([queue], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    claimed.next_tick = cron::duration_until(tick.filter(|_| !moving), tx.now);
    if paused || moving {
        return Ok(claimed);
    }
    let promote_max = PROMOTE_MAX.min(PROMOTE_MIN.max(4 * max));
    let promoted = promote(tx, queue, promote_max)?;
    let picks_more = deferred::adopt(tx, queue, claim.kinds.as_deref(), max)?;
    claimed.jobs = take_ready(tx, node, queue, &claim.queue, max)?;
    claimed.wake_others = promoted == promote_max || (claimed.jobs.len() == max && has_ready(tx, queue)?);
    claimed.more = claimed.wake_others || picks_more;
    claimed.next_due = next_due(tx, queue)?;
    Ok(claimed)
}

/// Returns every job that a node holds in a queue, after the reply to a claim was lost.
fn resync(tx: &Tx<'_>, node: i64, queue: i64, name: &str) -> rusqlite::Result<Vec<HeldJob>> {
    tx.statement(&format!(
        "SELECT {JOB_COLUMNS}, h.job_no, h.priority, h.seq, h.due_at, h.attempts, h.crashes, h.fence
           FROM duly_running h JOIN duly_job j ON j.job_no = h.job_no
           WHERE h.node_no = ?1 AND h.queue_no = ?2 ORDER BY h.priority, h.seq"
    ))?
    .query_map([node, queue], |row| {
        let fence: i64 = row.get(JOB_COLUMNS_LEN + 6)?;
        read_held_job(row, name, fence)
    })?
    .collect()
}

/// Returns the jobs of a dead node in this queue to their old positions, and counts a crash for each.
pub(crate) fn take_back(tx: &Tx<'_>, dead: i64, id: NodeId, queue: i64) -> rusqlite::Result<usize> {
    let held: Vec<(i64, u32)> = tx
        .statement(
            "SELECT job_no, attempts FROM duly_running
               WHERE node_no = ?1 AND queue_no = ?2 ORDER BY priority, seq LIMIT ?3",
        )?
        .query_map(params![dead, queue, TAKE_BACK_MAX], |row| Ok((row.get(0)?, read_u32(row, 1))))?
        .collect::<rusqlite::Result<_>>()?;
    let count = held.len();
    tx.change_count(queue, CountColumn::Running, -(count as i64));
    tx.change_count(queue, CountColumn::Ready, count as i64);
    if count > 0 {
        tx.increment_counter(queue, TAKEN_BACK_INDEX, count as u64);
    }
    for (job_no, attempts) in &held {
        tx.statement(&format!(
            "INSERT INTO duly_ready (queue_no, priority, seq, job_no, due_at, attempts, crashes)
             WITH held (queue_no, priority, seq, job_no, due_at, attempts, crashes) AS (
               SELECT queue_no, priority, seq, job_no, {DUE_ATTEMPTS_CRASHES} FROM duly_running WHERE job_no = ?1)
             SELECT queue_no, priority, seq, job_no, due_at, attempts, max(0, min(crashes + 1, 4294967295)) FROM held",
        ))?
        .execute([job_no])?;
        tx.statement("DELETE FROM duly_running WHERE job_no = ?1")?.execute([job_no])?;
        failures::record(
            tx,
            *job_no,
            attempts.saturating_add(1),
            id,
            "the node died, or was paused beyond its lease, while it held this job",
        )?;
    }
    Ok(held.len())
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

/// Takes the first `max` ready jobs.
fn take_ready(tx: &Tx<'_>, node: i64, queue: i64, name: &str, max: usize) -> rusqlite::Result<Vec<HeldJob>> {
    let mut jobs = Vec::new();
    let mut last = (0, 0);
    let mut select = tx.statement(&format!(
        "SELECT {JOB_COLUMNS}, r.job_no, r.priority, r.seq, r.due_at, r.attempts, r.crashes
           FROM duly_ready r JOIN duly_job j ON j.job_no = r.job_no
          WHERE r.queue_no = ?1 ORDER BY r.priority, r.seq LIMIT ?2"
    ))?;
    let mut rows = select.query(params![queue, max])?;
    while let Some(row) = rows.next()? {
        // All jobs of a claim share one fence. It is drawn only if the claim takes a job.
        jobs.push(read_held_job(row, name, 0)?);
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
    Ok(HeldJob {
        job: read_job(row, queue.to_owned())?,
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
