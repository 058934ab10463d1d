//! Cron rules. Each rule is a row; the row of its queue holds the time at which to check the first of its rules.

use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::tx::Tx;
use crate::clock::{Micros, from_micros, micros, to_micros};
use crate::cron::CronRule;
use crate::error::{Error, Result};
use crate::job::JobId;
use crate::store::sqlite::jobs::push;
use crate::store::sqlite::jobs::state;
use crate::store::sqlite::jobs::state::JobPosition;
use crate::store::sqlite::{Sqlite, disk_reserve, errors, transfer};
use crate::store::{
    CRON_FIRINGS_MAX, CRON_PAGE_SIZE, CronFiring, CronFiringResult, CronPage, CronRecord, CronStore,
    DUE_CRONS_READ_MAX, DueCrons, FireCronsReply, OverlapWait, PutCron, PutCronResult, WAITING_TICK_RECHECK_INTERVAL,
};

const CRON_COLUMNS: &str = "rule, revision, paused, next_tick_at, waiting, last_tick_at";

#[async_trait]
impl CronStore for Sqlite {
    async fn put_cron(&self, change: PutCron) -> Result<PutCronResult> {
        self.writer.write("put_cron", move |tx| put_cron(tx, &change)).await
    }

    async fn remove_cron(&self, name: &str) -> Result<bool> {
        let name = name.to_owned();
        self.writer.write("remove_cron", move |tx| remove_cron(tx, &name)).await
    }

    async fn cron(&self, name: &str) -> Result<Option<CronRecord>> {
        let name = name.to_owned();
        self.query("cron", move |conn| cron(conn, &name)).await
    }

    async fn crons(&self, queue: Option<&str>, cursor: Option<&str>) -> Result<CronPage> {
        let (queue, cursor) = (queue.map(str::to_owned), cursor.map(str::to_owned));
        self.read("crons", move |conn| crons(conn, queue.as_deref(), cursor.as_deref())).await
    }

    async fn due_crons(&self, queue: &str, freed: &[String]) -> Result<DueCrons> {
        let (queue, freed, clock) = (queue.to_owned(), freed.to_vec(), self.clock.clone());
        self.query("due_crons", move |conn| due_crons(conn, clock.now_micros(), &queue, &freed)).await
    }

    async fn confirm_ticks(&self, queue: &str, planned_at: SystemTime) -> Result<()> {
        let queue = queue.to_owned();
        self.writer.write("confirm_ticks", move |tx| confirm_ticks(tx, &queue, planned_at)).await
    }

    async fn fire_crons(&self, queue: &str, firings: Vec<CronFiring>) -> Result<FireCronsReply> {
        if firings.len() > CRON_FIRINGS_MAX {
            return Err(Error::invalid("firings", format!("at most {CRON_FIRINGS_MAX} rules in one request")));
        }
        let queue = queue.to_owned();
        let bytes = firings.iter().map(|firing| disk_reserve::push_bytes(&firing.jobs)).sum();
        self.writer
            .write("fire_crons", move |tx| match tx.check_disk_room("fire_crons", bytes)? {
                Ok(()) => fire_crons(tx, &queue, &firings).map(Ok),
                Err(full) => Ok(Err(full)),
            })
            .await?
    }
}

/// Returns `None` if a newer version wrote the rule.
fn read_record(row: &Row<'_>) -> rusqlite::Result<Option<CronRecord>> {
    let text: String = row.get(0)?;
    let moment = |at: Option<Micros>| at.map(from_micros);
    let Some(rule) = CronRule::from_json(&text) else {
        tracing::error!("a cron rule is unreadable: it is corrupted or was written by a newer duly; run `duly verify`");
        return Ok(None);
    };
    Ok(Some(CronRecord {
        rule,
        revision: row.get::<_, i64>(1)?.unsigned_abs(),
        paused: row.get(2)?,
        next: moment(row.get(3)?),
        waiting: row.get(4)?,
        last: moment(row.get(5)?),
    }))
}

