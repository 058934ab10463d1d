//! The job index: terms that find scheduled and dead jobs, and the groups of dead jobs.
//!
//! A page of 50 by kind or tag takes about 0.8 ms, with 10,000 scheduled jobs as with 1,000,000 (benchmark `list`);
//! without the index it may read every job. The price is one row per term and job: written by every scheduled push and
//! every death, removed by every promotion (`growth`, scheduled). Ready jobs are not indexed, so most jobs never pay it.

use rusqlite::{Connection, OptionalExtension, params};

use crate::clock::{Micros, from_micros};
use crate::job::fingerprint;
use crate::store::sqlite::jobs::state::STATE_DEAD;
use crate::store::sqlite::rows::{JOB_COLUMNS, RawText, read_checked_job, read_integer, read_text, read_u64};
use crate::store::sqlite::tx::Tx;
use crate::store::{DEAD_GROUPS_MAX, DeadGroup};

/// Number of a state in `duly_job_index`.
pub(crate) const STATE_SCHEDULED: i64 = 0;
/// The error of the group that takes all errors beyond the maximum number of groups.
const OTHER_ERRORS: &str = "…";

/// Computes all terms that the index must have: kind and tags of each scheduled and dead job, and the group of a dead
/// job.
pub(crate) const EXPECTED_TERMS_CTE: &str =
    "WITH RECURSIVE indexed_job (queue_no, state, due_or_ended_at, job_no, kind, tags) AS (
    SELECT p.queue_no, 0, p.due_at, p.job_no, j.kind, j.tags
      FROM duly_scheduled p JOIN duly_job j ON j.job_no = p.job_no
    UNION ALL
    SELECT p.queue_no, 4, p.ended_at, p.job_no, j.kind, j.tags
      FROM duly_ended p JOIN duly_job j ON j.job_no = p.job_no WHERE p.state = 4
  ), terms (queue_no, state, due_or_ended_at, job_no, term, rest) AS (
    SELECT queue_no, state, due_or_ended_at, job_no, 'k' || coalesce(kind, ''), coalesce(tags || ' ', '') FROM indexed_job
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
pub(crate) fn kind_term(kind: impl AsRef<[u8]>) -> RawText {
    prefixed_term(b'k', kind.as_ref())
}
pub(crate) fn tag_term(tag: impl AsRef<[u8]>) -> RawText {
    prefixed_term(b't', tag.as_ref())
}
pub(crate) fn group_term(id: impl AsRef<[u8]>) -> RawText {
    prefixed_term(b'g', id.as_ref())
}
fn prefixed_term(of: u8, name: &[u8]) -> RawText {
    RawText([&[of], name].concat())
}

/// Returns the terms of a job: its kind and its tags.
fn read_job_terms(tx: &Tx<'_>, job_no: i64) -> rusqlite::Result<Vec<RawText>> {
    let body: Option<(RawText, Option<RawText>)> = tx
        .statement("SELECT kind, tags FROM duly_job WHERE job_no = ?1")?
        .query_row([job_no], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((kind, tags)) = body else {
        return Ok(Vec::new());
    };
    let mut terms = vec![self::kind_term(kind.0)];
    terms.extend(tags.iter().flat_map(|tags| tags.0.split(|byte| *byte == b' ')).map(tag_term));
    // A job may have the same tag twice.
    terms.sort_unstable();
    terms.dedup();
    Ok(terms)
}

fn insert_terms(
    tx: &Tx<'_>,
    queue: i64,
    state: i64,
    terms: &[RawText],
    at: Micros,
    job_no: i64,
) -> rusqlite::Result<()> {
    let mut insert = tx.statement(
        "INSERT OR IGNORE INTO duly_job_index (queue_no, state, term, due_or_ended_at, job_no)
               VALUES (?1, ?2, ?3, ?4, ?5)",
    )?;
    terms.iter().try_for_each(|term| insert.execute(params![queue, state, term, at, job_no]).map(drop))
}

fn delete_terms(
    tx: &Tx<'_>,
    queue: i64,
    state: i64,
    terms: &[RawText],
    at: Micros,
    job_no: i64,
) -> rusqlite::Result<()> {
    let mut delete = tx.statement(
        "DELETE FROM duly_job_index WHERE queue_no = ?1 AND state = ?2 AND term = ?3
               AND due_or_ended_at = ?4 AND job_no = ?5",
    )?;
    let mut gone = 0;
    for term in terms {
        gone += delete.execute(params![queue, state, term, at, job_no])?;
    }
    if gone == terms.len() || is_checksum_valid(tx, job_no)? {
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
fn is_checksum_valid(tx: &Tx<'_>, job_no: i64) -> rusqlite::Result<bool> {
    let body = tx
        .statement(&format!("SELECT {JOB_COLUMNS} FROM duly_job j WHERE j.job_no = ?1"))?
        .query_row([job_no], |row| read_checked_job(row, String::new()))
        .optional()?;
    Ok(body.is_none_or(|(_, whole)| whole))
}

/// Adds the terms of a job that was scheduled.
pub(crate) fn index_scheduled(tx: &Tx<'_>, queue: i64, job_no: i64, due: Micros) -> rusqlite::Result<()> {
    insert_terms(tx, queue, STATE_SCHEDULED, &read_job_terms(tx, job_no)?, due, job_no)
}

/// Removes the terms of a job that is no longer scheduled.
pub(crate) fn unindex_scheduled(tx: &Tx<'_>, queue: i64, job_no: i64, due: Micros) -> rusqlite::Result<()> {
    delete_terms(tx, queue, STATE_SCHEDULED, &read_job_terms(tx, job_no)?, due, job_no)
}

/// Adds the terms of a job that died. Returns its group.
pub(crate) fn index_dead(tx: &Tx<'_>, queue: i64, job_no: i64, ended: Micros) -> rusqlite::Result<i64> {
    let mut terms = read_job_terms(tx, job_no)?;
    let kind: RawText =
        tx.statement("SELECT kind FROM duly_job WHERE job_no = ?1")?.query_row([job_no], |row| row.get(0))?;
    let error =
        fingerprint::compute(&crate::store::sqlite::jobs::runs::last_error(tx.conn, job_no)?.unwrap_or_default());
    let (group_no, id) = add_to_group(tx, queue, &kind.into_lossy_string(), &error, ended)?;
    terms.push(group_term(id));
    insert_terms(tx, queue, STATE_DEAD, &terms, ended, job_no)?;
    Ok(group_no)
}

/// Removes the terms of a job that is no longer dead.
pub(crate) fn unindex_dead(
    tx: &Tx<'_>,
    queue: i64,
    job_no: i64,
    ended: Micros,
    group_no: Option<i64>,
) -> rusqlite::Result<()> {
    let mut terms = read_job_terms(tx, job_no)?;
    if let Some(group_no) = group_no {
        let left: Option<(i64, RawText)> = tx
            .statement("UPDATE duly_dead_group SET count = count - 1 WHERE group_no = ?1 RETURNING count, id")?
            .query_row([group_no], |row| Ok((read_integer(row, 0), row.get(1)?)))
            .optional()?;
        if let Some((count, id)) = left {
            terms.push(group_term(id.0));
            if count <= 0 {
                tx.statement("DELETE FROM duly_dead_group WHERE group_no = ?1")?.execute([group_no])?;
            }
        }
    }
    delete_terms(tx, queue, STATE_DEAD, &terms, ended, job_no)
}

/// Adds a job to its group, and creates the group if it is new.
fn add_to_group(tx: &Tx<'_>, queue: i64, kind: &str, error: &str, ended: Micros) -> rusqlite::Result<(i64, String)> {
    let more = |id: &str| -> rusqlite::Result<Option<i64>> {
        tx.statement(
            "UPDATE duly_dead_group
                SET count = count + 1, oldest_at = min(oldest_at, ?3), newest_at = max(newest_at, ?3)
              WHERE queue_no = ?1 AND id = ?2 RETURNING group_no",
        )?
        .query_row(params![queue, id, ended], |row| row.get(0))
        .optional()
    };
    let id = fingerprint::group_id(kind, error);
    if let Some(group_no) = more(&id)? {
        return Ok((group_no, id));
    }
    let groups: usize = tx
        .statement("SELECT count(*) FROM duly_dead_group WHERE queue_no = ?1")?
        .query_row([queue], |row| row.get(0))?;
    let (error, id) =
        if groups < DEAD_GROUPS_MAX { (error, id) } else { (OTHER_ERRORS, fingerprint::group_id(kind, OTHER_ERRORS)) };
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

/// Implements `AdminStore::dead_groups`.
pub(crate) fn dead_groups(conn: &Connection, queue: Option<&str>) -> rusqlite::Result<Vec<DeadGroup>> {
    conn.prepare_cached(
        "SELECT g.id, q.name, g.kind, g.error, g.count, g.oldest_at, g.newest_at
           FROM duly_dead_group g JOIN duly_queue q ON q.queue_no = g.queue_no
          WHERE ?1 IS NULL OR q.name = ?1 ORDER BY g.count DESC, g.newest_at DESC, g.id",
    )?
    .query_map([queue], |row| {
        Ok(DeadGroup {
            id: read_text(row, 0)?,
            queue: read_text(row, 1)?,
            kind: read_text(row, 2)?,
            error: read_text(row, 3)?,
            count: read_u64(row, 4),
            oldest: from_micros(read_integer(row, 5)),
            newest: from_micros(read_integer(row, 6)),
        })
    })?
    .collect()
}
