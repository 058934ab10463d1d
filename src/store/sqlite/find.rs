//! Words by which scheduled and dead jobs are found, and the groups of the dead.

use rusqlite::{Connection, OptionalExtension, params};

use super::place::DEAD;
use super::tx::Tx;
use crate::clock::{Micros, from_micros};
use crate::fingerprint;
use crate::store::{DeadGroup, GROUPS_MAX};

/// Number of a state in `duly_find`.
pub(super) const SCHEDULED: i64 = 0;
/// The error of the group that holds what would be one too many.
const REST: &str = "…";

/// All words as they must be: of every scheduled and every dead job, its kind, its tags, and the group of a dead one.
pub(super) const WORDS: &str = "WITH RECURSIVE placed (queue, state, at, no, kind, tags) AS (
    SELECT p.queue, 0, p.due, p.no, j.kind, j.tags FROM duly_scheduled p JOIN duly_job j ON j.no = p.no
    UNION ALL
    SELECT p.queue, 4, p.ended, p.no, j.kind, j.tags FROM duly_ended p JOIN duly_job j ON j.no = p.no WHERE p.state = 4
  ), words (queue, state, at, no, word, rest) AS (
    SELECT queue, state, at, no, 'k' || kind, coalesce(tags || ' ', '') FROM placed
    UNION ALL
    SELECT queue, state, at, no, 't' || substr(rest, 1, instr(rest, ' ') - 1), substr(rest, instr(rest, ' ') + 1)
      FROM words WHERE rest <> ''
  ), wanted (queue, state, word, at, no) AS (
    SELECT queue, state, word, at, no FROM words
    UNION
    SELECT e.queue, 4, 'g' || g.id, e.ended, e.no FROM duly_ended e JOIN duly_group g ON g.no = e.grp WHERE e.state = 4) ";

/// The word for a kind, a tag, a group.
pub(super) fn kind(kind: &str) -> String {
    format!("k{kind}")
}
pub(super) fn tag(tag: &str) -> String {
    format!("t{tag}")
}
pub(super) fn group(id: &str) -> String {
    format!("g{id}")
}

