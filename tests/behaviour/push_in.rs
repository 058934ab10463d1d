//! Push inside the user's transaction: the job exists if and only if the transaction commits.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use duly::rusqlite::{Connection, params};
use duly::{Args, CancellationToken, Ctx, Duly, Error, PushExt, PushResult};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

const TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Serialize, Deserialize)]
struct Invoice {
    order: i64,
}
impl Args for Invoice {
    const KIND: &'static str = "invoice";
}

struct Shop {
    duly: Duly,
    conn: Connection,
    dir: test_support::TempDir,
}

async fn shop() -> Shop {
    let dir = test_support::temp_dir();
    let file = dir.path().join("shop.db");
    let duly = Duly::open(file.to_str().expect("plain")).await.expect("opens");
    let conn = Connection::open(&file).expect("opens");
    conn.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY)").expect("writes");
    Shop { duly, conn, dir }
}

#[tokio::test]
async fn job_appears_with_the_commit_and_wakes_a_worker() {
    let mut shop = shop().await;
    let (sender, mut received) = mpsc::unbounded_channel();
    let stop = CancellationToken::new();
    let worker = shop.duly.worker().on(move |invoice: Invoice, _: Ctx| {
        let _ = sender.send(invoice.order);
        async {}
    });
    let run = tokio::spawn(worker.run_until(stop.clone()));

    for order in 0..5 {
        let tx = shop.conn.transaction().expect("begins");
        tx.execute("INSERT INTO orders VALUES (?1)", params![order]).expect("writes");
        let after = shop.duly.push_in(&tx, [Invoice { order }]).expect("pushes");
        assert!(matches!(after.pushed[..], [PushResult::New(_)]));
        tx.commit().expect("commits");
        after.wake();
        assert_eq!(tokio::time::timeout(TIMEOUT, received.recv()).await.expect("in time"), Some(order));
    }
    stop.cancel();
    run.await.expect("no panic").expect("ends well");
}

#[tokio::test]
async fn rolled_back_transaction_leaves_no_job() {
    let mut shop = shop().await;
    let tx = shop.conn.transaction().expect("begins");
    let after = shop.duly.push_in(&tx, [Invoice { order: 1 }]).expect("pushes");
    let id = after.pushed[0].id();
    tx.rollback().expect("rolls back");
    after.wake(); // harmless
    assert_eq!(shop.duly.jobs().get(id).await.expect("reads"), None);
    shop.duly.push(Invoice { order: 2 }).await.expect("its job numbers are free again");
}

#[tokio::test]
async fn ids_and_unique_keys_apply_in_a_transaction() {
    let mut shop = shop().await;
    let old = shop.duly.push(Invoice { order: 1 }.unique("order:1")).await.expect("pushes").id();
    let tx = shop.conn.transaction().expect("begins");
    let after = shop.duly.push_in(&tx, [Invoice { order: 1 }.unique("order:1")]).expect("pushes");
    assert_eq!(after.pushed, [PushResult::Existing(old)]);
    tx.commit().expect("commits");
    after.wake();
}

#[tokio::test]
async fn transaction_on_another_file_is_rejected() {
    let shop = shop().await;
    let other = tempfile::NamedTempFile::new().expect("a file");
    let mut conn = Connection::open(other.path()).expect("opens");
    let tx = conn.transaction().expect("begins");
    let error = shop.duly.push_in(&tx, [Invoice { order: 1 }]).expect_err("refused");
    assert!(error.to_string().contains("must be on"), "{error}");
}

#[tokio::test]
async fn push_in_without_a_file_is_unsupported() {
    let memory = Duly::open(":memory:").await.expect("opens");
    let mut conn = Connection::open_in_memory().expect("opens");
    let tx = conn.transaction().expect("begins");
    let error = memory.push_in(&tx, [Invoice { order: 1 }]).expect_err("refused");
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
}

/// Counts the pushes that are reported as done.
#[derive(Clone, Default)]
struct PushCount(Arc<AtomicUsize>);

impl duly::Middleware for PushCount {
    fn after_push(&self, jobs: &[PushResult]) {
        self.0.fetch_add(jobs.len(), Ordering::SeqCst);
    }
}

