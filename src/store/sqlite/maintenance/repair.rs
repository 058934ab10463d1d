//! Repair: corrects the violations that verify finds, in one transaction. It never loses a job: if in doubt, a job runs
//! again.

use rusqlite::{Connection, params};

use crate::error::{Error, Result};
use crate::job::Outcome;
use crate::store::outcome_index;
use crate::store::sqlite::Sqlite;
use crate::store::sqlite::jobs::state::STATE_DEAD;
use crate::store::sqlite::jobs::{counts, state};
use crate::store::sqlite::maintenance::verify;
use crate::store::sqlite::maintenance::verify::{POSITIONS_CTE, UNFINISHED_CTE};
use crate::store::sqlite::rows::RawText;
use crate::store::sqlite::tx::Tx;

/// Implements `MaintenanceStore::repair`.
pub(crate) async fn repair(store: &Sqlite) -> Result<()> {
    let missing = store.writer.run_outside_transaction("repair", verify::missing_columns).await?;
    if let Some(what) = missing.first() {
        return Err(Error::store("repair", format!("{what}; the file cannot be repaired, restore a backup")));
    }
    // Rebuilds every index from its table.
    store.writer.run_outside_transaction("repair", |conn| conn.execute_batch("REINDEX")).await?;
    store.writer.write("repair", repair_all).await?;
    // Runs last, after the changes above have updated the counts.
    let recount = |conn: &Connection| {
        let tx = conn.unchecked_transaction()?;
        counts::recount(&tx)?;
        tx.commit()
    };
    store.writer.run_outside_transaction("repair", recount).await
}

fn repair_all(tx: &Tx<'_>) -> rusqlite::Result<()> {
    repair_sequences(tx)?;
    repair_bodies(tx)?;
    repair_attempt_counts(tx)?;
    repair_positions(tx)?;
    repair_holders(tx)?;
    repair_unique_keys(tx)?;
    repair_cron_checks(tx)?;
    let run = |sql: &str| tx.conn.execute_batch(sql);
    for table in ["duly_run", "duly_progress", "duly_log"] {
        run(&format!("DELETE FROM {table} WHERE job_no NOT IN (SELECT job_no FROM duly_job)"))?;
    }
    run("DELETE FROM duly_removed_id_0 WHERE (queue_no, job_id) IN (SELECT queue_no, id FROM duly_job)")?;
    run("DELETE FROM duly_removed_id_1 WHERE (queue_no, job_id) IN (SELECT queue_no, id FROM duly_job)")
}

/// Runs first: the other repairs draw numbers.
fn repair_sequences(tx: &Tx<'_>) -> rusqlite::Result<()> {
    tx.conn.execute_batch(
        "INSERT OR IGNORE INTO duly_sequence (name, value)
           VALUES ('next_number', 1), ('last_fence', 0), ('removed_id_table', 0), ('removed_id_swapped_at', 0),
             ('removed_queues', 0);
         UPDATE duly_sequence SET value = max(value, 1 + (SELECT coalesce(max(n), 0) FROM (
             SELECT max(job_no) AS n FROM duly_job UNION ALL SELECT max(seq) FROM duly_ready
             UNION ALL SELECT max(seq) FROM duly_running))) WHERE name = 'next_number';
         UPDATE duly_sequence SET value = max(value, (SELECT coalesce(max(f), 0) FROM (
             SELECT max(fence) AS f FROM duly_running
             UNION ALL SELECT max(fence) FROM duly_lock))) WHERE name = 'last_fence';",
    )
}

