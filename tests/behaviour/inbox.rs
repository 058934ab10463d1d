//! The inbox: rows that another connection inserts into `duly_inbox` become jobs, exactly once.

use std::path::PathBuf;
use std::time::Duration;

use duly::admin::Capacity;
use duly::job::UniqueScope;
use duly::rusqlite::{Connection, TransactionBehavior, named_params, params};
use duly::{CancellationToken, Ctx, Duly, Error, Filter, Job, JobId, Priority, Push, State};
use test_support::{in_time, until};
use tokio::sync::mpsc;

struct Shop {
    duly: Duly,
    /// A connection of another program.
    conn: Connection,
    file: PathBuf,
    _dir: test_support::TempDir,
}

async fn shop() -> Shop {
    shop_with("").await
}

async fn shop_with(options: &str) -> Shop {
    let dir = test_support::temp_dir();
    let file = dir.path().join("shop.db");
    let duly = Duly::open(format!("{}{options}", file.display())).await.expect("opens");
    let conn = Connection::open(&file).expect("opens");
    conn.busy_timeout(test_support::TIMEOUT).expect("sets");
    Shop { duly, conn, file, _dir: dir }
}

impl Shop {
    fn insert(&self, columns: &str, values: &str) {
        self.conn.execute(&format!("INSERT INTO duly_inbox ({columns}) VALUES ({values})"), []).expect("inserts");
    }

    fn count(&self, sql: &str) -> i64 {
        self.conn.query_row(sql, [], |row| row.get(0)).expect("counts")
    }

    /// Returns the rows that wait, and those that were rejected.
    fn rows(&self) -> (i64, i64) {
        (
            self.count("SELECT count(*) FROM duly_inbox WHERE error IS NULL"),
            self.count("SELECT count(*) FROM duly_inbox WHERE error IS NOT NULL"),
        )
    }

    async fn take(&self) -> Vec<Job> {
        self.duly.take_inbox().await.expect("takes");
        let page = self.duly.jobs().list(Filter::all().limit(1_000)).await.expect("lists");
        let mut jobs: Vec<Job> = page.jobs.into_iter().map(|record| record.job).collect();
        jobs.sort_by_key(|job| job.id);
        jobs
    }
}

#[tokio::test]
async fn inserted_row_runs_long_before_the_next_heartbeat() {
    // A heartbeat comes every 200 s, so only the watch can notice the rows in time.
    let mut shop = shop_with("?lease=10m").await;
    let (sender, mut received) = mpsc::unbounded_channel();
    let stop = CancellationToken::new();
    let worker = shop.duly.worker().on_kind("mail", move |ctx: Ctx| {
        let _ = sender.send(ctx.job().args.clone());
        async {}
    });
    let run = tokio::spawn(worker.run_until(stop.clone()));
    until("the worker has joined", async || !shop.duly.nodes().list().await.expect("lists").is_empty()).await;
    shop.conn.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY)").expect("writes");
    for order in 0..20 {
        let tx = shop.conn.transaction_with_behavior(TransactionBehavior::Immediate).expect("begins");
        tx.execute("INSERT INTO orders VALUES (?1)", [order]).expect("writes");
        tx.execute("INSERT INTO duly_inbox (kind, args) VALUES ('mail', ?1)", [order.to_string()]).expect("writes");
        tx.commit().expect("commits");
        if cfg!(not(target_os = "linux")) {
            shop.duly.take_inbox().await.expect("takes");
        }
        assert_eq!(in_time(received.recv()).await, Some(order.to_string()));
    }
    stop.cancel();
    run.await.expect("no panic").expect("ends well");
    assert_eq!(shop.rows(), (0, 0));
}

#[tokio::test]
async fn rolled_back_insert_leaves_no_job() {
    let mut shop = shop().await;
    let tx = shop.conn.transaction().expect("begins");
    tx.execute("INSERT INTO duly_inbox (kind) VALUES ('mail')", []).expect("writes");
    tx.rollback().expect("rolls back");
    assert_eq!(shop.take().await, []);
}

