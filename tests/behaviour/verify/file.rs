//! Violations in a SQLite file, as another program may cause them.

use duly::Duly;
use duly::admin::Invariant;
use duly::rusqlite::Connection;

use crate::verify::{assert_found_and_repaired, populate};

/// An invariant, whether its violation is repairable, and the SQL that causes it.
const SEEDS: &[(Invariant, bool, &str)] = &[
    (Invariant::OneState, true, "DELETE FROM duly_ready WHERE job_no = (SELECT min(job_no) FROM duly_ready)"),
    (
        Invariant::OneState,
        true,
        "INSERT INTO duly_ended SELECT job_no, queue_no, 3, 1 << 60, 1, due_at, 0, 0, NULL, NULL, NULL, NULL, NULL
           FROM duly_ready",
    ),
    (
        Invariant::OneState,
        true,
        "INSERT INTO duly_scheduled SELECT queue_no, due_at, job_no, priority, 0, 0
           FROM duly_running",
    ),
    (
        Invariant::OneState,
        true,
        "INSERT INTO duly_ready SELECT queue_no, priority, seq + 900, job_no, due_at, 0, 0
           FROM duly_ready",
    ),
    (Invariant::HasRecord, true, "DELETE FROM duly_job WHERE job_no = (SELECT min(job_no) FROM duly_ready)"),
    (Invariant::HasRecord, true, "DELETE FROM duly_job WHERE job_no = (SELECT job_no FROM duly_running)"),
    (Invariant::HasRecord, true, "UPDATE duly_job SET queue_no = 77 WHERE job_no = (SELECT max(job_no) FROM duly_job)"),
    (Invariant::QueuePosition, true, "UPDATE duly_ready SET priority = 3"),
    (Invariant::QueuePosition, true, "UPDATE duly_scheduled SET priority = 0"),
    (Invariant::QueuePosition, true, "UPDATE duly_running SET queue_no = 9"),
    (Invariant::QueuePosition, true, "UPDATE duly_ended SET state = 9 WHERE state = 3"),
    (Invariant::Holders, true, "UPDATE duly_running SET node_no = 99"),
    (Invariant::UniqueKeys, true, "DELETE FROM duly_unique_key"),
    (Invariant::UniqueKeys, true, "INSERT INTO duly_unique_key VALUES (1, 'nobody', 12345)"),
    (Invariant::UniqueKeys, true, "UPDATE duly_job SET unique_key = 'one k' WHERE kind = 'two'"),
    (
        Invariant::AttemptRecords,
        true,
        "INSERT INTO duly_run VALUES (999, 1, 1, zeroblob(16), 'retry', NULL, NULL, 'oh', NULL)",
    ),
    (Invariant::AttemptRecords, true, "INSERT INTO duly_progress (job_no, fraction) VALUES (999, 0.5)"),
    (Invariant::AttemptRecords, true, "INSERT INTO duly_log VALUES (999, 1, 1, 'oh')"),
    (Invariant::Counts, true, "UPDATE duly_queue_stats SET ready = ready + 1"),
    (Invariant::Counts, true, "UPDATE duly_queue_stats SET unfinished_bytes = unfinished_bytes - 1"),
    (Invariant::Counts, true, "UPDATE duly_queue_stats SET ready = -1"),
    (Invariant::Counts, true, "UPDATE duly_queue_stats SET unfinished_bytes = -7, dead = -1"),
    (Invariant::Counts, true, "UPDATE duly_dead_group SET count = 7"),
    (Invariant::Counts, true, "UPDATE duly_ended SET group_no = 77 WHERE state = 4"),
    (Invariant::JobIndex, true, "DELETE FROM duly_job_index WHERE state = 4"),
    (
        Invariant::JobIndex,
        true,
        "INSERT INTO duly_job_index SELECT queue_no, state, 'tnone', due_or_ended_at, job_no
           FROM duly_job_index LIMIT 1",
    ),
    (Invariant::Sequences, true, "UPDATE duly_sequence SET value = 1 WHERE name = 'next_number'"),
    (Invariant::Sequences, true, "UPDATE duly_sequence SET value = 1 WHERE name = 'last_fence'"),
    (Invariant::RememberedIds, true, "INSERT INTO duly_removed_id_0 SELECT queue_no, id FROM duly_job LIMIT 1"),
    (Invariant::Counts, true, "UPDATE duly_queue_stats SET ready = ready + 1"),
    (Invariant::Counts, true, "UPDATE duly_queue_stats SET unfinished_bytes = unfinished_bytes + 1"),
    (Invariant::Counts, true, "UPDATE duly_dead_group SET count = 7"),
    (Invariant::JobIndex, true, "DELETE FROM duly_job_index WHERE term = 'kretried'"),
    (
        Invariant::JobIndex,
        true,
        "INSERT INTO duly_job_index SELECT queue_no, state, 'tblue', due_or_ended_at, job_no
           FROM duly_job_index WHERE term = 'klater'",
    ),
    (Invariant::JobIndex, true, "UPDATE duly_job_index SET due_or_ended_at = due_or_ended_at + 1 WHERE state = 4"),
    (Invariant::CronTicks, true, "UPDATE duly_cron SET check_at = NULL"),
    (Invariant::CronTicks, true, "UPDATE duly_cron SET check_at = 5 WHERE paused"),
    (Invariant::CronTicks, true, "UPDATE duly_queue SET cron_check_at = 5"),
    (Invariant::Readable, true, "UPDATE duly_job SET priority = 9 WHERE kind = 'two'"),
    (Invariant::Readable, false, "UPDATE duly_job SET args = '{broken' WHERE kind = 'two'"),
    (Invariant::Readable, false, "UPDATE duly_job SET args = '{\"n\":3}' WHERE kind = 'two'"),
    (Invariant::Readable, false, "UPDATE duly_job SET args = CAST(x'22ff22' AS TEXT) WHERE kind = 'two'"),
    (Invariant::Readable, false, "UPDATE duly_job SET kind = 'twp' WHERE kind = 'two'"),
    (Invariant::Readable, false, "UPDATE duly_job SET max_attempts = 1 WHERE kind = 'two'"),
    (
        Invariant::Readable,
        false,
        "UPDATE duly_job SET kind = CAST(x'6be3' AS TEXT) WHERE kind IN ('two', 'later', 'dead')",
    ),
    (
        Invariant::Readable,
        false,
        "UPDATE duly_job SET tags = CAST(x'6be320e3' AS TEXT) WHERE kind IN ('two', 'later', 'dead')",
    ),
    (Invariant::Readable, false, "UPDATE duly_job SET unique_key = CAST(x'6be3' AS TEXT) WHERE kind = 'one'"),
    (Invariant::Readable, true, "UPDATE duly_ready SET attempts = -1"),
    (Invariant::Readable, true, "UPDATE duly_ready SET priority = 3, crashes = 1 << 40"),
    (Invariant::Readable, true, "UPDATE duly_scheduled SET crashes = 1 << 40"),
    (Invariant::Readable, true, "UPDATE duly_running SET attempts = 1 << 40, node_no = 99"),
    (Invariant::Readable, true, "UPDATE duly_ended SET crashes = -9"),
    (
        Invariant::FileIntegrity,
        true,
        "DROP INDEX duly_scheduled_job_no;
         CREATE UNIQUE INDEX duly_scheduled_job_no ON duly_scheduled (job_no) WHERE job_no < 0;
         PRAGMA writable_schema = ON;
         UPDATE sqlite_schema SET sql = replace(sql, ' WHERE job_no < 0', '') WHERE name = 'duly_scheduled_job_no';
         PRAGMA schema_version = 9999; PRAGMA writable_schema = OFF;",
    ),
];