/// Deletes states without a job. A job in an unknown queue, or in a queue with an unreadable name, gets a queue named
/// `recovered-N`.
fn repair_bodies(tx: &Tx<'_>) -> rusqlite::Result<()> {
    let names: Vec<(i64, RawText)> = tx
        .conn
        .prepare("SELECT queue_no, name FROM duly_queue")?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    let unnamed = names.into_iter().filter(|(_, name)| !name.is_utf8()).map(|(queue_no, _)| queue_no);
    tx.conn.execute_batch(
        "DELETE FROM duly_scheduled WHERE job_no NOT IN (SELECT job_no FROM duly_job);
         DELETE FROM duly_ready WHERE job_no NOT IN (SELECT job_no FROM duly_job);
         DELETE FROM duly_running WHERE job_no NOT IN (SELECT job_no FROM duly_job);
         DELETE FROM duly_ended WHERE job_no NOT IN (SELECT job_no FROM duly_job);
         INSERT INTO duly_queue (queue_no, name) SELECT DISTINCT queue_no, 'recovered-' || queue_no FROM duly_job
           WHERE queue_no NOT IN (SELECT queue_no FROM duly_queue);
         UPDATE duly_job SET priority = 2 WHERE priority NOT BETWEEN 0 AND 3;",
    )?;
    for queue_no in unnamed {
        tx.statement("UPDATE OR IGNORE duly_queue SET name = 'recovered-' || queue_no WHERE queue_no = ?1")?
            .execute([queue_no])?;
    }
    Ok(())
}

/// Replaces impossible attempts and crashes with the nearest possible value, as every read does.
fn repair_attempt_counts(tx: &Tx<'_>) -> rusqlite::Result<()> {
    for table in ["duly_scheduled", "duly_ready", "duly_running", "duly_ended"] {
        for column in ["attempts", "crashes"] {
            tx.conn.execute_batch(&format!(
                "UPDATE {table} SET {column} = iif(typeof({column}) = 'integer', max(0, min({column}, 4294967295)), 0)
                  WHERE typeof({column}) <> 'integer' OR {column} NOT BETWEEN 0 AND 4294967295"
            ))?;
        }
    }
    Ok(())
}

/// Keeps one state per job: running, then ready, then scheduled. A job without a state becomes ready.
fn repair_positions(tx: &Tx<'_>) -> rusqlite::Result<()> {
    tx.conn.execute_batch(&format!(
        "DELETE FROM duly_ready WHERE job_no IN (SELECT job_no FROM duly_running)
           OR (queue_no, priority, seq) NOT IN (SELECT queue_no, priority, min(seq) FROM duly_ready GROUP BY job_no);
         DELETE FROM duly_scheduled WHERE job_no IN
             (SELECT job_no FROM duly_running UNION SELECT job_no FROM duly_ready)
           OR (queue_no, due_at, job_no) NOT IN
             (SELECT queue_no, min(due_at), job_no FROM duly_scheduled GROUP BY job_no);
         {UNFINISHED_CTE} DELETE FROM duly_ended WHERE job_no IN unfinished;
         UPDATE duly_ended SET state = {STATE_DEAD} WHERE state NOT IN (3, 4, 5);
         UPDATE duly_ended SET queue_no = (SELECT queue_no FROM duly_job j WHERE j.job_no = duly_ended.job_no)
          WHERE queue_no <> (SELECT queue_no FROM duly_job j WHERE j.job_no = duly_ended.job_no);
         UPDATE duly_running SET (queue_no, priority) =
           (SELECT queue_no, priority FROM duly_job j WHERE j.job_no = duly_running.job_no);
         UPDATE duly_scheduled SET (queue_no, priority) =
             (SELECT queue_no, priority FROM duly_job j WHERE j.job_no = duly_scheduled.job_no)
          WHERE (queue_no, priority) <>
            (SELECT queue_no, priority FROM duly_job j WHERE j.job_no = duly_scheduled.job_no);"
    ))?;
    let misplaced = "DELETE FROM duly_ready
         WHERE (queue_no, priority) <> (SELECT queue_no, priority FROM duly_job j WHERE j.job_no = duly_ready.job_no)
         RETURNING job_no, due_at, attempts, crashes";
    let homeless = format!(
        "{POSITIONS_CTE} SELECT job_no, pushed_at, 0, 0 FROM duly_job WHERE job_no NOT IN (SELECT job_no FROM positions)"
    );
    for sql in [misplaced, &homeless] {
        insert_all_ready(tx, sql)?;
    }
    Ok(())
}