#[tokio::test]
async fn row_with_only_a_kind_equals_a_push_with_defaults() {
    let shop = shop_with("?keep=3h").await;
    let pushed = shop.duly.push(Push::new("mail", "null")).await.expect("pushes").id();
    shop.insert("kind", "'mail'");
    // An ORM inserts NULL for a missing value.
    shop.insert(
        "kind, id, due_at, delay_ms, priority, unique_key, unique_scope, on_conflict, max_attempts, timeout_ms, keep_ms,
         tags, traceparent, error",
        "'mail', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL",
    );
    let jobs = shop.take().await;
    let expected = jobs.iter().find(|job| job.id == pushed).expect("is there").clone();
    assert_eq!(jobs.len(), 3);
    for mut job in jobs {
        (job.id, job.pushed) = (expected.id, expected.pushed);
        assert_eq!(job, expected);
    }
}

#[tokio::test]
async fn every_column_of_a_row_reaches_the_job() {
    let shop = shop().await;
    let id = JobId::from_name("order:7");
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    shop.insert(
        "kind, args, queue, id, due_at, priority, unique_key, unique_scope, max_attempts, timeout_ms, keep_ms, tags,
         traceparent",
        &format!(
            "'mail', '{{\"to\":\"ada\"}}', 'post', '{id}', 4102444800000000, 'high', 'user:7', 'queue', 3, 1500, 0,
             'eu  welcome', '{trace}'"
        ),
    );
    shop.insert("kind, delay_ms", "'later', 3600000");
    let jobs = shop.take().await;
    let record = shop.duly.jobs().get(id).await.expect("reads").expect("is there");
    assert_eq!(record.state, State::Scheduled);
    assert_eq!(record.due, std::time::UNIX_EPOCH + Duration::from_secs(4_102_444_800));
    let job = record.job;
    assert_eq!((job.kind.as_str(), job.args.as_str(), job.queue.as_str()), ("mail", "{\"to\":\"ada\"}", "post"));
    assert_eq!((job.priority, job.max_attempts, job.keep), (Priority::High, 3, Duration::ZERO));
    assert_eq!((job.timeout, job.tags), (Duration::from_millis(1_500), vec!["eu".to_owned(), "welcome".to_owned()]));
    assert_eq!(job.traceparent.as_deref(), Some(trace));
    let unique = job.unique.expect("has a key");
    assert_eq!((unique.key(), unique.scope()), ("user:7", UniqueScope::Queue));
    let later = jobs.iter().find(|job| job.kind == "later").expect("is there");
    let due = shop.duly.jobs().get(later.id).await.expect("reads").expect("is there").due;
    let delay = due.duration_since(later.pushed).expect("later");
    // It counts from the insert, a moment before the push.
    assert!(delay <= Duration::from_secs(3_600) && delay > Duration::from_secs(3_500), "{delay:?}");
}