/// The connections of the store and of the user have the old file open, which no other process will.
#[tokio::test]
async fn transaction_on_a_replaced_file_is_rejected() {
    let mut shop = shop().await;
    let (file, backup) = (shop.dir.path().join("shop.db"), shop.dir.path().join("backup.db"));
    shop.duly.backup(&backup).await.expect("backs up");
    let pushes = PushCount::default();
    let duly = Duly::builder(file.to_str().expect("plain")).middleware(pushes.clone()).open().await.expect("opens");
    let tx = shop.conn.transaction().expect("begins");
    let before = duly.push_in(&tx, [Invoice { order: 1 }]).expect("pushes");
    std::fs::rename(&backup, &file).expect("restores");
    let error = duly.push_in(&tx, [Invoice { order: 2 }]).expect_err("refused");
    assert!(error.to_string().contains("was replaced by another file while it is open"), "{error}");
    tx.commit().expect("commits into the old file");
    before.wake();
    assert_eq!(pushes.0.load(Ordering::SeqCst), 0, "it is not counted");

    // A store that is opened again sees the new file, the user's connection does not.
    drop((duly, shop.duly));
    for suffix in ["-wal", "-shm"] {
        std::fs::remove_file(format!("{}{suffix}", file.display())).expect("removes");
    }
    let duly = Duly::open(file.to_str().expect("plain")).await.expect("opens");
    let tx = shop.conn.transaction().expect("begins");
    let error = duly.push_in(&tx, [Invoice { order: 3 }]).expect_err("refused");
    assert!(error.to_string().contains("open the connection again"), "{error}");
}

#[tokio::test]
async fn open_transaction_causes_a_timeout_that_names_it() {
    let mut shop = shop().await;
    let tx = shop.conn.transaction_with_behavior(duly::rusqlite::TransactionBehavior::Immediate).expect("begins");
    let error = shop.duly.push(Invoice { order: 1 }).await.expect_err("the write lock is taken");
    assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
    assert!(error.to_string().contains("end your own transaction"), "{error}");
    tx.rollback().expect("rolls back");
    shop.duly.push(Invoice { order: 1 }).await.expect("goes on");
}

#[tokio::test]
async fn failed_push_leaves_nothing_in_a_committed_transaction() {
    let mut shop = shop().await;
    let tx = shop.conn.transaction().expect("begins");
    tx.execute("INSERT INTO orders VALUES (1)", []).expect("writes");
    tx.execute_batch(
        "CREATE TEMP TRIGGER refuse BEFORE INSERT ON duly_job WHEN NEW.kind = 'bad' BEGIN SELECT RAISE(FAIL, 'no'); END",
    )
    .expect("a trigger that makes the second job fail");
    let jobs = [duly::Push::from(Invoice { order: 1 }), duly::Push::new("bad", "{}")];
    shop.duly.push_in(&tx, jobs).expect_err("refused");
    tx.execute_batch("DROP TRIGGER refuse").expect("drops");
    tx.commit().expect("commits the user's rows");

    assert!(shop.duly.queues().counts().await.expect("counts").iter().all(|count| count.ready == 0));
    shop.duly.push(Invoice { order: 2 }).await.expect("and the store goes on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn user_transaction_gets_its_turn_during_heavy_pushes() {
    let mut shop = shop().await;
    shop.conn.busy_timeout(TIMEOUT).expect("sets");
    let (busy, stop) = (shop.duly.clone(), CancellationToken::new());
    let stopped = stop.clone();
    let pusher = tokio::spawn(async move {
        while !stopped.is_cancelled() {
            busy.push(Invoice { order: 0 }.queue("other")).await.expect("pushes");
        }
    });
    for order in 0..30 {
        tokio::task::block_in_place(|| {
            let tx = shop.conn.transaction().expect("begins");
            let after = shop.duly.push_in(&tx, [Invoice { order }]).expect("pushes");
            tx.commit().expect("commits");
            after.wake();
        });
    }
    stop.cancel();
    pusher.await.expect("no panic");
}