/// Makes jobs ready. The query returns the number, due time, attempts and crashes of each.
fn insert_all_ready(tx: &Tx<'_>, sql: &str) -> rusqlite::Result<()> {
    let found: Vec<(i64, i64, u32, u32)> = tx
        .conn
        .prepare(sql)?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?
        .collect::<rusqlite::Result<_>>()?;
    for (job_no, due, attempts, crashes) in found {
        let (queue, priority) = tx
            .statement("SELECT queue_no, priority FROM duly_job WHERE job_no = ?1")?
            .query_row([job_no], |row| Ok((row.get(0)?, row.get(1)?)))?;
        state::insert_ready(tx, queue, job_no, priority, tx.next_number()?, due, attempts, crashes)?;
    }
    Ok(())
}

/// Makes running jobs ready if their node is unknown, or ends those that were acked or cancelled.
fn repair_holders(tx: &Tx<'_>) -> rusqlite::Result<()> {
    let acked: Vec<(i64, i64, u32, u32)> = tx
        .conn
        .prepare(
            "DELETE FROM duly_running WHERE node_no NOT IN (SELECT node_no FROM duly_node) AND acked IS NOT NULL
             RETURNING job_no, due_at, attempts, crashes",
        )?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?
        .collect::<rusqlite::Result<_>>()?;
    for (job_no, due, attempts, crashes) in acked {
        let (_, queue) = state::read_args_bytes_and_queue(tx, job_no)?;
        tx.increment_counter(queue, outcome_index(&Outcome::Ack), 1);
        state::insert_acked(tx, job_no, due, attempts, crashes, None)?;
    }
    let cancelled: Vec<(i64, i64, i64, u32, u32)> = tx
        .conn
        .prepare(
            "DELETE FROM duly_running
              WHERE node_no NOT IN (SELECT node_no FROM duly_node) AND cancel_keep_ms IS NOT NULL
             RETURNING job_no, cancel_keep_ms, due_at, attempts, crashes",
        )?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?)))?
        .collect::<rusqlite::Result<_>>()?;
    for (job_no, keep_ms, due, attempts, crashes) in cancelled {
        state::insert_cancelled(tx, job_no, keep_ms, due, attempts, crashes)?;
    }
    insert_all_ready(
        tx,
        "DELETE FROM duly_running WHERE node_no NOT IN (SELECT node_no FROM duly_node)
         RETURNING job_no, due_at, attempts, crashes",
    )
}

/// Sets when rules are checked, and the first check of each queue.
fn repair_cron_checks(tx: &Tx<'_>) -> rusqlite::Result<()> {
    tx.conn.execute_batch(
        "UPDATE duly_cron SET check_at =
           CASE WHEN paused THEN NULL WHEN waiting AND check_at IS NOT NULL THEN check_at ELSE next_tick_at END;
         UPDATE duly_queue SET cron_check_at =
           (SELECT min(check_at) FROM duly_cron c WHERE c.queue_no = duly_queue.queue_no);",
    )
}

/// Gives a unique key to the oldest unfinished job that has it. The other jobs continue without a key.
fn repair_unique_keys(tx: &Tx<'_>) -> rusqlite::Result<()> {
    tx.conn.execute_batch(&format!(
        "{UNFINISHED_CTE} DELETE FROM duly_unique_key WHERE job_no NOT IN unfinished OR NOT EXISTS (
           SELECT 1 FROM duly_job j WHERE j.job_no = duly_unique_key.job_no AND j.queue_no = duly_unique_key.queue_no
              AND j.unique_key = duly_unique_key.unique_key);
         {UNFINISHED_CTE} INSERT OR IGNORE INTO duly_unique_key (queue_no, unique_key, job_no)
           SELECT queue_no, unique_key, job_no FROM duly_job
            WHERE unique_key IS NOT NULL AND job_no IN unfinished ORDER BY job_no;"
    ))?;
    tx.conn.execute(
        &format!(
            "{UNFINISHED_CTE} UPDATE duly_job SET unique_key = NULL WHERE unique_key IS NOT NULL AND job_no IN unfinished
               AND job_no <> (SELECT u.job_no FROM duly_unique_key u
                 WHERE u.queue_no = duly_job.queue_no AND u.unique_key = duly_job.unique_key)"
        ),
        params![],
    )?;
    Ok(())
}