/// The words of a job: its kind and its tags.
fn words(tx: &Tx<'_>, no: i64) -> rusqlite::Result<Vec<String>> {
    let body: Option<(String, Option<String>)> = tx
        .statement("SELECT kind, tags FROM duly_job WHERE no = ?1")?
        .query_row([no], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((kind, tags)) = body else {
        return Ok(Vec::new());
    };
    let mut words = vec![self::kind(&kind)];
    words.extend(tags.iter().flat_map(|tags| tags.split(' ')).map(tag));
    // A tag may be said twice.
    words.sort_unstable();
    words.dedup();
    Ok(words)
}

fn put(tx: &Tx<'_>, queue: i64, state: i64, words: &[String], at: Micros, no: i64) -> rusqlite::Result<()> {
    let mut insert =
        tx.statement("INSERT OR IGNORE INTO duly_find (queue, state, word, at, no) VALUES (?1, ?2, ?3, ?4, ?5)")?;
    words.iter().try_for_each(|word| insert.execute(params![queue, state, word, at, no]).map(drop))
}

fn take(tx: &Tx<'_>, queue: i64, state: i64, words: &[String], at: Micros, no: i64) -> rusqlite::Result<()> {
    let mut delete =
        tx.statement("DELETE FROM duly_find WHERE queue = ?1 AND state = ?2 AND word = ?3 AND at = ?4 AND no = ?5")?;
    words.iter().try_for_each(|word| delete.execute(params![queue, state, word, at, no]).map(drop))
}

/// A job has come among the scheduled.
pub(super) fn scheduled(tx: &Tx<'_>, queue: i64, no: i64, due: Micros) -> rusqlite::Result<()> {
    put(tx, queue, SCHEDULED, &words(tx, no)?, due, no)
}

/// A job leaves the scheduled.
pub(super) fn unscheduled(tx: &Tx<'_>, queue: i64, no: i64, due: Micros) -> rusqlite::Result<()> {
    take(tx, queue, SCHEDULED, &words(tx, no)?, due, no)
}

/// A job has died. Answers its group.
pub(super) fn died(tx: &Tx<'_>, queue: i64, no: i64, ended: Micros) -> rusqlite::Result<i64> {
    let mut words = words(tx, no)?;
    let kind: String = tx.statement("SELECT kind FROM duly_job WHERE no = ?1")?.query_row([no], |row| row.get(0))?;
    let error = fingerprint::of(&super::failure::last(tx.conn, no)?.unwrap_or_default());
    let (grp, id) = join(tx, queue, &kind, &error, ended)?;
    words.push(group(&id));
    put(tx, queue, DEAD, &words, ended, no)?;
    Ok(grp)
}

/// A job leaves the dead.
pub(super) fn undead(tx: &Tx<'_>, queue: i64, no: i64, ended: Micros, grp: Option<i64>) -> rusqlite::Result<()> {
    let mut words = words(tx, no)?;
    if let Some(grp) = grp {
        let left: Option<(i64, String)> = tx
            .statement("UPDATE duly_group SET count = count - 1 WHERE no = ?1 RETURNING count, id")?
            .query_row([grp], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        if let Some((count, id)) = left {
            words.push(group(&id));
            if count <= 0 {
                tx.statement("DELETE FROM duly_group WHERE no = ?1")?.execute([grp])?;
            }
        }
    }
    take(tx, queue, DEAD, &words, ended, no)
}

/// One more in a group, which is made if it is new.
fn join(tx: &Tx<'_>, queue: i64, kind: &str, error: &str, ended: Micros) -> rusqlite::Result<(i64, String)> {
    let more = |id: &str| -> rusqlite::Result<Option<i64>> {
        tx.statement(
            "UPDATE duly_group SET count = count + 1, oldest = min(oldest, ?3), newest = max(newest, ?3)
              WHERE queue = ?1 AND id = ?2 RETURNING no",
        )?
        .query_row(params![queue, id, ended], |row| row.get(0))
        .optional()
    };
    let id = fingerprint::group(kind, error);
    if let Some(no) = more(&id)? {
        return Ok((no, id));
    }
    let groups: usize =
        tx.statement("SELECT count(*) FROM duly_group WHERE queue = ?1")?.query_row([queue], |row| row.get(0))?;
    let (error, id) = if groups < GROUPS_MAX { (error, id) } else { (REST, fingerprint::group(kind, REST)) };
    if let Some(no) = more(&id)? {
        return Ok((no, id));
    }
    let no = tx
        .statement(
            "INSERT INTO duly_group (queue, id, kind, error, count, oldest, newest) VALUES (?1, ?2, ?3, ?4, 1, ?5, ?5)
             RETURNING no",
        )?
        .query_row(params![queue, id, kind, error, ended], |row| row.get(0))?;
    Ok((no, id))
}

/// `dead_groups` of the contract.
pub(super) fn groups(conn: &Connection, queue: Option<&str>) -> rusqlite::Result<Vec<DeadGroup>> {
    conn.prepare_cached(
        "SELECT g.id, q.name, g.kind, g.error, g.count, g.oldest, g.newest
           FROM duly_group g JOIN duly_queue q ON q.no = g.queue
          WHERE ?1 IS NULL OR q.name = ?1 ORDER BY g.count DESC, g.newest DESC, g.id",
    )?
    .query_map([queue], |row| {
        Ok(DeadGroup {
            id: row.get(0)?,
            queue: row.get(1)?,
            kind: row.get(2)?,
            error: row.get(3)?,
            count: row.get(4)?,
            oldest: from_micros(row.get(5)?),
            newest: from_micros(row.get(6)?),
        })
    })?
    .collect()
}
