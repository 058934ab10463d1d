//! Verify: checks each invariant with one query on one snapshot of the file. Never writes.

use std::collections::BTreeSet;

use rusqlite::{Connection, ErrorCode};

use crate::error::{Error, Result};
use crate::job::{JobId, State};
use crate::store::sqlite::jobs::job_index;
use crate::store::sqlite::rows::{JOB_COLUMNS, JOB_COLUMNS_LEN, RawText, read_checked_job, read_integer, read_text};
use crate::store::sqlite::{Sqlite, errors, file};
use crate::store::{Invariant, VIOLATIONS_MAX, VerifyReport};

/// The states of jobs, one row for each.
pub(crate) const POSITIONS_CTE: &str = "WITH position (job_no, at) AS (
    SELECT job_no, 'scheduled' FROM duly_scheduled UNION ALL SELECT job_no, 'ready' FROM duly_ready
    UNION ALL SELECT job_no, 'running' FROM duly_running
    UNION ALL SELECT job_no, CASE state WHEN 3 THEN 'done' WHEN 5 THEN 'cancelled' ELSE 'dead' END FROM duly_ended),
  positions (job_no, times, at) AS (SELECT job_no, count(*), group_concat(at, ', ') FROM position GROUP BY job_no) ";

/// Jobs that have not ended, and so hold their unique key.
pub(crate) const UNFINISHED_CTE: &str = "WITH unfinished (job_no) AS (
    SELECT job_no FROM duly_scheduled UNION SELECT job_no FROM duly_ready UNION SELECT job_no FROM duly_running) ";

/// An invariant, the message for a violation, and a query that returns queue, id and a detail. A query that starts with
/// one of the names above continues that text.
type InvariantQuery = (Invariant, &'static str, &'static str);

