//! The database file: its content after closing, its permissions, and several stores on one file.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use duly::store::JobStore;
use duly::{CancellationToken, Ctx, Duly, Push};
use tokio::sync::mpsc;

const TIMEOUT: Duration = Duration::from_secs(20);

fn with_suffix(file: &Path, suffix: &str) -> PathBuf {
    PathBuf::from(format!("{}{suffix}", file.display()))
}

#[tokio::test]
async fn closed_store_is_one_complete_file() {
    let dir = test_support::temp_dir();
    let file = dir.path().join("duly.db");
    let duly = Duly::open(file.to_str().expect("plain")).await.expect("opens");
    let id = duly.push(Push::new("kind", "{}")).await.expect("pushes").id();
    duly.worker().on_kind("other", |_| async {}).drain().await.expect("drains");
    assert!(with_suffix(&file, "-wal").exists(), "while it is open");
    drop(duly);
    assert!(!with_suffix(&file, "-wal").exists() && !with_suffix(&file, "-shm").exists());

    let copy = dir.path().join("copy.db");
    std::fs::copy(&file, &copy).expect("copies");
    let duly = Duly::open(copy.to_str().expect("plain")).await.expect("opens");
    assert!(duly.jobs().get(id).await.expect("reads").is_some());
}

#[tokio::test]
async fn queue_that_another_process_has_removed_is_created_again() {
    let dir = test_support::temp_dir();
    let url = dir.path().join("duly.db").to_str().expect("plain").to_owned();
    // Each store has its own cache of queues, as two processes do.
    let (first, second) = (Duly::open(&url).await.expect("opens"), Duly::open(&url).await.expect("opens"));
    let id = first.push(Push::new("kind", "{}").queue("mail")).await.expect("pushes").id();
    second.jobs().remove(id).await.expect("removes");
    second.queues().remove("mail").await.expect("removes");
    // A new queue must not get the number that the first store still knows.
    second.push(Push::new("other", "{}").queue("other")).await.expect("pushes");
    first.push(Push::new("kind", "{}").queue("mail")).await.expect("pushes");
    let counts = second.queues().counts().await.expect("counts");
    let ready: Vec<_> = counts.iter().map(|counts| (counts.queue.as_str(), counts.ready)).collect();
    assert_eq!(ready, [("mail", 1), ("other", 1)]);
    assert!(second.verify().await.expect("verifies").violations.is_empty());
}

#[tokio::test]
async fn every_table_and_column_is_documented() {
    let dir = test_support::temp_dir();
    let file = dir.path().join("duly.db");
    let url = file.to_str().expect("plain");
    drop(Duly::open(url).await.expect("opens"));
    let page = include_str!("../../docs/internals/sqlite-tables.md");
    let query = "SELECT m.name, c.name FROM sqlite_schema m, pragma_table_info(m.name) c
                  WHERE m.type = 'table' AND m.name LIKE 'duly%'";
    let columns = duly::admin::ReadOnlySql::open(url).and_then(|sql| sql.query(query)).expect("reads").rows;
    assert!(columns.len() > 100, "{columns:?}");
    for row in columns {
        let [table, column] = [0, 1].map(|index| format!("`{}`", row[index].as_str().expect("a name")));
        let documented = page
            .lines()
            .any(|line| line.split('|').nth(1).is_some_and(|cell| cell.contains(&table)) && line.contains(&column));
        assert!(documented, "{table} {column}");
    }
}

#[tokio::test]
async fn file_is_readable_only_by_its_owner() {
    let dir = test_support::temp_dir();
    let file = dir.path().join("duly.db");
    let duly = Duly::open(file.to_str().expect("plain")).await.expect("opens");
    duly.push(Push::new("kind", "{}")).await.expect("pushes");
    for (suffix, mode) in [("", 0o600), ("-wal", 0o600), ("-nodes", 0o700), ("-nodes/registry", 0o600)] {
        let path = with_suffix(&file, suffix);
        let found = std::fs::metadata(&path).expect("is there").permissions().mode() & 0o777;
        assert_eq!(found, mode, "{}", path.display());
    }
}

