//! The job index: terms that find scheduled and dead jobs, and the groups of dead jobs.

use rusqlite::{Connection, OptionalExtension, params};

use crate::clock::{Micros, from_micros};
use crate::job::fingerprint;
use crate::store::sqlite::jobs::state::DEAD;
use crate::store::sqlite::rows::{JOB_COLUMNS, Raw, checked, many, number, text};
use crate::store::sqlite::tx::Tx;
use crate::store::{DeadGroup, GROUPS_MAX};

/// Number of a state in `duly_job_index`.
pub(crate) const SCHEDULED: i64 = 0;
/// The error of the group that takes all errors beyond the maximum number of groups.
const REST: &str = "…";

/// Computes all terms that the index must have: kind and tags of each scheduled and dead job, and the group of a dead
/// job.
pub(crate) const WORDS: &str = "WITH RECURSIVE placed (queue_no, state, due_or_ended_at, job_no, kind, tags) AS (
    SELECT p.queue_no, 0, p.due_at, p.job_no, j.kind, j.tags
      FROM duly_scheduled p JOIN duly_job j ON j.job_no = p.job_no
    UNION ALL
    SELECT p.queue_no, 4, p.ended_at, p.job_no, j.kind, j.tags
      FROM duly_ended p JOIN duly_job j ON j.job_no = p.job_no WHERE p.state = 4
  ), terms (queue_no, state, due_or_ended_at, job_no, term, rest) AS (
    SELECT queue_no, state, due_or_ended_at, job_no, 'k' || coalesce(kind, ''), coalesce(tags || ' ', '') FROM placed
    UNION ALL
    SELECT queue_no, state, due_or_ended_at, job_no,
           't' || substr(rest, 1, instr(rest, ' ') - 1), substr(rest, instr(rest, ' ') + 1)
      FROM terms WHERE rest <> ''
  ), wanted (queue_no, state, term, due_or_ended_at, job_no) AS (
    SELECT queue_no, state, term, due_or_ended_at, job_no FROM terms
    UNION
    SELECT e.queue_no, 4, 'g' || g.id, e.ended_at, e.job_no
      FROM duly_ended e JOIN duly_dead_group g ON g.group_no = e.group_no WHERE e.state = 4) ";

/// The term for a kind, a tag or a group.
pub(crate) fn kind(kind: impl AsRef<[u8]>) -> Raw {
    word(b'k', kind.as_ref())
}
pub(crate) fn tag(tag: impl AsRef<[u8]>) -> Raw {
    word(b't', tag.as_ref())
}
pub(crate) fn group(id: impl AsRef<[u8]>) -> Raw {
    word(b'g', id.as_ref())
}
fn word(of: u8, name: &[u8]) -> Raw {
    Raw([&[of], name].concat())
}

