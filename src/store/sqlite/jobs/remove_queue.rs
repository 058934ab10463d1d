//! Removes queues with everything that belongs to them.

use rusqlite::params;

use crate::store::sqlite::jobs::counts::MINUTE_MICROS;
use crate::store::sqlite::tx::Tx;
use crate::store::{HISTORY_MINUTES_MAX, QueueUse, RemoveQueueResult};

/// The uses that keep a queue in any case. Counts are written at the end of a transaction, so the rows decide.
const USES: [(QueueUse, &str); 3] = [
    (
        QueueUse::Jobs,
        "SELECT EXISTS (SELECT 1 FROM duly_scheduled WHERE queue_no = ?1)
             OR EXISTS (SELECT 1 FROM duly_ready WHERE queue_no = ?1)
             OR EXISTS (SELECT 1 FROM duly_ended WHERE queue_no = ?1)
             OR EXISTS (SELECT 1 FROM duly_running WHERE queue_no = ?1)",
    ),
    (QueueUse::CronRules, "SELECT EXISTS (SELECT 1 FROM duly_cron WHERE queue_no = ?1)"),
    (
        QueueUse::Transfer,
        "SELECT EXISTS (SELECT 1 FROM duly_queue WHERE queue_no = ?1 AND transfer_mark IS NOT NULL)
             OR EXISTS (SELECT 1 FROM duly_transfer_checkpoint WHERE queue_no = ?1)",
    ),
];

const HAS_SETTINGS: &str = "SELECT EXISTS (SELECT 1 FROM duly_queue WHERE queue_no = ?1
     AND (paused <> 0 OR capacity_jobs IS NOT NULL OR capacity_bytes IS NOT NULL))";

/// Remembered ids, or counters since the minute `?2`.
const IS_ACTIVE: &str = "SELECT EXISTS (SELECT 1 FROM duly_removed_id_0 WHERE queue_no = ?1)
     OR EXISTS (SELECT 1 FROM duly_removed_id_1 WHERE queue_no = ?1)
     OR EXISTS (SELECT 1 FROM duly_history WHERE queue_no = ?1 AND minute > ?2)
     OR EXISTS (SELECT 1 FROM duly_queue_stats WHERE queue_no = ?1 AND minute > ?2 AND counters <> x'')";

/// The tables with rows of a queue, besides those that are checked. The remembered ids are forgotten in time: no other
/// queue gets the number.
const TABLES: [&str; 9] = [
    "duly_queue",
    "duly_queue_stats",
    "duly_queue_total",
    "duly_history",
    "duly_history_hour",
    "duly_dead_group",
    "duly_job_index",
    "duly_unique_key",
    "duly_deferred",
];

/// Implements `AdminStore::remove_queue`.
pub(crate) fn remove_queue(tx: &Tx<'_>, name: &str, only_unused: bool) -> rusqlite::Result<RemoveQueueResult> {
    let Some(queue) = tx.find_queue(name)? else {
        return Ok(RemoveQueueResult::NotFound);
    };
    for (reason, sql) in USES {
        if tx.statement(sql)?.query_row([queue], |row| row.get(0))? {
            return Ok(RemoveQueueResult::InUse(reason));
        }
    }
    if only_unused {
        if tx.statement(HAS_SETTINGS)?.query_row([queue], |row| row.get(0))? {
            return Ok(RemoveQueueResult::InUse(QueueUse::Settings));
        }
        let day_ago = tx.now.div_euclid(MINUTE_MICROS) - i64::from(HISTORY_MINUTES_MAX);
        if tx.statement(IS_ACTIVE)?.query_row(params![queue, day_ago], |row| row.get(0))? {
            return Ok(RemoveQueueResult::InUse(QueueUse::Activity));
        }
    }
    for table in TABLES {
        tx.statement(&format!("DELETE FROM {table} WHERE queue_no = ?1"))?.execute([queue])?;
    }
    tx.forget_queue(name, queue)?;
    Ok(RemoveQueueResult::Removed)
}
