//! Settle: record how attempts ended, each only if its node still holds it under that fence.

use rusqlite::{OptionalExtension, params};

use super::place::{DEAD, DONE};
use super::rows::millis;
use super::tx::Tx;
use super::{failure, place};
use crate::NodeId;
use crate::clock::micros;
use crate::job::{JobId, Outcome};
use crate::store::End;

/// What was held, taken out of the held table.
struct Freed {
    queue: i64,
    priority: i64,
    seq: i64,
    due: i64,
    attempts: u32,
    crashes: u32,
}

/// Records outcomes and returns those that were not held any more.
pub(super) fn settle(tx: &Tx<'_>, node: i64, id: NodeId, ends: &[End]) -> rusqlite::Result<Vec<JobId>> {
    let mut lost = Vec::new();
    for end in ends {
        match free(tx, node, end)? {
            Some(freed) => record(tx, id, end, &freed)?,
            None => lost.push(end.id),
        }
    }
    Ok(lost)
}

/// Takes a job out of its holder's hands, if holder and fence are right.
fn free(tx: &Tx<'_>, node: i64, end: &End) -> rusqlite::Result<Option<Freed>> {
    tx.statement(
        "DELETE FROM duly_held WHERE no = ?1 AND node = ?2 AND fence = ?3
         RETURNING queue, priority, seq, due, attempts, crashes",
    )?
    .query_row(params![end.place, node, end.fence.0.cast_signed()], |row| {
        Ok(Freed {
            queue: row.get(0)?,
            priority: row.get(1)?,
            seq: row.get(2)?,
            due: row.get(3)?,
            attempts: row.get(4)?,
            crashes: row.get(5)?,
        })
    })
    .optional()
}

fn record(tx: &Tx<'_>, node: NodeId, end: &End, freed: &Freed) -> rusqlite::Result<()> {
    let Freed { queue, priority, seq, due, attempts, crashes } = *freed;
    let no = end.place;
    match &end.outcome {
        Outcome::Ack if end.keep.is_zero() => forget(tx, end, freed),
        Outcome::Ack => finish(tx, end, freed, DONE, attempts),
        Outcome::Bury { error } => {
            failure::record(tx, no, attempts + 1, node, error)?;
            finish(tx, end, freed, DEAD, attempts + 1)
        }
        Outcome::Retry { after, error } => {
            failure::record(tx, no, attempts + 1, node, error)?;
            tx.wake(&end.queue);
            if after.is_zero() {
                return place::ready(tx, queue, no, priority, tx.number()?, tx.now, attempts + 1, crashes);
            }
            place::schedule(tx, queue, no, priority, tx.now + micros(*after), attempts + 1, crashes)
        }
        Outcome::Release { after } => {
            tx.wake(&end.queue);
            if after.is_zero() {
                return place::ready(tx, queue, no, priority, seq, due, attempts, crashes);
            }
            place::schedule(tx, queue, no, priority, tx.now + micros(*after), attempts, crashes)
        }
    }
}

/// A done job that nobody wants to keep: only its id is remembered.
fn forget(tx: &Tx<'_>, end: &End, freed: &Freed) -> rusqlite::Result<()> {
    tx.statement("DELETE FROM duly_job WHERE no = ?1")?.execute([end.place])?;
    if freed.attempts + freed.crashes > 0 {
        tx.statement("DELETE FROM duly_failure WHERE no = ?1")?.execute([end.place])?;
    }
    if let Some(key) = &end.unique {
        place::free_unique(tx, freed.queue, key, end.place)?;
    }
    tx.remember(freed.queue, end.id.as_bytes())
}

/// A job that has ended and is kept for a while.
fn finish(tx: &Tx<'_>, end: &End, freed: &Freed, state: i64, attempts: u32) -> rusqlite::Result<()> {
    if let Some(key) = &end.unique {
        place::free_unique(tx, freed.queue, key, end.place)?;
    }
    let until = tx.now.saturating_add(millis(end.keep) * 1_000);
    tx.statement(
        "INSERT INTO duly_ended (no, queue, state, until, ended, due, attempts, crashes)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    )?
    .execute(params![end.place, freed.queue, state, until, tx.now, freed.due, attempts, freed.crashes])?;
    Ok(())
}

/// Deletes ended jobs of a queue: those past their time, then done ones beyond the newest `done_max`.
pub(super) fn prune(tx: &Tx<'_>, queue: i64, done_max: usize, max: usize) -> rusqlite::Result<usize> {
    let pick = |sql: &str, params: &[&dyn rusqlite::ToSql]| -> rusqlite::Result<Vec<i64>> {
        tx.statement(sql)?.query_map(params, |row| row.get(0))?.collect()
    };
    let mut gone = pick(
        "SELECT no FROM duly_ended WHERE queue = ?1 AND state IN (?2, ?3) AND until <= ?4 LIMIT ?5",
        params![queue, DONE, DEAD, tx.now, max],
    )?;
    if gone.len() < max {
        let beyond = pick(
            "SELECT no FROM duly_ended WHERE queue = ?1 AND state = ?2 AND until > ?3
              ORDER BY until DESC LIMIT ?4 OFFSET ?5",
            params![queue, DONE, tx.now, max - gone.len(), done_max],
        )?;
        gone.extend(beyond);
    }
    for no in &gone {
        tx.statement("DELETE FROM duly_ended WHERE no = ?1")?.execute([no])?;
        place::delete_body(tx, *no)?;
    }
    Ok(gone.len())
}