#[tokio::test]
async fn every_violation_is_found_and_repaired() {
    for (invariant, is_repairable, seed) in SEEDS {
        let dir = test_support::temp_dir();
        let path = dir.path().join("duly.db");
        let populated = populate(path.to_str().expect("a plain path")).await;
        assert_found_and_repaired(&populated, *invariant, *is_repairable, seed, || {
            let conn = Connection::open(&path).expect("opens");
            conn.execute_batch(seed).unwrap_or_else(|error| panic!("{seed}: {error}"));
        })
        .await;
    }
}

#[tokio::test]
async fn store_in_memory_can_be_verified() {
    let duly = Duly::open(":memory:").await.expect("opens");
    duly.push(duly::Push::new("mail", "{}")).await.expect("pushes");
    let report = duly.verify().await.expect("verifies");
    assert_eq!((report.jobs, report.violations), (1, Vec::new()));
}

type RanArgs = std::sync::Arc<std::sync::Mutex<Vec<String>>>;

/// Runs all ready jobs of any kind and records their args. Returns the number of acks.
async fn run_all(duly: &Duly, ran: &RanArgs) -> u64 {
    let recorded = ran.clone();
    let handler = move |ctx: duly::Ctx| {
        recorded.lock().expect("no panic").push(ctx.job().args.clone());
        async {}
    };
    duly.worker().on_any_kind(handler).drain().await.expect("drains").acked
}