/// Implements `CronStore::put_cron`.
pub(super) fn put_cron(tx: &Tx<'_>, put: &PutCron) -> rusqlite::Result<PutCronResult> {
    let record = &put.record;
    let found: Option<(i64, i64)> = tx
        .statement("SELECT queue_no, revision FROM duly_cron WHERE name = ?1")?
        .query_row([&record.rule.name], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    if found.map(|(_, revision)| revision.unsigned_abs()) != put.expected_revision {
        return Ok(PutCronResult::Stale);
    }
    let queue = tx.ensure_queue(&record.rule.queue)?;
    let old = found.map(|(old, _)| old).filter(|old| *old != queue);
    for queue in [Some(queue), old].into_iter().flatten() {
        if transfer::read_transfer_mark(tx, queue)?.is_some() {
            return Ok(PutCronResult::Moving);
        }
    }
    write_rule(tx, queue, record)?;
    if let Some(old) = old {
        set_cron_check_at(tx, old)?;
    }
    tx.wake_one(&record.rule.queue);
    Ok(PutCronResult::Applied)
}

/// Writes a rule into its queue and replaces an older one.
fn write_rule(tx: &Tx<'_>, queue: i64, record: &CronRecord) -> rusqlite::Result<()> {
    let next = record.next.map(to_micros);
    tx.statement(
        "INSERT OR REPLACE INTO duly_cron
           (name, queue_no, rule, revision, paused, next_tick_at, check_at, waiting, last_tick_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
    )?
    .execute(params![
        record.rule.name,
        queue,
        record.rule.to_json(),
        record.revision.cast_signed(),
        record.paused,
        next,
        next.filter(|_| !record.paused),
        record.waiting,
        record.last.map(to_micros),
    ])?;
    set_cron_check_at(tx, queue)
}

/// Sets the time at which a claim of this queue has its rules checked, and the latest time at which ticks were planned.
fn set_cron_check_at(tx: &Tx<'_>, queue: i64) -> rusqlite::Result<()> {
    tx.statement(
        "UPDATE duly_queue SET planned_at = max(ifnull(planned_at, 0), ?2), cron_check_at =
           (SELECT min(check_at) FROM duly_cron WHERE queue_no = ?1 AND check_at IS NOT NULL) WHERE queue_no = ?1",
    )?
    .execute([queue, tx.now])?;
    Ok(())
}

/// Implements `CronStore::confirm_ticks`.
fn confirm_ticks(tx: &Tx<'_>, name: &str, planned_at: SystemTime) -> rusqlite::Result<()> {
    tx.statement("UPDATE duly_queue SET planned_at = ?3 WHERE name = ?1 AND planned_at = ?2")?.execute(params![
        name,
        to_micros(planned_at),
        tx.now
    ])?;
    Ok(())
}

/// Implements `CronStore::remove_cron`.
pub(super) fn remove_cron(tx: &Tx<'_>, name: &str) -> rusqlite::Result<bool> {
    let queue: Option<i64> = tx
        .statement("DELETE FROM duly_cron WHERE name = ?1 RETURNING queue_no")?
        .query_row([name], |row| row.get(0))
        .optional()?;
    match queue {
        Some(queue) => set_cron_check_at(tx, queue).map(|()| true),
        None => Ok(false),
    }
}

/// Implements `CronStore::cron`.
pub(super) fn cron(conn: &Connection, name: &str) -> rusqlite::Result<Option<CronRecord>> {
    let found = conn
        .prepare_cached(&format!("SELECT {CRON_COLUMNS} FROM duly_cron WHERE name = ?1"))?
        .query_row([name], read_record)
        .optional()?;
    Ok(found.flatten())
}

/// Implements `CronStore::crons`. Rules are listed by name; the cursor is the last name.
pub(super) fn crons(conn: &Connection, queue: Option<&str>, cursor: Option<&str>) -> Result<CronPage> {
    let read_page = || -> rusqlite::Result<Vec<(String, Option<CronRecord>)>> {
        conn.prepare_cached(&format!(
            "SELECT {CRON_COLUMNS}, name FROM duly_cron WHERE name > ?1
                AND (?2 IS NULL OR queue_no =
                  (SELECT queue_no FROM duly_queue WHERE duly_queue.name = ?2)) ORDER BY name LIMIT ?3"
        ))?
        .query_map(params![cursor.unwrap_or(""), queue, CRON_PAGE_SIZE], |row| Ok((row.get(6)?, read_record(row)?)))?
        .collect()
    };
    let found = read_page().map_err(|e| errors::from_sqlite("crons", e))?;
    let next = found.last().filter(|_| found.len() == CRON_PAGE_SIZE).map(|(name, _)| name.clone());
    Ok(CronPage { rules: found.into_iter().filter_map(|(_, record)| record).collect(), next_cursor: next })
}

/// Implements `CronStore::due_crons`.
pub(super) fn due_crons(conn: &Connection, now: Micros, queue: &str, freed: &[String]) -> rusqlite::Result<DueCrons> {
    let mut due = DueCrons { rules: Vec::new(), now: from_micros(now), next_tick: None, planned_at: None };
    let found: Option<(i64, Option<Micros>)> = conn
        .prepare_cached("SELECT queue_no, planned_at FROM duly_queue WHERE name = ?1 AND transfer_mark IS NULL")?
        .query_row([queue], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((queue_no, planned_at)) = found else {
        return Ok(due);
    };
    due.planned_at = planned_at.filter(|planned_at| *planned_at > now).map(from_micros);
    let mut select = conn.prepare_cached(&format!(
        "SELECT {CRON_COLUMNS} FROM duly_cron WHERE queue_no = ?1 AND check_at <= ?2 ORDER BY check_at, name LIMIT ?3"
    ))?;
    // Rules that cannot be read stay due. They must not keep the others from firing.
    let mut rows = select.query(params![queue_no, now, DUE_CRONS_READ_MAX])?;
    while let Some(row) = rows.next()?
        && due.rules.len() < CRON_FIRINGS_MAX
    {
        due.rules.extend(read_record(row)?);
    }
    for name in freed.iter().take(CRON_FIRINGS_MAX - due.rules.len()) {
        let held = cron(conn, name)?.filter(|record| record.waiting && !record.paused && record.rule.queue == queue);
        due.rules.extend(held.filter(|held| due.rules.iter().all(|due| due.rule.name != held.rule.name)));
    }
    due.next_tick = time_until_next_tick(conn, queue_no, now)?;
    Ok(due)
}

fn time_until_next_tick(conn: &Connection, queue: i64, now: Micros) -> rusqlite::Result<Option<Duration>> {
    let tick = conn
        .prepare_cached("SELECT cron_check_at FROM duly_queue WHERE queue_no = ?1")?
        .query_row([queue], |row| row.get(0))?;
    Ok(duration_until(tick, now))
}

/// Returns the time that is left until a tick; zero if the tick is past.
pub(super) fn duration_until(tick: Option<Micros>, now: Micros) -> Option<Duration> {
    tick.map(|tick| Duration::from_micros(u64::try_from(tick - now).unwrap_or(0)))
}

/// Implements `CronStore::fire_crons`.
pub(super) fn fire_crons(tx: &Tx<'_>, name: &str, firings: &[CronFiring]) -> rusqlite::Result<FireCronsReply> {
    let queue = tx.ensure_queue(name)?;
    let closed = transfer::read_transfer_mark(tx, queue)?.is_some();
    let mut fired = Vec::with_capacity(firings.len());
    for firing in firings {
        fired.push(if closed { CronFiringResult::Stale } else { fire_cron(tx, queue, firing)? });
    }
    set_cron_check_at(tx, queue)?;
    Ok(FireCronsReply { results: fired, next_tick: time_until_next_tick(tx.conn, queue, tx.now)? })
}

fn fire_cron(tx: &Tx<'_>, queue: i64, firing: &CronFiring) -> rusqlite::Result<CronFiringResult> {
    let (revision, tick) = (firing.revision.cast_signed(), to_micros(firing.tick));
    let as_read: bool = tx
        .statement(
            "SELECT EXISTS (SELECT 1 FROM duly_cron
              WHERE name = ?1 AND queue_no = ?2 AND revision = ?3 AND paused = 0 AND next_tick_at = ?4
              AND next_tick_at <= ?5)",
        )?
        .query_row(params![firing.name, queue, revision, tick, tx.now], |row| row.get(0))?;
    if !as_read {
        return Ok(CronFiringResult::Stale);
    }
    if let Some(holder) = find_blocking_job(tx, queue, firing)? {
        let recheck_at = tx.now + micros(WAITING_TICK_RECHECK_INTERVAL);
        tx.statement("UPDATE duly_cron SET revision = revision + 1, waiting = 1, check_at = ?2 WHERE name = ?1")?
            .execute(params![firing.name, recheck_at])?;
        return Ok(CronFiringResult::Waiting(holder));
    }
    // If the queue is full, the tick passes without a job.
    let pushed = push::push(tx, &firing.jobs)?;
    let moment = |at: Option<SystemTime>| at.map(to_micros);
    tx.statement(
        "UPDATE duly_cron SET revision = revision + 1, next_tick_at = ?2, check_at = ?2, waiting = 0,
           last_tick_at = ifnull(?3, last_tick_at) WHERE name = ?1",
    )?
    .execute(params![firing.name, moment(firing.next), moment(firing.last)])?;
    Ok(pushed.map_or(CronFiringResult::QueueFull, CronFiringResult::Fired))
}

/// Returns the job that a tick must wait for.
fn find_blocking_job(tx: &Tx<'_>, queue: i64, firing: &CronFiring) -> rusqlite::Result<Option<JobId>> {
    let key =
        firing.jobs.first().and_then(|job| job.unique.as_deref()).filter(|_| firing.overlap_wait != OverlapWait::Never);
    let Some((job_no, holder)) = key.map(|key| push::find_unique_holder(tx, queue, key)).transpose()?.flatten() else {
        return Ok(None);
    };
    let running = matches!(state::find_position(tx.conn, job_no)?, Some(JobPosition::Running { .. }));
    Ok((running || firing.overlap_wait == OverlapWait::WhileUnfinished).then_some(holder))
}