const INVARIANT_QUERIES: &[InvariantQuery] = &[
    (
        Invariant::OneState,
        "must be in exactly one state, but is in:",
        "POSITIONS SELECT q.name, j.id, coalesce(p.at, 'none') FROM duly_job j LEFT JOIN positions p ON p.job_no = j.job_no
           LEFT JOIN duly_queue q ON q.queue_no = j.queue_no WHERE p.job_no IS NULL OR p.times > 1",
    ),
    (
        Invariant::HasRecord,
        "state without a job:",
        "POSITIONS SELECT NULL, NULL, p.at || ', number ' || p.job_no
           FROM positions p WHERE p.job_no NOT IN (SELECT job_no FROM duly_job)",
    ),
    (
        Invariant::HasRecord,
        "belongs to an unknown queue: number",
        "SELECT NULL, j.id, j.queue_no FROM duly_job j WHERE j.queue_no NOT IN (SELECT queue_no FROM duly_queue)",
    ),
    (
        Invariant::QueuePosition,
        "is ready in a queue or priority that is not its own:",
        "SELECT q.name, j.id, r.queue_no || '/' || r.priority FROM duly_ready r JOIN duly_job j ON j.job_no = r.job_no
           LEFT JOIN duly_queue q ON q.queue_no = j.queue_no
           WHERE (r.queue_no, r.priority) <> (j.queue_no, j.priority)",
    ),
    (
        Invariant::QueuePosition,
        "is scheduled in a queue or priority that is not its own:",
        "SELECT q.name, j.id, s.queue_no || '/' || s.priority FROM duly_scheduled s
           JOIN duly_job j ON j.job_no = s.job_no
           LEFT JOIN duly_queue q ON q.queue_no = j.queue_no
           WHERE (s.queue_no, s.priority) <> (j.queue_no, j.priority)",
    ),
    (
        Invariant::QueuePosition,
        "is running in a queue or priority that is not its own:",
        "SELECT q.name, j.id, h.queue_no || '/' || h.priority FROM duly_running h JOIN duly_job j ON j.job_no = h.job_no
           LEFT JOIN duly_queue q ON q.queue_no = j.queue_no
           WHERE (h.queue_no, h.priority) <> (j.queue_no, j.priority)",
    ),
    (
        Invariant::QueuePosition,
        "has ended in a queue that is not its own, or in an unknown state:",
        "SELECT q.name, j.id, e.queue_no || '/' || e.state FROM duly_ended e JOIN duly_job j ON j.job_no = e.job_no
           LEFT JOIN duly_queue q ON q.queue_no = j.queue_no WHERE e.queue_no <> j.queue_no OR e.state NOT IN (3, 4, 5)",
    ),
    (
        Invariant::Holders,
        "is held by an unknown node: number",
        "SELECT q.name, j.id, h.node_no FROM duly_running h JOIN duly_job j ON j.job_no = h.job_no
           LEFT JOIN duly_queue q ON q.queue_no = j.queue_no WHERE h.node_no NOT IN (SELECT node_no FROM duly_node)",
    ),
    (
        Invariant::UniqueKeys,
        "is unfinished but does not hold its unique key:",
        "UNFINISHED SELECT q.name, j.id, j.unique_key FROM duly_job j LEFT JOIN duly_queue q ON q.queue_no = j.queue_no
           LEFT JOIN duly_unique_key u ON u.queue_no = j.queue_no AND u.unique_key = j.unique_key
          WHERE j.unique_key IS NOT NULL AND j.job_no IN unfinished AND u.job_no IS NOT j.job_no",
    ),
    (
        Invariant::UniqueKeys,
        "a unique key is taken, but not by an unfinished job with that key:",
        "UNFINISHED SELECT q.name, j.id, u.unique_key FROM duly_unique_key u
           LEFT JOIN duly_queue q ON q.queue_no = u.queue_no
           LEFT JOIN duly_job j ON j.job_no = u.job_no
          WHERE u.job_no NOT IN unfinished OR j.job_no IS NULL OR j.queue_no <> u.queue_no
             OR j.unique_key IS NOT u.unique_key",
    ),
    (
        Invariant::AttemptRecords,
        "run of a job that does not exist: number",
        "SELECT NULL, NULL, r.job_no FROM duly_run r
          WHERE r.job_no NOT IN (SELECT job_no FROM duly_job) GROUP BY r.job_no",
    ),
    (
        Invariant::AttemptRecords,
        "progress or log of a job that does not exist: number",
        "SELECT NULL, NULL, n.job_no FROM (SELECT job_no FROM duly_progress UNION SELECT job_no FROM duly_log) n
          WHERE n.job_no NOT IN (SELECT job_no FROM duly_job)",
    ),
    (
        Invariant::Sequences,
        "a number is in use that the sequence has not reached:",
        "SELECT NULL, NULL, max(n) FROM (
             SELECT max(job_no) AS n FROM duly_job UNION ALL SELECT max(seq) FROM duly_ready
             UNION ALL SELECT max(seq) FROM duly_running)
         HAVING max(n) >= coalesce((SELECT value FROM duly_sequence WHERE name = 'next_number'), 0)",
    ),
    (
        Invariant::Sequences,
        "a fence is in use that the sequence has not reached:",
        "SELECT NULL, NULL, max(f) FROM (
             SELECT max(fence) AS f FROM duly_running UNION ALL SELECT max(fence) FROM duly_lock)
         HAVING max(f) > coalesce((SELECT value FROM duly_sequence WHERE name = 'last_fence'), 0)",
    ),
    (
        Invariant::Counts,
        "is in a dead group that does not exist: number",
        "SELECT q.name, j.id, e.group_no FROM duly_ended e JOIN duly_job j ON j.job_no = e.job_no
           LEFT JOIN duly_queue q ON q.queue_no = j.queue_no
           WHERE e.group_no IS NOT NULL AND e.group_no NOT IN (SELECT group_no FROM duly_dead_group)",
    ),
    (
        Invariant::RememberedIds,
        "exists, but its id is remembered as removed",
        "SELECT q.name, j.id, '' FROM duly_job j
           JOIN (SELECT * FROM duly_removed_id_0 UNION SELECT * FROM duly_removed_id_1) g
             ON g.queue_no = j.queue_no AND g.job_id = j.id LEFT JOIN duly_queue q ON q.queue_no = j.queue_no",
    ),
    (
        Invariant::Counts,
        "the count of a dead group does not match its jobs:",
        "SELECT q.name, NULL, g.id FROM duly_dead_group g LEFT JOIN duly_queue q ON q.queue_no = g.queue_no
           LEFT JOIN (SELECT group_no, count(*) AS n FROM duly_ended WHERE group_no IS NOT NULL GROUP BY group_no) e
             ON e.group_no = g.group_no
          WHERE g.count <> coalesce(e.n, 0)",
    ),
    (
        Invariant::JobIndex,
        "is missing in the job index under the term:",
        "WORDS SELECT q.name, j.id, w.term FROM
           (SELECT * FROM wanted EXCEPT SELECT queue_no, state, term, due_or_ended_at, job_no FROM duly_job_index) w
           LEFT JOIN duly_job j ON j.job_no = w.job_no LEFT JOIN duly_queue q ON q.queue_no = w.queue_no",
    ),
    (
        Invariant::JobIndex,
        "is in the job index under a term that it does not have:",
        "WORDS SELECT q.name, j.id, w.term FROM
           (SELECT queue_no, state, term, due_or_ended_at, job_no FROM duly_job_index EXCEPT SELECT * FROM wanted) w
           LEFT JOIN duly_job j ON j.job_no = w.job_no LEFT JOIN duly_queue q ON q.queue_no = w.queue_no",
    ),
    (
        Invariant::CronTicks,
        "a cron rule is not checked when its tick is due:",
        "SELECT q.name, NULL, c.name FROM duly_cron c LEFT JOIN duly_queue q ON q.queue_no = c.queue_no
          WHERE c.check_at IS NOT CASE WHEN c.paused THEN NULL
             WHEN c.waiting AND c.check_at IS NOT NULL THEN c.check_at ELSE c.next_tick_at END",
    ),
    (
        Invariant::CronTicks,
        "the next cron check of the queue is not that of its first rule:",
        "SELECT q.name, NULL, q.cron_check_at FROM duly_queue q
           LEFT JOIN (SELECT queue_no, min(check_at) AS check_at FROM duly_cron GROUP BY queue_no) c
             ON c.queue_no = q.queue_no
          WHERE q.cron_check_at IS NOT c.check_at",
    ),
    (
        Invariant::Readable,
        "is unreadable: its id, priority or args are invalid, number",
        "SELECT q.name, j.id, j.job_no FROM duly_job j LEFT JOIN duly_queue q ON q.queue_no = j.queue_no
          WHERE length(j.id) <> 16 OR j.priority NOT BETWEEN 0 AND 3 OR NOT json_valid(j.args)",
    ),
    (
        Invariant::Readable,
        "has impossible attempts or crashes:",
        "SELECT q.name, j.id, p.attempts || ', ' || p.crashes FROM (
             SELECT job_no, attempts, crashes FROM duly_scheduled
             UNION ALL SELECT job_no, attempts, crashes FROM duly_ready
             UNION ALL SELECT job_no, attempts, crashes FROM duly_running
             UNION ALL SELECT job_no, attempts, crashes FROM duly_ended) p
           JOIN duly_job j ON j.job_no = p.job_no LEFT JOIN duly_queue q ON q.queue_no = j.queue_no
          WHERE typeof(p.attempts) <> 'integer' OR p.attempts NOT BETWEEN 0 AND 4294967295
             OR typeof(p.crashes) <> 'integer' OR p.crashes NOT BETWEEN 0 AND 4294967295",
    ),
    (
        Invariant::Readable,
        "a cron rule is unreadable:",
        "SELECT q.name, NULL, c.name FROM duly_cron c LEFT JOIN duly_queue q ON q.queue_no = c.queue_no
          WHERE q.queue_no IS NULL OR NOT json_valid(c.rule)",
    ),
];

