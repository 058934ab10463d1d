//! Deferred jobs: a node has no handler for the kind, and leaves a hint so that another node can take the job early.
//!
//! The job itself is scheduled. Its hint counts only while the job is scheduled for exactly the time in the hint.

use rusqlite::{OptionalExtension, params};

use crate::clock::Micros;
use crate::store::sqlite::jobs::counts::CountColumn;
use crate::store::sqlite::jobs::{job_index, state};
use crate::store::sqlite::rows::{RawText, priority_code, read_u32};
use crate::store::sqlite::tx::Tx;
use crate::store::{AttemptEnd, DEFERRED_HINTS_MAX, DEFERRED_HINTS_PER_CLAIM_MAX};

/// The kinds of the hints to read, by their names.
#[derive(Clone, Copy)]
enum KindRange<'a> {
    Only(&'a str),
    Before(&'a str),
    After(&'a str),
}

#[derive(Clone)]
struct DeferredHint {
    kind: RawText,
    priority: i64,
    job_no: i64,
    due: Micros,
}

/// Stores hints at deferred jobs, given with queue and due time, and wakes idle nodes that may have a handler. If a
/// queue has too many hints, all of its hints are deleted: its jobs still fall due, and may be deferred again.
pub(crate) fn add_hints(tx: &Tx<'_>, ends: &[(i64, &AttemptEnd, Micros)]) -> rusqlite::Result<()> {
    let mut queues: Vec<i64> = ends.iter().map(|(queue, ..)| *queue).collect();
    queues.sort_unstable();
    queues.dedup();
    for queue in queues {
        let of_queue = ends.iter().filter(|(of, ..)| *of == queue);
        let hints: usize = tx
            .statement("SELECT count(*) FROM duly_deferred WHERE queue_no = ?1")?
            .query_row([queue], |row| row.get(0))?;
        if hints + of_queue.clone().count() > DEFERRED_HINTS_MAX {
            tx.statement("DELETE FROM duly_deferred WHERE queue_no = ?1")?.execute([queue])?;
        }
        let mut insert = tx.statement(
            "INSERT OR REPLACE INTO duly_deferred (queue_no, kind, priority, job_no, due_at)
               VALUES (?1, ?2, ?3, ?4, ?5)",
        )?;
        for (_, end, due) in of_queue {
            insert.execute(params![
                queue,
                end.held().job.kind,
                priority_code(end.held().job.priority),
                end.held().locator.value(),
                due
            ])?;
            tx.wake_all(end.queue());
        }
    }
    Ok(())
}

/// Deletes the hint at a job that leaves the schedule before its due time.
pub(crate) fn delete_hint_of_job(tx: &Tx<'_>, job_no: i64) -> rusqlite::Result<()> {
    tx.statement(
        "DELETE FROM duly_deferred WHERE (queue_no, kind, priority, job_no) =
           (SELECT queue_no, kind, priority, job_no FROM duly_job WHERE job_no = ?1)",
    )?
    .execute([job_no])
    .map(drop)
}

/// Deletes hints at jobs that are not deferred any more: moved, or taken when they were due.
pub(crate) fn delete_stale_hints(tx: &Tx<'_>, queue: i64) -> rusqlite::Result<()> {
    tx.statement(
        "DELETE FROM duly_deferred WHERE queue_no = ?1 AND NOT EXISTS (
           SELECT 1 FROM duly_scheduled s
           WHERE s.queue_no = ?1 AND s.due_at = duly_deferred.due_at AND s.job_no = duly_deferred.job_no)",
    )?
    .execute([queue])
    .map(drop)
}

/// Makes deferred jobs of these kinds ready, or of all kinds but the excluded one if `None`: by priority, then by age.
/// Each gets the position that its push gave it. Stops if a more urgent job is ready. Returns whether there may be more.
pub(crate) fn adopt(
    tx: &Tx<'_>,
    queue: i64,
    kinds: Option<&[String]>,
    excluded: Option<&str>,
    max: usize,
) -> rusqlite::Result<bool> {
    let any = "SELECT EXISTS (SELECT 1 FROM duly_deferred WHERE queue_no = ?1)";
    if !tx.statement(any)?.query_row([queue], |row| row.get(0))? {
        return Ok(false);
    }
    let (found, mut more) = find_hints(tx, queue, kinds, excluded, max)?;
    let urgent: Option<i64> = tx
        .statement("SELECT min(priority) FROM duly_ready WHERE queue_no = ?1")?
        .query_row([queue], |row| row.get(0))?;
    let mut picked = 0;
    for hint in found {
        if picked == max || urgent.is_some_and(|urgent| hint.priority > urgent) {
            more = true;
            break;
        }
        delete_hint(tx, queue, &hint)?;
        picked += usize::from(make_ready(tx, queue, &hint)?);
    }
    Ok(more)
}

/// Returns hints at these kinds by priority, then by age, as many of each kind as can be taken. With `None`, returns
/// the first hints by the name of their kind, without the excluded kind. Also returns whether there may be more.
fn find_hints(
    tx: &Tx<'_>,
    queue: i64,
    kinds: Option<&[String]>,
    excluded: Option<&str>,
    max: usize,
) -> rusqlite::Result<(Vec<DeferredHint>, bool)> {
    let some = kinds.map_or(DEFERRED_HINTS_PER_CLAIM_MAX, |kinds| {
        (DEFERRED_HINTS_PER_CLAIM_MAX / kinds.len().max(1)).min(max + 1).max(1)
    });
    let (mut found, mut more) = (Vec::new(), false);
    let ranges = match (kinds, excluded) {
        (Some(kinds), _) => kinds.iter().map(|kind| KindRange::Only(kind)).collect(),
        (None, Some(kind)) => vec![KindRange::Before(kind), KindRange::After(kind)],
        (None, None) => vec![KindRange::After("")],
    };
    for range in ranges {
        let of_kind = find_hints_of_kinds(tx, queue, range, some)?;
        more |= of_kind.len() == some;
        found.extend(of_kind);
    }
    found.sort_unstable_by_key(|hint: &DeferredHint| (hint.priority, hint.job_no));
    Ok((found, more))
}

fn find_hints_of_kinds(
    tx: &Tx<'_>,
    queue: i64,
    range: KindRange<'_>,
    some: usize,
) -> rusqlite::Result<Vec<DeferredHint>> {
    let (comparison, kind) = match range {
        KindRange::Only(kind) => ("=", kind),
        KindRange::Before(kind) => ("<", kind),
        KindRange::After(kind) => (">", kind),
    };
    tx.statement(&format!(
        "SELECT kind, priority, job_no, due_at FROM duly_deferred WHERE queue_no = ?1 AND kind {comparison} ?2
          ORDER BY kind, priority, job_no LIMIT ?3"
    ))?
    .query_map(params![queue, kind, some], |row| {
        Ok(DeferredHint { kind: row.get(0)?, priority: row.get(1)?, job_no: row.get(2)?, due: row.get(3)? })
    })?
    .collect()
}

fn delete_hint(
    tx: &Tx<'_>,
    queue: i64,
    DeferredHint { kind, priority, job_no, .. }: &DeferredHint,
) -> rusqlite::Result<()> {
    tx.statement("DELETE FROM duly_deferred WHERE queue_no = ?1 AND kind = ?2 AND priority = ?3 AND job_no = ?4")?
        .execute(params![queue, kind, priority, job_no])
        .map(drop)
}

/// Returns whether the job was still deferred.
fn make_ready(tx: &Tx<'_>, queue: i64, DeferredHint { job_no, due, .. }: &DeferredHint) -> rusqlite::Result<bool> {
    let scheduled: Option<(i64, u32, u32)> = tx
        .statement(
            "DELETE FROM duly_scheduled WHERE queue_no = ?1 AND due_at = ?2 AND job_no = ?3
             RETURNING priority, attempts, crashes",
        )?
        .query_row(params![queue, due, job_no], |row| Ok((row.get(0)?, read_u32(row, 1), read_u32(row, 2))))
        .optional()?;
    let Some((priority, attempts, crashes)) = scheduled else {
        return Ok(false);
    };
    tx.change_count(queue, CountColumn::Scheduled, -1);
    job_index::unindex_scheduled(tx, queue, *job_no, *due)?;
    state::insert_ready(tx, queue, *job_no, priority, *job_no, tx.now, attempts, crashes)?;
    Ok(true)
}
