//! Jobs that a node has put off because it does not know their kind: hints at them, so that one that does need not wait.
//!
//! A hint is no place: the job is scheduled. It counts while that is for the very moment it was put off until.

use rusqlite::{OptionalExtension, params};

use crate::clock::Micros;
use crate::store::sqlite::jobs::counts::Of;
use crate::store::sqlite::jobs::{job_index, state};
use crate::store::sqlite::rows::{Raw, rank, times};
use crate::store::sqlite::tx::Tx;
use crate::store::{End, HINTS_LOOK_MAX, HINTS_MAX};

#[derive(Clone)]
struct Hint {
    kind: Raw,
    priority: i64,
    no: i64,
    due: Micros,
}

/// Leaves hints at these jobs, each of a queue and put off until a moment, and wakes whoever may know them.
/// Where there are too many all of a queue are forgotten: what was put off falls due, and may be hinted at again.
pub(crate) fn hint_at(tx: &Tx<'_>, ends: &[(i64, &End, Micros)]) -> rusqlite::Result<()> {
    let mut queues: Vec<i64> = ends.iter().map(|(queue, ..)| *queue).collect();
    queues.sort_unstable();
    queues.dedup();
    for queue in queues {
        let of_queue = ends.iter().filter(|(of, ..)| *of == queue);
        let hints: usize = tx
            .statement("SELECT count(*) FROM duly_deferred WHERE queue_no = ?1")?
            .query_row([queue], |row| row.get(0))?;
        if hints + of_queue.clone().count() > HINTS_MAX {
            tx.statement("DELETE FROM duly_deferred WHERE queue_no = ?1")?.execute([queue])?;
        }
        let mut insert = tx.statement(
            "INSERT OR REPLACE INTO duly_deferred (queue_no, kind, priority, job_no, due_at)
               VALUES (?1, ?2, ?3, ?4, ?5)",
        )?;
        for (_, end, due) in of_queue {
            insert.execute(params![queue, end.kind, rank(end.priority), end.place, due])?;
            tx.wake_all(&end.queue);
        }
    }
    Ok(())
}

/// A job leaves the schedule for another reason than its moment.
pub(crate) fn forget(tx: &Tx<'_>, no: i64) -> rusqlite::Result<()> {
    tx.statement(
        "DELETE FROM duly_deferred WHERE (queue_no, kind, priority, job_no) =
           (SELECT queue_no, kind, priority, job_no FROM duly_job WHERE job_no = ?1)",
    )?
    .execute([no])
    .map(drop)
}

/// Forgets hints at jobs that are not put off any more: moved, or taken when they fell due.
pub(crate) fn sweep(tx: &Tx<'_>, queue: i64) -> rusqlite::Result<()> {
    tx.statement(
        "DELETE FROM duly_deferred WHERE queue_no = ?1 AND NOT EXISTS (
           SELECT 1 FROM duly_scheduled s
           WHERE s.queue_no = ?1 AND s.due_at = duly_deferred.due_at AND s.job_no = duly_deferred.job_no)",
    )?
    .execute([queue])
    .map(drop)
}

/// Makes ready what was put off and is of these kinds, or of any: first by priority, then by age, each at the place that its push
/// gave it, and only if nothing more urgent is ready. Answers whether there may be more.
pub(crate) fn pick_up(tx: &Tx<'_>, queue: i64, kinds: Option<&[String]>, max: usize) -> rusqlite::Result<bool> {
    let any = "SELECT EXISTS (SELECT 1 FROM duly_deferred WHERE queue_no = ?1)";
    if !tx.statement(any)?.query_row([queue], |row| row.get(0))? {
        return Ok(false);
    }
    let (found, mut more) = look_for_all(tx, queue, kinds, max)?;
    let urgent: Option<i64> = tx
        .statement("SELECT min(priority) FROM duly_ready WHERE queue_no = ?1")?
        .query_row([queue], |row| row.get(0))?;
    let mut picked = 0;
    for hint in found {
        if picked == max || urgent.is_some_and(|urgent| hint.priority > urgent) {
            more = true;
            break;
        }
        drop_hint(tx, queue, &hint)?;
        picked += usize::from(make_ready(tx, queue, &hint)?);
    }
    Ok(more)
}

/// Hints at these kinds, first by priority, then by age: as many of each as could be taken. Of any kind, the first by their names.
/// Then whether there may be more.
fn look_for_all(tx: &Tx<'_>, queue: i64, kinds: Option<&[String]>, max: usize) -> rusqlite::Result<(Vec<Hint>, bool)> {
    let some = kinds.map_or(HINTS_LOOK_MAX, |kinds| (HINTS_LOOK_MAX / kinds.len().max(1)).min(max + 1).max(1));
    let (mut found, mut more) = (Vec::new(), false);
    for kind in kinds.map_or(vec![None], |kinds| kinds.iter().map(|kind| Some(kind.as_str())).collect()) {
        let of_kind = look_for(tx, queue, kind, some)?;
        more |= of_kind.len() == some;
        found.extend(of_kind);
    }
    found.sort_unstable_by_key(|hint: &Hint| (hint.priority, hint.no));
    Ok((found, more))
}

fn look_for(tx: &Tx<'_>, queue: i64, kind: Option<&str>, some: usize) -> rusqlite::Result<Vec<Hint>> {
    let by_kind = "SELECT kind, priority, job_no, due_at FROM duly_deferred WHERE queue_no = ?1 AND kind = ?2
                    ORDER BY priority, job_no LIMIT ?3";
    let of_all = "SELECT kind, priority, job_no, due_at FROM duly_deferred WHERE queue_no = ?1 AND ?2 IS NULL LIMIT ?3";
    tx.statement(if kind.is_some() { by_kind } else { of_all })?
        .query_map(params![queue, kind, some], |row| {
            Ok(Hint { kind: row.get(0)?, priority: row.get(1)?, no: row.get(2)?, due: row.get(3)? })
        })?
        .collect()
}

fn drop_hint(tx: &Tx<'_>, queue: i64, Hint { kind, priority, no, .. }: &Hint) -> rusqlite::Result<()> {
    tx.statement("DELETE FROM duly_deferred WHERE queue_no = ?1 AND kind = ?2 AND priority = ?3 AND job_no = ?4")?
        .execute(params![queue, kind, priority, no])
        .map(drop)
}

/// Answers whether it still was put off.
fn make_ready(tx: &Tx<'_>, queue: i64, Hint { no, due, .. }: &Hint) -> rusqlite::Result<bool> {
    let scheduled: Option<(i64, u32, u32)> = tx
        .statement(
            "DELETE FROM duly_scheduled WHERE queue_no = ?1 AND due_at = ?2 AND job_no = ?3
             RETURNING priority, attempts, crashes",
        )?
        .query_row(params![queue, due, no], |row| Ok((row.get(0)?, times(row, 1), times(row, 2))))
        .optional()?;
    let Some((priority, attempts, crashes)) = scheduled else {
        return Ok(false);
    };
    tx.add(queue, Of::Scheduled, -1);
    job_index::unscheduled(tx, queue, *no, *due)?;
    state::ready(tx, queue, *no, priority, *no, tx.now, attempts, crashes)?;
    Ok(true)
}