#[tokio::test]
async fn file_shrinks_after_a_drain() {
    let dir = test_support::temp_dir();
    let file = dir.path().join("duly.db");
    let size = || std::fs::metadata(&file).expect("is there").len();
    let duly = Duly::open(format!("{}?keep=0&remember_ids=0", file.display())).await.expect("opens");
    let args = format!("\"{}\"", "x".repeat(4_000));
    for _ in 0..10 {
        duly.push_all((0..1_000).map(|_| Push::new("kind", args.as_str()))).await.expect("pushes");
    }
    let full = size();
    assert!(full > 30_000_000, "{full}");
    duly.worker().queue("default", 1_000).on_kind("kind", |_| async {}).drain().await.expect("drains");
    // A worker prunes before it leaves, for a second at most.
    while duly.store().prune("default", 10_000).await.expect("prunes") > 0 {}
    assert!(size() < full / 20, "{full} -> {}", size());
    duly.push(Push::new("kind", "{}")).await.expect("goes on");
}

#[tokio::test]
async fn two_stores_on_one_file_wake_each_other() {
    let dir = test_support::temp_dir();
    let url = dir.path().join("duly.db").display().to_string();
    let (pusher, runner) = (Duly::open(&url).await.expect("opens"), Duly::open(&url).await.expect("opens"));
    let (started, mut starts) = mpsc::unbounded_channel();
    let stop = CancellationToken::new();
    let worker = runner.worker().on_kind("kind", move |ctx: Ctx| {
        let _ = started.send(ctx.job().id);
        async {}
    });
    let run = tokio::spawn(worker.run_until(stop.clone()));
    for _ in 0..20 {
        let id = pusher.push(Push::new("kind", "{}")).await.expect("pushes").id();
        assert_eq!(tokio::time::timeout(TIMEOUT, starts.recv()).await.expect("in time"), Some(id));
    }
    stop.cancel();
    run.await.expect("no panic").expect("ends well");
}

#[tokio::test]
async fn close_releases_the_file() {
    let dir = test_support::temp_dir();
    let (file, renamed) = (dir.path().join("duly.db"), dir.path().join("moved.db"));
    let duly = Duly::open_file(&file).await.expect("opens");
    let id = duly.push(Push::new("kind", "{}")).await.expect("pushes").id();
    duly.worker().on_kind("kind", |_| async {}).drain().await.expect("drains");
    duly.close().await;

    assert!(!dir.path().join("duly.db-wal").exists(), "the last connection removes the WAL");
    let conn = duly::rusqlite::Connection::open(&file).expect("opens");
    conn.pragma_update(None, "locking_mode", "EXCLUSIVE").expect("sets");
    conn.execute_batch("BEGIN EXCLUSIVE; ROLLBACK;").expect("no connection of the store is open");
    drop(conn);
    std::fs::rename(&file, &renamed).expect("renames");
    let duly = Duly::open_file(&renamed).await.expect("opens");
    assert!(duly.jobs().get(id).await.expect("reads").is_some());
}

/// Other systems have no short aliases of long paths, and refuse the file.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn path_too_long_for_a_socket_works() {
    let dir = test_support::temp_dir();
    let deep = dir.path().join("d".repeat(100)).join("e".repeat(100));
    std::fs::create_dir_all(&deep).expect("makes");
    let url = deep.join("duly.db").display().to_string();
    let duly = Duly::open(&url).await.expect("opens");
    duly.push(Push::new("kind", "{}")).await.expect("pushes");
    let summary = duly.worker().on_kind("kind", |_| async {}).drain().await.expect("drains");
    assert_eq!(summary.acked, 1);
}

#[tokio::test]
async fn many_stores_can_open_one_new_file_at_once() {
    let dir = test_support::temp_dir();
    let url = dir.path().join("duly.db").display().to_string();
    let opens = (0..8).map(|_| tokio::spawn(Duly::open(url.clone())));
    for open in opens.collect::<Vec<_>>() {
        let duly = open.await.expect("no panic").expect("opens");
        duly.push(Push::new("kind", "{}")).await.expect("pushes");
    }
}

/// Returns a connection that holds the write lock of the file until it rolls back.
fn lock(file: &Path) -> duly::rusqlite::Connection {
    let conn = duly::rusqlite::Connection::open(file).expect("opens");
    conn.execute_batch("BEGIN IMMEDIATE").expect("takes the lock");
    conn
}

#[tokio::test]
async fn node_joins_after_a_failed_first_heartbeat() {
    let dir = test_support::temp_dir();
    let file = dir.path().join("duly.db");
    let duly = Duly::open(file.to_str().expect("plain")).await.expect("opens");
    let node = duly::store::Node::fresh(vec!["default".into()]);
    let locked = lock(&file);
    duly.store().heartbeat(&node).await.expect_err("cannot be registered");
    locked.execute_batch("ROLLBACK").expect("rolls back");

    duly.store().heartbeat(&node).await.expect("joins");
    let nodes = duly.nodes().list().await.expect("lists");
    assert_eq!(nodes.iter().map(|n| (n.id, n.alive)).collect::<Vec<_>>(), [(node.id, true)]);
}

