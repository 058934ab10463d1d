//! Settle: records the outcomes of attempts, each only if the node still holds the job with the same fence.

use std::time::Duration;

use rusqlite::{CachedStatement, OptionalExtension, params};

use crate::NodeId;
use crate::clock::{Micros, micros, to_micros};
use crate::job::{JobId, Outcome};
use crate::store::sqlite::jobs::counts::Of;
use crate::store::sqlite::jobs::state::{DEAD, DONE};
use crate::store::sqlite::jobs::{deferred, failures, progress, state};
use crate::store::sqlite::rows::millis;
use crate::store::sqlite::tx::Tx;
use crate::store::{End, counter_of, places_of};

/// Records outcomes. Returns the jobs that the node no longer held.
pub(crate) fn settle(tx: &Tx<'_>, node: i64, id: NodeId, ends: &[End]) -> rusqlite::Result<Vec<JobId>> {
    let (mut lost, mut put_off) = (Vec::new(), Vec::new());
    let mut acks = Acks::new(tx, node)?;
    for end in ends {
        let queue = match &end.outcome {
            Outcome::Ack => acks.record(end)?,
            other => move_on(tx, node, id, end, other)?,
        };
        match queue {
            Some(queue) => {
                count(tx, queue, end);
                put_off.extend(put_off_until(tx, end).map(|due| (queue, end, due)));
            }
            None => lost.push(end.id),
        }
    }
    deferred::hint_at(tx, &put_off)?;
    Ok(lost)
}

/// Returns the due time of a job that its node deferred for lack of a handler.
fn put_off_until(tx: &Tx<'_>, end: &End) -> Option<Micros> {
    match end.outcome {
        Outcome::Release { after } if end.is_put_off() && !after.is_zero() => Some(later(tx, after)),
        _ => None,
    }
}

fn later(tx: &Tx<'_>, after: Duration) -> Micros {
    tx.now.saturating_add(micros(after))
}

/// Counts a recorded outcome.
fn count(tx: &Tx<'_>, queue: i64, end: &End) {
    tx.add(queue, Of::Running, -1);
    if matches!(end.outcome, Outcome::Ack | Outcome::Bury { .. }) {
        tx.add(queue, Of::Bytes, -end.bytes.cast_signed());
        tx.ended(queue, end.id);
    }
    tx.happened(queue, counter_of(&end.outcome), 1);
    if let Some(timing) = end.timing {
        places_of(timing.lateness, timing.duration).into_iter().for_each(|place| tx.happened(queue, place, 1));
    }
}

/// The common case, an ack, with prepared statements.
struct Acks<'t> {
    tx: &'t Tx<'t>,
    node: i64,
    free: CachedStatement<'t>,
    delete: CachedStatement<'t>,
    /// The queue of the last ack: most batches have only one.
    queue: Option<(String, i64)>,
}

impl<'t> Acks<'t> {
    fn new(tx: &'t Tx<'t>, node: i64) -> rusqlite::Result<Self> {
        Ok(Acks {
            tx,
            node,
            free: tx.statement("DELETE FROM duly_running WHERE job_no = ?1 AND node_no = ?2 AND fence = ?3")?,
            delete: tx.statement("DELETE FROM duly_job WHERE job_no = ?1")?,
            queue: None,
        })
    }

    /// Returns the queue; `None` if the node does not hold the job, and nothing was recorded.
    fn record(&mut self, end: &End) -> rusqlite::Result<Option<i64>> {
        if self.free.execute(params![end.place, self.node, end.fence.0.cast_signed()])? == 0 {
            return Ok(None);
        }
        let queue = self.queue(&end.queue)?;
        if !end.keep.is_zero() {
            progress::result(self.tx, end.place, end.result.as_deref())?;
            finish(self.tx, queue, end, DONE, end.attempts)?;
            return Ok(Some(queue));
        }
        self.delete.execute([end.place])?;
        if end.attempts + end.crashes > 0 {
            self.tx.statement("DELETE FROM duly_failure WHERE job_no = ?1")?.execute([end.place])?;
        }
        progress::forget(self.tx, end.place)?;
        if let Some(key) = &end.unique {
            state::free_unique(self.tx, queue, key, end.place)?;
        }
        self.tx.remember(queue, end.id.as_bytes())?;
        Ok(Some(queue))
    }