/// Returns the terms of a job: its kind and its tags.
fn words(tx: &Tx<'_>, job_no: i64) -> rusqlite::Result<Vec<Raw>> {
    let body: Option<(Raw, Option<Raw>)> = tx
        .statement("SELECT kind, tags FROM duly_job WHERE job_no = ?1")?
        .query_row([job_no], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((kind, tags)) = body else {
        return Ok(Vec::new());
    };
    let mut words = vec![self::kind(kind.0)];
    words.extend(tags.iter().flat_map(|tags| tags.0.split(|byte| *byte == b' ')).map(tag));
    // A job may have the same tag twice.
    words.sort_unstable();
    words.dedup();
    Ok(words)
}

fn put(tx: &Tx<'_>, queue: i64, state: i64, words: &[Raw], at: Micros, job_no: i64) -> rusqlite::Result<()> {
    let mut insert = tx.statement(
        "INSERT OR IGNORE INTO duly_job_index (queue_no, state, term, due_or_ended_at, job_no)
               VALUES (?1, ?2, ?3, ?4, ?5)",
    )?;
    words.iter().try_for_each(|word| insert.execute(params![queue, state, word, at, job_no]).map(drop))
}

fn take(tx: &Tx<'_>, queue: i64, state: i64, words: &[Raw], at: Micros, job_no: i64) -> rusqlite::Result<()> {
    let mut delete = tx.statement(
        "DELETE FROM duly_job_index WHERE queue_no = ?1 AND state = ?2 AND term = ?3
               AND due_or_ended_at = ?4 AND job_no = ?5",
    )?;
    let mut gone = 0;
    for word in words {
        gone += delete.execute(params![queue, state, word, at, job_no])?;
    }
    if gone == words.len() || is_whole(tx, job_no)? {
        return Ok(());
    }
    // The terms were written before the job was damaged, so they are unknown now. This scans the terms of the queue,
    // once per damaged job: later terms are computed from the damaged job itself.
    tx.statement(
        "DELETE FROM duly_job_index WHERE queue_no = ?1 AND state = ?2 AND due_or_ended_at = ?3 AND job_no = ?4",
    )?
    .execute(params![queue, state, at, job_no])
    .map(drop)
}

/// Returns whether the checksum of a job matches.
fn is_whole(tx: &Tx<'_>, job_no: i64) -> rusqlite::Result<bool> {
    let body = tx
        .statement(&format!("SELECT {JOB_COLUMNS} FROM duly_job j WHERE j.job_no = ?1"))?
        .query_row([job_no], |row| checked(row, String::new()))
        .optional()?;
    Ok(body.is_none_or(|(_, whole)| whole))
}

/// Adds the terms of a job that was scheduled.
pub(crate) fn scheduled(tx: &Tx<'_>, queue: i64, job_no: i64, due: Micros) -> rusqlite::Result<()> {
    put(tx, queue, SCHEDULED, &words(tx, job_no)?, due, job_no)
}

/// Removes the terms of a job that is no longer scheduled.
pub(crate) fn unscheduled(tx: &Tx<'_>, queue: i64, job_no: i64, due: Micros) -> rusqlite::Result<()> {
    take(tx, queue, SCHEDULED, &words(tx, job_no)?, due, job_no)
}

/// Adds the terms of a job that died. Returns its group.
pub(crate) fn died(tx: &Tx<'_>, queue: i64, job_no: i64, ended: Micros) -> rusqlite::Result<i64> {
    let mut words = words(tx, job_no)?;
    let kind: Raw =
        tx.statement("SELECT kind FROM duly_job WHERE job_no = ?1")?.query_row([job_no], |row| row.get(0))?;
    let error = fingerprint::of(&crate::store::sqlite::jobs::failures::last(tx.conn, job_no)?.unwrap_or_default());
    let (group_no, id) = join(tx, queue, &kind.text(), &error, ended)?;
    words.push(group(id));
    put(tx, queue, DEAD, &words, ended, job_no)?;
    Ok(group_no)
}

/// Removes the terms of a job that is no longer dead.
pub(crate) fn undead(
    tx: &Tx<'_>,
    queue: i64,
    job_no: i64,
    ended: Micros,
    group_no: Option<i64>,
) -> rusqlite::Result<()> {
    let mut words = words(tx, job_no)?;
    if let Some(group_no) = group_no {
        let left: Option<(i64, Raw)> = tx
            .statement("UPDATE duly_dead_group SET count = count - 1 WHERE group_no = ?1 RETURNING count, id")?
            .query_row([group_no], |row| Ok((number(row, 0), row.get(1)?)))
            .optional()?;
        if let Some((count, id)) = left {
            words.push(group(id.0));
            if count <= 0 {
                tx.statement("DELETE FROM duly_dead_group WHERE group_no = ?1")?.execute([group_no])?;
            }
        }
    }
    take(tx, queue, DEAD, &words, ended, job_no)
}

/// Adds a job to its group, and creates the group if it is new.
fn join(tx: &Tx<'_>, queue: i64, kind: &str, error: &str, ended: Micros) -> rusqlite::Result<(i64, String)> {
    let more = |id: &str| -> rusqlite::Result<Option<i64>> {
        tx.statement(
            "UPDATE duly_dead_group
                SET count = count + 1, oldest_at = min(oldest_at, ?3), newest_at = max(newest_at, ?3)
              WHERE queue_no = ?1 AND id = ?2 RETURNING group_no",
        )?
        .query_row(params![queue, id, ended], |row| row.get(0))
        .optional()
    };
    let id = fingerprint::group(kind, error);
    if let Some(group_no) = more(&id)? {
        return Ok((group_no, id));
    }
    let groups: usize = tx
        .statement("SELECT count(*) FROM duly_dead_group WHERE queue_no = ?1")?
        .query_row([queue], |row| row.get(0))?;
    let (error, id) = if groups < GROUPS_MAX { (error, id) } else { (REST, fingerprint::group(kind, REST)) };
    if let Some(group_no) = more(&id)? {
        return Ok((group_no, id));
    }
    let group_no = tx
        .statement(
            "INSERT INTO duly_dead_group (queue_no, id, kind, error, count, oldest_at, newest_at)
               VALUES (?1, ?2, ?3, ?4, 1, ?5, ?5)
             RETURNING group_no",
        )?
        .query_row(params![queue, id, kind, error, ended], |row| row.get(0))?;
    Ok((group_no, id))
}

/// Implements `dead_groups` of the store contract.
pub(crate) fn groups(conn: &Connection, queue: Option<&str>) -> rusqlite::Result<Vec<DeadGroup>> {
    conn.prepare_cached(
        "SELECT g.id, q.name, g.kind, g.error, g.count, g.oldest_at, g.newest_at
           FROM duly_dead_group g JOIN duly_queue q ON q.queue_no = g.queue_no
          WHERE ?1 IS NULL OR q.name = ?1 ORDER BY g.count DESC, g.newest_at DESC, g.id",
    )?
    .query_map([queue], |row| {
        Ok(DeadGroup {
            id: text(row, 0)?,
            queue: text(row, 1)?,
            kind: text(row, 2)?,
            error: text(row, 3)?,
            count: many(row, 4),
            oldest: from_micros(number(row, 5)),
            newest: from_micros(number(row, 6)),
        })
    })?
    .collect()
}