#[tokio::test]
async fn job_claimed_after_stop_is_released_unstarted() {
    let dir = test_support::temp_dir();
    let file = dir.path().join("duly.db");
    let duly = Duly::open(format!("{}?lease=300ms", file.display())).await.expect("opens");
    let (joined, mut ready) = mpsc::unbounded_channel();
    let (started, mut starts) = mpsc::unbounded_channel();
    let stop = CancellationToken::new();
    // A worker whose grace period is over would leave after two seconds, whether or not the claim has ended.
    let worker =
        duly.worker().grace(test_support::TIMEOUT).on_kind("kind", |_| async {}).on_event(move |event| match event {
            duly::worker::Event::Joined { .. } => drop(joined.send(())),
            duly::worker::Event::Started { .. } => drop(started.send(())),
            _ => {}
        });
    let run = tokio::spawn(worker.run_until(stop.clone()));
    ready.recv().await.expect("joins");

    // The next claim of the worker waits for this transaction. The commit adds the job after the stop.
    let mut conn = duly::rusqlite::Connection::open(&file).expect("opens");
    let tx = conn.transaction_with_behavior(duly::rusqlite::TransactionBehavior::Immediate).expect("begins");
    let after = duly.push_in(&tx, [Push::new("kind", "{}")]).expect("pushes");
    let id = after.pushed[0].id();
    tokio::time::sleep(Duration::from_millis(400)).await; // several heartbeats, each with a claim
    stop.cancel();
    tokio::task::yield_now().await;
    tx.commit().expect("commits");

    run.await.expect("no panic").expect("ends well");
    assert!(starts.try_recv().is_err(), "it was never started");
    let record = duly.jobs().get(id).await.expect("reads").expect("is there");
    assert_eq!((record.state, record.crashes), (duly::State::Ready, 0));
    after.wake();
}

#[tokio::test]
async fn counts_saturate_at_their_maximum() {
    let dir = test_support::temp_dir();
    let file = dir.path().join("duly.db");
    let duly = Duly::open(file.to_str().expect("plain")).await.expect("opens");
    let id = duly.push(Push::new("kind", "{}")).await.expect("pushes").id();
    let conn = duly::rusqlite::Connection::open(&file).expect("opens");
    conn.execute("UPDATE duly_ready SET attempts = ?1, crashes = ?1", [u32::MAX]).expect("writes");

    // One more crash, then one more failure.
    let node = duly::store::Node::fresh(Vec::new());
    let claim = duly::store::Claim::new("default", 1);
    duly.store().heartbeat(&node).await.expect("sends a heartbeat");
    assert_eq!(duly.store().claim(node.id, claim).await.expect("claims").jobs.len(), 1);
    duly.store().leave(node.id).await.expect("leaves");
    let worker = duly.worker().max_crashes(u32::MAX).on_kind("kind", |_| async { Err::<(), _>("oh") });
    let summary = tokio::time::timeout(TIMEOUT, worker.drain()).await.expect("in time").expect("drains");
    assert_eq!(summary.buried, 1);
    let record = duly.jobs().get(id).await.expect("reads").expect("is kept");
    assert_eq!((record.attempts, record.crashes, record.failures.len()), (u32::MAX, u32::MAX, 2));
}

#[tokio::test]
async fn durability_is_reported_as_the_store_was_opened() {
    let dir = test_support::temp_dir();
    let file = dir.path().join("duly.db").display().to_string();
    let durability =
        async |url: String| Duly::open(url).await.expect("opens").health().await.expect("reads").durability;
    let (fsync, second) = (durability(file.clone()).await, durability(format!("{file}?durability=second")).await);
    assert!(fsync.contains("and a loss of power") && fsync.contains("durability=fsync"), "{fsync}");
    assert!(second.contains("may lose the last second") && second.contains("durability=second"), "{second}");
    assert!(durability(":memory:".into()).await.contains("in memory only"));
}