/// Implements `MaintenanceStore::verify`, on a connection of its own, so that no heartbeat waits for it.
pub(crate) async fn verify(store: &Sqlite) -> Result<VerifyReport> {
    let Some(path) = store.path.clone() else {
        return store.writer.run_outside_transaction("verify", verify_snapshot).await;
    };
    let verify = move || -> Result<VerifyReport> {
        let conn = file::connect_read_only(&path)?;
        let to_error = |e| errors::from_sqlite("verify", e);
        let snapshot = conn.unchecked_transaction().map_err(to_error)?;
        verify_snapshot(&snapshot).map_err(to_error)
    };
    let result = tokio::task::spawn_blocking(verify).await;
    result.map_err(|e| Error::store("verify", format!("the check did not finish: {e}; start it again")))?
}

/// Checks all invariants on one snapshot. If SQLite cannot read the file, that is the result.
fn verify_snapshot(conn: &Connection) -> rusqlite::Result<VerifyReport> {
    let mut verified = VerifyReport::default();
    match check_invariants(conn, &mut verified) {
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseCorrupt) => {
            verified.damaged = true;
            verified.add_violation(Invariant::FileIntegrity, None, None, error.to_string());
            Ok(verified)
        }
        checked => checked.map(|()| verified),
    }
}

fn check_invariants(conn: &Connection, verified: &mut VerifyReport) -> rusqlite::Result<()> {
    let missing = missing_columns(conn)?;
    if !missing.is_empty() {
        // Every other query would fail for the same reason.
        missing.into_iter().for_each(|what| verified.add_violation(Invariant::FileIntegrity, None, None, what));
        verified.damaged = true;
        return Ok(());
    }
    verified.jobs = conn.query_row("SELECT count(*) FROM duly_job", [], |row| row.get(0))?;
    check_file(conn, verified)?;
    if verified.damaged {
        return Ok(());
    }
    for (rule, what, question) in INVARIANT_QUERIES {
        let sql = question.replacen("POSITIONS ", POSITIONS_CTE, 1).replacen("UNFINISHED ", UNFINISHED_CTE, 1);
        let sql = sql.replacen("WORDS ", job_index::EXPECTED_TERMS_CTE, 1);
        let mut statement = conn.prepare(&format!("{sql} LIMIT {VIOLATIONS_MAX}"))?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let id: Option<Vec<u8>> = row.get(1).unwrap_or_default();
            let id = id.and_then(|id| id.try_into().ok()).map(JobId::from_bytes);
            let queue: Option<RawText> = row.get(0)?;
            verified.add_violation(
                *rule,
                queue.map(RawText::into_lossy_string),
                id,
                format!("{what} {}", read_text(row, 2)?).trim_end(),
            );
        }
    }
    check_counts(conn, verified)?;
    check_checksums(conn, verified)
}