#[tokio::test]
async fn invalid_rows_are_kept_with_an_error_and_block_no_other() {
    let shop = shop().await;
    let long = format!("'\"{}\"'", "x".repeat(1 << 20));
    let deep = format!("'{}{}'", "[".repeat(65), "]".repeat(65));
    let invalid = [
        ("kind", "''", "kind: must not be empty"),
        ("kind", "'two words'", "kind: \"two words\" contains"),
        ("kind", "'duly:x'", "reserved"),
        ("kind", "CAST(x'ff' AS TEXT)", "kind: not UTF-8 text"),
        ("kind, args", "'mail', 'no JSON'", "args: not JSON"),
        ("kind, args", &format!("'mail', {long}"), "args: 1048578 bytes"),
        ("kind, args", &format!("'mail', {deep}"), "args: "),
        ("kind, queue", "'mail', 'a b'", "queue: "),
        ("kind, id", "'mail', 'seven'", "id: \"seven\" is not a job id"),
        ("kind, priority", "'mail', 'urgent'", "priority: \"urgent\""),
        ("kind, due_at", "'mail', unixepoch()", "due_at: "),
        ("kind, due_at", "'mail', 9223372036854775807", "due: too late"),
        ("kind, due_at, delay_ms", "'mail', 4102444800000000, 1", "due_at: cannot be given together"),
        ("kind, delay_ms", "'mail', -1", "delay_ms: must not be negative"),
        ("kind, unique_key", "'mail', ''", "unique: "),
        ("kind, unique_scope", "'mail', 'all'", "unique_scope: \"all\" is unknown; use kind or queue"),
        ("kind, on_conflict", "'mail', 'drop'", "on_conflict: \"drop\" is unknown; use keep or replace"),
        ("kind, max_attempts", "'mail', 0", "max_attempts: "),
        ("kind, max_attempts", "'mail', -1", "max_attempts: "),
        ("kind, timeout_ms", "'mail', 0", "timeout: "),
        ("kind, keep_ms", "'mail', -5", "keep_ms: "),
        ("kind, tags", "'mail', 'a {b}'", "tags: "),
        ("kind, traceparent", "'mail', 'x'", "traceparent: "),
    ];
    for (columns, values, _) in invalid {
        shop.insert(columns, values);
    }
    shop.insert("kind", "'good'");
    let jobs = shop.take().await;
    assert_eq!(jobs.iter().map(|job| job.kind.as_str()).collect::<Vec<_>>(), ["good"]);
    let mut select = shop.conn.prepare("SELECT error FROM duly_inbox ORDER BY inbox_no").expect("prepares");
    let errors: Vec<String> =
        select.query_map([], |row| row.get(0)).expect("reads").collect::<Result<_, _>>().expect("reads");
    assert_eq!(errors.len(), invalid.len(), "{errors:?}");
    for ((columns, values, expected), error) in invalid.iter().zip(&errors) {
        assert!(error.contains(expected), "{columns} {values:.40}: {error}");
    }

    let health = shop.duly.health().await.expect("reports");
    let warning = health.warnings.iter().find(|warning| warning.contains("duly_inbox")).expect("a warning");
    assert!(warning.contains(&format!("{} rows", invalid.len())) && warning.contains("kind: must not"), "{warning}");

    // A corrected row becomes a job; the others stay as they are.
    shop.conn
        .execute("UPDATE duly_inbox SET args = '7', error = NULL WHERE error LIKE 'args: not JSON%'", [])
        .expect("corrects");
    assert_eq!(shop.take().await.len(), 2);
    assert_eq!(shop.rows(), (0, invalid.len() as i64 - 1));
}

#[tokio::test]
async fn known_ids_and_unique_keys_count_as_pushed() {
    let shop = shop().await;
    let id = JobId::from_name("order:7");
    let kept = shop.duly.push(Push::new("sync", "1").unique("user:7")).await.expect("pushes").id();
    shop.insert("kind, id", &format!("'mail', '{id}'"));
    shop.insert("kind, id", &format!("'mail', '{id}'"));
    shop.insert("kind, unique_key", "'sync', 'user:7'");
    shop.insert("kind, unique_key", "'other', 'user:7'");
    let jobs = shop.take().await;
    assert_eq!(jobs.iter().filter(|job| job.id == id).count(), 1);
    assert_eq!((jobs.len(), shop.rows()), (3, (0, 0)), "the key of another kind is another key");

    shop.insert("kind, args, unique_key, on_conflict", "'sync', '2', 'user:7', 'replace'");
    let jobs = shop.take().await;
    assert!(jobs.iter().all(|job| job.id != kept) && jobs.iter().any(|job| job.args == "2"), "{jobs:?}");
}

