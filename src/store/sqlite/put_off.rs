//! Jobs that a node has put off because it does not know their kind: noted, so that one that does need not wait for them.

use rusqlite::{OptionalExtension, params};

use super::count::Of;
use super::rows::rank;
use super::tx::Tx;
use super::{find, place};
use crate::clock::Micros;
use crate::store::{End, PUT_OFF_MAX};

/// Most notes that one claim looks at.
const LOOK_MAX: usize = 1_000;

/// A note of one job.
#[derive(Clone)]
struct Note {
    kind: String,
    priority: i64,
    no: i64,
    due: Micros,
}

/// Notes that these jobs are scheduled only because their node does not know them. Where too many are noted they just wait.
pub(super) fn note(tx: &Tx<'_>, ends: &[(i64, &End, Micros)]) -> rusqlite::Result<()> {
    let Some((queue, ..)) = ends.first() else {
        return Ok(());
    };
    let noted: usize =
        tx.statement("SELECT count(*) FROM duly_put_off WHERE queue = ?1")?.query_row([queue], |row| row.get(0))?;
    let mut insert = tx.statement(
        "INSERT OR REPLACE INTO duly_put_off (queue, kind, priority, no, due) VALUES (?1, ?2, ?3, ?4, ?5)",
    )?;
    for (queue, end, due) in ends.iter().take(PUT_OFF_MAX.saturating_sub(noted)) {
        insert.execute(params![queue, end.kind, rank(end.priority), end.place, due])?;
        tx.wake_all(&end.queue);
    }
    Ok(())
}

/// A job leaves the schedule for another reason than its moment.
pub(super) fn forget_one(tx: &Tx<'_>, no: i64) -> rusqlite::Result<()> {
    tx.statement(
        "DELETE FROM duly_put_off WHERE (queue, kind, priority, no) =
           (SELECT queue, kind, priority, no FROM duly_job WHERE no = ?1)",
    )?
    .execute([no])
    .map(drop)
}

/// Forgets those of jobs that are not put off any more: removed, moved, or taken when they fell due.
pub(super) fn sweep(tx: &Tx<'_>, queue: i64) -> rusqlite::Result<()> {
    tx.statement(
        "DELETE FROM duly_put_off WHERE queue = ?1 AND NOT EXISTS (
           SELECT 1 FROM duly_scheduled s WHERE s.queue = ?1 AND s.due = duly_put_off.due AND s.no = duly_put_off.no)",
    )?
    .execute([queue])
    .map(drop)
}

/// Makes ready what was put off and is of these kinds, or of any: first by priority, then by age, each at the place that its push
/// gave it, and only if nothing more urgent is ready. Answers whether there may be more.
pub(super) fn pick_up(tx: &Tx<'_>, queue: i64, kinds: Option<&[String]>, max: usize) -> rusqlite::Result<bool> {
    let any = "SELECT EXISTS (SELECT 1 FROM duly_put_off WHERE queue = ?1)";
    if !tx.statement(any)?.query_row([queue], |row| row.get(0))? {
        return Ok(false);
    }
    let mut found = match kinds {
        None => look_for(tx, queue, None, LOOK_MAX)?,
        Some(kinds) => {
            let some = (LOOK_MAX / kinds.len().max(1)).max(1);
            let found: rusqlite::Result<Vec<_>> =
                kinds.iter().map(|kind| look_for(tx, queue, Some(kind), some)).collect();
            found?.concat()
        }
    };
    found.sort_unstable_by_key(|note| (note.priority, note.no));
    let urgent: Option<i64> =
        tx.statement("SELECT min(priority) FROM duly_ready WHERE queue = ?1")?.query_row([queue], |row| row.get(0))?;
    let (mut picked, mut left) = (0, false);
    for note in found {
        if picked == max || urgent.is_some_and(|urgent| note.priority > urgent) {
            left = true;
            break;
        }
        forget(tx, queue, &note)?;
        picked += usize::from(make_ready(tx, queue, &note)?);
    }
    Ok(left)
}

/// The first notes of a kind, or of any.
fn look_for(tx: &Tx<'_>, queue: i64, kind: Option<&str>, some: usize) -> rusqlite::Result<Vec<Note>> {
    let by_kind = "SELECT kind, priority, no, due FROM duly_put_off WHERE queue = ?1 AND kind = ?2
                    ORDER BY priority, no LIMIT ?3";
    let of_all = "SELECT kind, priority, no, due FROM duly_put_off WHERE queue = ?1 AND ?2 IS NULL LIMIT ?3";
    tx.statement(if kind.is_some() { by_kind } else { of_all })?
        .query_map(params![queue, kind, some], |row| {
            Ok(Note { kind: row.get(0)?, priority: row.get(1)?, no: row.get(2)?, due: row.get(3)? })
        })?
        .collect()
}

fn forget(tx: &Tx<'_>, queue: i64, Note { kind, priority, no, .. }: &Note) -> rusqlite::Result<()> {
    tx.statement("DELETE FROM duly_put_off WHERE queue = ?1 AND kind = ?2 AND priority = ?3 AND no = ?4")?
        .execute(params![queue, kind, priority, no])
        .map(drop)
}

/// Answers whether it still was put off.
fn make_ready(tx: &Tx<'_>, queue: i64, Note { no, due, .. }: &Note) -> rusqlite::Result<bool> {
    let scheduled: Option<(i64, u32, u32)> = tx
        .statement(
            "DELETE FROM duly_scheduled WHERE queue = ?1 AND due = ?2 AND no = ?3
             RETURNING priority, attempts, crashes",
        )?
        .query_row(params![queue, due, no], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .optional()?;
    let Some((priority, attempts, crashes)) = scheduled else {
        return Ok(false);
    };
    tx.add(queue, Of::Scheduled, -1);
    find::unscheduled(tx, queue, *no, *due)?;
    place::ready(tx, queue, *no, priority, *no, tx.now, attempts, crashes)?;
    Ok(true)
}