/// A job that another program or a failing disk has changed fails its checksum.
#[tokio::test]
async fn corrupted_job_is_not_run() {
    let dir = test_support::temp_dir();
    let path = dir.path().join("duly.db");
    let duly = Duly::open(path.to_str().expect("a plain path")).await.expect("opens");
    for (kind, args) in [("good", "1"), ("bad", "{\"amount\":10}"), ("worse", "\"text\""), ("good", "2")] {
        duly.push(duly::Push::new(kind, args)).await.expect("pushes");
    }
    let conn = Connection::open(&path).expect("opens");
    let changed = "UPDATE duly_job SET args = '{\"amount\":90}' WHERE kind = 'bad';
        UPDATE duly_job SET args = CAST(x'22ff22' AS TEXT) WHERE kind = 'worse'";
    conn.execute_batch(changed).expect("changes");
    let ran = RanArgs::default();
    assert_eq!(run_all(&duly, &ran).await, 2);
    assert_eq!(*ran.lock().expect("no panic"), ["1", "2"], "the jobs behind them still run");
    let waiting = duly.jobs().list(duly::Filter::default()).await.expect("lists").jobs;
    let bad: Vec<_> = waiting.iter().filter(|record| record.job.kind == "duly:unreadable").collect();
    assert_eq!(bad.len(), 2, "they are kept for inspection");

    // New args would give the job a valid checksum, although other fields may have changed.
    let edit = duly::store::JobEdit::new().args("3".to_owned());
    assert_eq!(duly.jobs().edit(bad[0].job.id, edit).await.expect_err("is refused").code(), "conflict");
    duly.jobs().reschedule(bad[0].job.id, duly::job::Due::Now).await.expect("reschedules");
    assert_eq!(run_all(&duly, &ran).await, 0);
    duly.jobs().remove(bad[0].job.id).await.expect("removes");
    let mut found = duly.verify().await.expect("verifies").violations;
    found.retain(|violation| violation.invariant == Invariant::Readable);
    assert!(!found.is_empty() && found.iter().all(|violation| violation.id == Some(bad[1].job.id)), "{found:?}");
}

#[tokio::test]
async fn changed_column_is_reported_and_left_unchanged() {
    let dir = test_support::temp_dir();
    let path = dir.path().join("duly.db");
    let populated = populate(path.to_str().expect("a plain path")).await;
    let conn = Connection::open(&path).expect("opens");
    conn.execute_batch("ALTER TABLE duly_ready RENAME COLUMN crashes TO crasher").expect("runs");
    let found = populated.duly.verify().await.expect("verifies").violations;
    let [violation] = &found[..] else { panic!("expected one: {found:?}") };
    assert_eq!(
        (violation.invariant, violation.details.as_str()),
        (Invariant::FileIntegrity, "the column duly_ready.crashes is missing or has another type")
    );
    let error = populated.duly.repair(dir.path().join("copy.db")).await.expect_err("nothing to build on");
    assert!(error.to_string().contains("restore a backup"), "{error}");
}