/// Returns the columns of this build that the file lacks or has with another type. A newer build may have added others.
pub(crate) fn missing_columns(conn: &Connection) -> rusqlite::Result<Vec<String>> {
    let columns = |conn: &Connection| -> rusqlite::Result<BTreeSet<String>> {
        conn.prepare(
            "SELECT format('%s.%s %s %d %d', m.name, c.name, c.type, c.\"notnull\", c.pk)
               FROM sqlite_schema m, pragma_table_info(m.name) c WHERE m.type = 'table' AND m.name GLOB 'duly_*'",
        )?
        .query_map([], |row| row.get(0))?
        .collect()
    };
    let expected = Connection::open_in_memory()?;
    expected.execute_batch(file::SCHEMA)?;
    let (expected, there) = (columns(&expected)?, columns(conn)?);
    let name = |column: &String| column.split(' ').next().unwrap_or_default().to_owned();
    Ok(expected
        .difference(&there)
        .map(|column| format!("the column {} is missing or has another type", name(column)))
        .collect())
}

/// Runs SQLite's own check of every page and every index.
fn check_file(conn: &Connection, verified: &mut VerifyReport) -> rusqlite::Result<()> {
    let mut statement = conn.prepare("PRAGMA integrity_check(100)")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let message = read_text(row, 0)?;
        for line in message.lines().filter(|line| *line != "ok" && !line.starts_with("***")) {
            verified.damaged |= is_page_damage(line);
            verified.add_violation(Invariant::FileIntegrity, None, None, line);
        }
    }
    Ok(())
}