#[tokio::test]
async fn rows_for_a_full_queue_wait_and_others_pass() {
    let shop = shop().await;
    let capacity = Capacity::unlimited().jobs(2);
    shop.duly.queues().set_capacity("small", capacity).await.expect("sets");
    for args in 0..5 {
        shop.insert("kind, queue, args", &format!("'mail', 'small', '{args}'"));
    }
    shop.insert("kind, queue", "'mail', 'zebra'");
    let jobs = shop.take().await;
    assert_eq!(jobs.len(), 3, "two in the full queue, one in the other");
    assert_eq!(shop.rows(), (3, 0), "they wait, without an error");

    // A drain may end before a row of the full queue is tried again.
    until("all rows are done jobs", async || {
        shop.duly.worker().queue("small", 1).on_kind("mail", async |_| ()).drain().await.expect("drains");
        shop.count("SELECT count(*) FROM duly_ended JOIN duly_queue USING (queue_no) WHERE name = 'small'") == 5
    })
    .await;
    assert_eq!(shop.rows(), (0, 0));
    let done = shop.duly.jobs().list(Filter::all().queue("small").state(State::Done)).await.expect("lists").jobs;
    let mut args: Vec<String> = done.into_iter().map(|record| record.job.args).collect();
    args.sort();
    assert_eq!(args, ["0", "1", "2", "3", "4"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_become_jobs_once_and_in_order_beside_several_stores() {
    const ROWS: i64 = 1_500;
    let mut shop = shop().await;
    let others = [Duly::open(shop.file.display().to_string()).await, Duly::open(shop.file.display().to_string()).await];
    let takers = others.map(|duly| {
        let duly = duly.expect("opens");
        tokio::spawn(async move {
            loop {
                duly.take_inbox().await.expect("takes");
                let counts = duly.queues().counts().await.expect("counts");
                if counts.iter().map(|queue| queue.ready).sum::<u64>() == ROWS as u64 {
                    break;
                }
            }
        })
    });
    tokio::task::block_in_place(|| {
        for batch in 0..ROWS / 30 {
            let tx = shop.conn.transaction_with_behavior(TransactionBehavior::Immediate).expect("begins");
            for row in batch * 30..batch * 30 + 30 {
                tx.execute("INSERT INTO duly_inbox (kind, args) VALUES ('mail', ?1)", [row.to_string()])
                    .expect("writes");
            }
            tx.commit().expect("commits");
        }
    });
    for taker in takers {
        in_time(taker).await.expect("no panic");
    }
    let sql = "SELECT group_concat(args) FROM (SELECT args FROM duly_ready JOIN duly_job USING (job_no) ORDER BY seq)";
    let order: String = shop.conn.query_row(sql, [], |row| row.get(0)).expect("reads");
    assert_eq!(order, (0..ROWS).map(|row| row.to_string()).collect::<Vec<_>>().join(","));
    assert!(shop.duly.verify().await.expect("verifies").violations.is_empty());
}

#[tokio::test]
async fn drain_takes_waiting_rows_without_a_watch() {
    let shop = shop().await;
    for _ in 0..600 {
        shop.insert("kind", "'mail'");
    }
    let summary = shop.duly.worker().on_kind("mail", async |_| ()).drain().await.expect("drains");
    assert_eq!((summary.acked, shop.rows()), (600, (0, 0)));
}

#[tokio::test]
async fn drain_of_one_queue_waits_for_its_row_behind_those_of_others() {
    let shop = shop().await;
    shop.conn
        .execute_batch(
            "INSERT INTO duly_inbox (kind, queue) WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n
               WHERE i < 40 * 256 - 1) SELECT 'mail', printf('a%02d', i / 256) FROM n;
             INSERT INTO duly_inbox (kind, queue) VALUES ('mail', 'last')",
        )
        .expect("inserts");
    let worker = shop.duly.worker().queue("last", 1).on_kind("mail", async |_| ());
    assert_eq!(in_time(worker.drain()).await.expect("drains").acked, 1);
}

#[tokio::test]
async fn full_queues_do_not_hide_the_row_of_another_queue() {
    const FULL_QUEUES: u64 = 100;
    let shop = shop().await;
    for queue in 0..FULL_QUEUES {
        let queue = format!("a{queue:03}");
        shop.duly.queues().set_capacity(&queue, Capacity::unlimited().jobs(1)).await.expect("sets");
        shop.duly.push(Push::new("mail", "{}").queue(queue)).await.expect("pushes");
    }
    shop.conn
        .execute_batch(
            "INSERT INTO duly_inbox (kind, queue) SELECT 'mail', name FROM duly_queue;
             INSERT INTO duly_inbox (kind, queue) VALUES ('mail', 'last')",
        )
        .expect("inserts");
    shop.duly.take_inbox().await.expect("takes");
    assert_eq!(shop.count("SELECT count(*) FROM duly_inbox WHERE queue = 'last'"), 0);
    assert_eq!(shop.rows(), (FULL_QUEUES.cast_signed(), 0));
}

/// A row must not become a job in a file that no other process opens.
#[tokio::test]
async fn row_of_a_replaced_file_is_not_taken() {
    let shop = shop().await;
    let backup = shop.file.with_extension("backup");
    shop.duly.backup(&backup).await.expect("backs up");
    shop.insert("kind", "'mail'");
    std::fs::rename(&backup, &shop.file).expect("restores");
    let error = shop.duly.take_inbox().await.expect_err("refused").to_string();
    assert!(error.contains("was replaced by another file while it is open"), "{error}");
    assert_eq!(shop.rows(), (1, 0));
}

#[tokio::test]
async fn row_that_the_file_refuses_fails_no_other_operation() {
    let shop = shop().await;
    shop.conn
        .execute_batch(
            "CREATE TRIGGER refuse BEFORE INSERT ON duly_job WHEN NEW.kind = 'refused'
             BEGIN SELECT RAISE(ROLLBACK, 'no'); END",
        )
        .expect("a trigger that rolls the whole transaction back");
    shop.insert("kind", "'refused'");
    let id = shop.duly.push(Push::new("mail", "{}")).await.expect("pushes").id();
    assert!(shop.duly.jobs().get(id).await.expect("reads").is_some());
    assert_eq!(shop.rows(), (1, 0));
}

#[tokio::test]
async fn backup_and_move_take_the_rows_along() {
    let shop = shop().await;
    let copy = shop.file.with_extension("copy");
    shop.insert("kind", "'mail'");
    shop.duly.backup(&copy).await.expect("copies");
    let copied = Duly::open_file(&copy).await.expect("opens");
    copied.take_inbox().await.expect("takes");
    assert_eq!(copied.queues().counts().await.expect("counts")[0].ready, 1);

    shop.insert("kind, queue", "'mail', 'new'");
    let target = Duly::open(":memory:").await.expect("opens");
    shop.duly.transfer_to(&target).run().await.expect("moves");
    let moved: u64 = target.queues().counts().await.expect("counts").iter().map(|queue| queue.ready).sum();
    assert_eq!((moved, shop.rows()), (2, (0, 0)));
}

/// Returns the first SQL block of a page.
fn sql_of(page: &'static str) -> &'static str {
    let (_, block) = page.split_once("```sql\n").expect("a block of SQL");
    block.split_once("```").expect("its end").0
}

#[tokio::test]
async fn sql_of_the_guide_pushes_a_job() {
    let shop = shop().await;
    shop.conn.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)").expect("creates");
    shop.conn.execute_batch(sql_of(include_str!("../../docs/guide/jobs.md"))).expect("runs");
    let jobs = shop.take().await;
    assert_eq!((jobs.len(), &jobs[0].kind[..], &jobs[0].args[..]), (1, "mail", r#"{"to":"ada@example.com"}"#));
    assert_eq!(shop.count("SELECT id FROM orders WHERE item = 'lamp'"), 7);
}

#[test]
fn sql_of_the_guide_rejects_a_smaller_fence() {
    let conn = Connection::open_in_memory().expect("opens");
    conn.execute_batch("CREATE TABLE price (id, cents, fence); INSERT INTO price VALUES (1, 100, 5)").expect("creates");
    let sql = sql_of(include_str!("../../docs/guide/fences.md"));
    let update = |cents: i64, fence: i64| {
        conn.execute(sql, named_params! { ":id": 1, ":cents": cents, ":fence": fence }).expect("runs")
    };
    assert_eq!((update(110, 6), update(90, 5), update(120, 6)), (1, 0, 1));
}

#[tokio::test]
async fn store_without_a_file_has_no_inbox() {
    let memory = Duly::open(":memory:").await.expect("opens");
    let error = memory.take_inbox().await.expect_err("unsupported");
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    assert!(error.to_string().contains("use a SQLite file that contains your tables"), "{error}");
}

#[tokio::test]
async fn old_waiting_rows_are_a_warning() {
    let shop = shop().await;
    shop.conn
        .execute("INSERT INTO duly_inbox (kind, inserted_at) VALUES ('mail', ?1)", params![1_700_000_000_000_000_i64])
        .expect("inserts");
    let warnings = shop.duly.health().await.expect("reports").warnings;
    assert!(warnings.iter().any(|warning| warning.contains("1 rows of duly_inbox have waited")), "{warnings:?}");
}