    fn queue(&mut self, name: &str) -> rusqlite::Result<i64> {
        match &self.queue {
            Some((last, queue_no)) if last == name => Ok(*queue_no),
            _ => {
                let queue_no = self.tx.queue(name)?;
                self.queue = Some((name.to_owned(), queue_no));
                Ok(queue_no)
            }
        }
    }
}

/// The old position of a job that its node gave up.
struct Freed {
    queue: i64,
    priority: i64,
    seq: i64,
}

/// Removes a job from its node, if node and fence match.
fn free(tx: &Tx<'_>, node: i64, end: &End) -> rusqlite::Result<Option<Freed>> {
    tx.statement(
        "DELETE FROM duly_running WHERE job_no = ?1 AND node_no = ?2 AND fence = ?3 RETURNING queue_no, priority, seq",
    )?
    .query_row(params![end.place, node, end.fence.0.cast_signed()], |row| {
        Ok(Freed { queue: row.get(0)?, priority: row.get(1)?, seq: row.get(2)? })
    })
    .optional()
}

/// Records any outcome but an ack. Returns the queue; `None` if the node does not hold the job, and nothing was
/// recorded.
fn move_on(tx: &Tx<'_>, node: i64, id: NodeId, end: &End, outcome: &Outcome) -> rusqlite::Result<Option<i64>> {
    let Some(Freed { queue, priority, seq }) = free(tx, node, end)? else {
        return Ok(None);
    };
    let (job_no, attempts, crashes) = (end.place, end.attempts, end.crashes);
    let attempt = attempts.saturating_add(1);
    match outcome {
        Outcome::Ack => {}
        Outcome::Bury { error } => {
            failures::record(tx, job_no, attempt, id, error)?;
            finish(tx, queue, end, DEAD, attempt)?;
        }
        Outcome::Retry { after, error } => {
            failures::record(tx, job_no, attempt, id, error)?;
            match after.is_zero() {
                true => state::ready(tx, queue, job_no, priority, tx.number()?, tx.now, attempt, crashes)?,
                false => state::schedule(tx, queue, job_no, priority, later(tx, *after), attempt, crashes)?,
            }
            tx.wake(&end.queue);
        }
        Outcome::Release { after } => {
            match after.is_zero() {
                true => state::ready(tx, queue, job_no, priority, seq, to_micros(end.due), attempts, crashes)?,
                false => state::schedule(tx, queue, job_no, priority, later(tx, *after), attempts, crashes)?,
            }
            tx.wake(&end.queue);
        }
    }
    Ok(Some(queue))
}

/// Ends a job that is kept for a while.
fn finish(tx: &Tx<'_>, queue: i64, end: &End, state: i64, attempts: u32) -> rusqlite::Result<()> {
    if let Some(key) = &end.unique {
        state::free_unique(tx, queue, key, end.place)?;
    }
    let prune_at = tx.now.saturating_add(millis(end.keep).saturating_mul(1_000));
    let due = to_micros(end.due);
    state::end_at(tx, queue, end.place, state, prune_at, tx.now, due, attempts, end.crashes)
}

/// Deletes ended jobs of a queue: expired ones, then done ones beyond the newest `done_max`.
pub(crate) fn prune(tx: &Tx<'_>, queue: i64, done_max: usize, max: usize) -> rusqlite::Result<usize> {
    // SQLite's integers are signed, and a caller that keeps all jobs may pass a greater number.
    let done_max = i64::try_from(done_max).unwrap_or(i64::MAX);
    let pick = |sql: &str, params: &[&dyn rusqlite::ToSql]| -> rusqlite::Result<Vec<i64>> {
        tx.statement(sql)?.query_map(params, |row| row.get(0))?.collect()
    };
    let mut gone = pick(
        "SELECT job_no FROM duly_ended WHERE queue_no = ?1 AND state IN (?2, ?3) AND prune_at <= ?4 LIMIT ?5",
        params![queue, DONE, DEAD, tx.now, max],
    )?;
    if gone.len() < max {
        let beyond = pick(
            "SELECT job_no FROM duly_ended WHERE queue_no = ?1 AND state = ?2 AND prune_at > ?3
              ORDER BY prune_at DESC LIMIT ?4 OFFSET ?5",
            params![queue, DONE, tx.now, max - gone.len(), done_max],
        )?;
        gone.extend(beyond);
    }
    deferred::sweep(tx, queue)?;
    for job_no in &gone {
        state::unend(tx, *job_no)?;
        state::delete_body(tx, *job_no)?;
    }
    Ok(gone.len())
}