/// SQLite's locks on a file belong to the process: closing any handle of the file drops all of them.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn second_handle_drops_no_file_lock_of_the_first() {
    use std::os::unix::fs::MetadataExt;

    let dir = test_support::temp_dir();
    let path = dir.path().join("duly.db");
    let url = path.to_str().expect("a plain path");
    let first = Duly::open(url).await.expect("opens");
    first.queues().counts().await.expect("uses it");
    let inode = format!(":{} ", std::fs::metadata(&path).expect("is there").ino());
    let count_locks = || {
        let all = std::fs::read_to_string("/proc/locks").expect("a table");
        all.lines().filter(|line| line.contains("POSIX") && line.contains(&inode)).count()
    };
    // The table is read in parts, and a line is skipped if other tests release locks meanwhile.
    let locks = || (0..50).map(|_| count_locks()).find(|count| *count > 0).unwrap_or(0);
    assert!(locks() > 0, "SQLite holds one as long as the file is open");
    let second = Duly::open(url).await.expect("opens");
    assert!(locks() > 0, "also when it was opened once more");
    drop(second);
    assert!(locks() > 0, "and closed again");
    let node = duly::store::Node::fresh(vec!["default".into()]);
    first.store().heartbeat(&node).await.expect("sends a heartbeat");
    assert!(locks() > 0, "and its contents were checked");
}

/// A deferred job falls due and is claimed by a node without its kind, so its hint is never used.
#[tokio::test]
async fn unused_deferred_hint_is_pruned() {
    let dir = test_support::temp_dir();
    let file = dir.path().join("duly.db");
    let clock = duly::Clock::manual();
    let duly = Duly::builder(file.to_str().expect("plain")).clock(clock.clone()).open().await.expect("opens");
    let (store, node) = (duly.store(), duly::store::Node::fresh(vec!["default".into()]));
    store.heartbeat(&node).await.expect("sends a heartbeat");
    duly.push(Push::new("resize", "{}")).await.expect("pushes");
    let claim =
        || duly::store::Claim { kinds: Some(["mail".to_owned()].into()), ..duly::store::Claim::new("default", 1) };
    let held = store.claim(node.id, claim()).await.expect("claims").jobs;
    let mut end =
        duly::store::AttemptEnd::from_held(&held[0], duly::Outcome::release(Duration::from_secs(2)), Duration::ZERO);
    end.deferred = true;
    store.settle(node.id, vec![end]).await.expect("settles");
    clock.advance(Duration::from_secs(2));
    let held = store.claim(node.id, claim()).await.expect("claims").jobs;
    let end = duly::store::AttemptEnd::from_held(&held[0], duly::Outcome::Ack, Duration::ZERO);
    store.settle(node.id, vec![end]).await.expect("settles");

    let conn = duly::rusqlite::Connection::open(&file).expect("opens");
    let hints =
        || conn.query_row("SELECT count(*) FROM duly_deferred", [], |row| row.get::<_, u32>(0)).expect("counts");
    assert_eq!(hints(), 1);
    store.prune("default", 10).await.expect("prunes");
    assert_eq!(hints(), 0);
}

/// The size of a page is bounded even if its jobs are large.
#[tokio::test]
async fn page_of_large_jobs_is_short_and_has_a_cursor() {
    const JOBS: usize = 30;
    let dir = test_support::temp_dir();
    let duly = Duly::open(dir.path().join("duly.db").to_str().expect("plain")).await.expect("opens");
    let args = format!("\"{}\"", "x".repeat(700_000));
    for _ in 0..JOBS {
        duly.push(Push::new("large", args.as_str()).tag("a")).await.expect("pushes");
    }
    for state in [None, Some(duly::State::Ready)] {
        let mut filter = duly::Filter::all().limit(JOBS).state(state);
        let mut found = 0;
        loop {
            let page = duly.jobs().list(filter.clone()).await.expect("lists");
            let bytes: usize = page.jobs.iter().map(|record| record.job.args.len()).sum();
            assert!(bytes < duly::store::PAGE_BYTES_MAX + duly::store::LIST_BATCH_BYTES_MAX + args.len(), "{bytes}");
            found += page.jobs.len();
            filter.cursor = page.next_cursor;
            if filter.cursor.is_none() {
                break;
            }
        }
        assert_eq!(found, JOBS);
    }
    // Bulk operations continue over short pages.
    let tagged = duly::Filter::all().tag("a");
    assert_eq!(duly.jobs().count(&tagged).await.expect("counts").matching, JOBS as u64);
    assert_eq!(duly.jobs().remove_all(tagged).run().await.expect("removes").applied, JOBS as u64);
}