/// Returns whether this line is about pages of the file. An index that does not match its table can be rebuilt.
fn is_page_damage(line: &str) -> bool {
    ["Tree ", "Page ", "Freelist"].iter().any(|begin| line.starts_with(begin)) || line.contains("malformed")
}

/// Checks the checksum of every job.
fn check_checksums(conn: &Connection, verified: &mut VerifyReport) -> rusqlite::Result<()> {
    let mut statement = conn.prepare(&format!(
        "SELECT {JOB_COLUMNS}, q.name FROM duly_job j LEFT JOIN duly_queue q ON q.queue_no = j.queue_no"
    ))?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (job, whole) = read_checked_job(row, read_text(row, JOB_COLUMNS_LEN)?)?;
        if !whole {
            verified.add_violation(
                Invariant::Readable,
                Some(job.queue),
                Some(job.id),
                "is corrupted: checksum mismatch",
            );
        }
    }
    Ok(())
}

/// Checks the stored counts against the rows, and that every queue has a readable name.
fn check_counts(conn: &Connection, verified: &mut VerifyReport) -> rusqlite::Result<()> {
    let mut statement = conn.prepare(
        "SELECT q.queue_no, q.name, c.scheduled, c.ready, c.running, c.done, c.dead, c.cancelled, c.unfinished_bytes
           FROM duly_queue q LEFT JOIN duly_queue_stats c ON c.queue_no = q.queue_no ORDER BY q.name",
    )?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (queue_no, name): (i64, RawText) = (row.get(0)?, row.get(1)?);
        let (is_text, name) = (name.is_utf8(), name.into_lossy_string());
        if !is_text {
            verified.add_violation(
                Invariant::Readable,
                Some(name.clone()),
                None,
                "the name of this queue is unreadable",
            );
        }
        let counted = |from: &str| -> rusqlite::Result<i64> {
            conn.query_row(&format!("SELECT {from} = ?1"), [queue_no], |row| row.get(0))
        };
        for (at, (state, from)) in (2..).zip(STATE_TABLES) {
            let (counted_jobs, real) = (read_integer(row, at), counted(&format!("count(*) FROM {from} queue_no"))?);
            if counted_jobs != real {
                let details = format!("{counted_jobs} jobs are counted as {state}, but there are {real}");
                verified.add_violation(Invariant::Counts, Some(name.clone()), None, details);
            }
        }
        let unfinished = "coalesce(sum(octet_length(args)), 0) FROM duly_job
             WHERE job_no NOT IN (SELECT job_no FROM duly_ended) AND queue_no";
        let (counted_bytes, real) = (read_integer(row, 8), counted(unfinished)?);
        if counted_bytes != real {
            let details = format!("{counted_bytes} bytes of unfinished args are counted, but there are {real}");
            verified.add_violation(Invariant::Counts, Some(name), None, details);
        }
    }
    Ok(())
}

/// The table of each state, in the order of the counts.
const STATE_TABLES: [(State, &str); 6] = [
    (State::Scheduled, "duly_scheduled WHERE"),
    (State::Ready, "duly_ready WHERE"),
    (State::Running, "duly_running WHERE"),
    (State::Done, "duly_ended WHERE state = 3 AND"),
    (State::Dead, "duly_ended WHERE state = 4 AND"),
    (State::Cancelled, "duly_ended WHERE state = 5 AND"),
];
