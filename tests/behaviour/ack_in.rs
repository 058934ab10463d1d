//! Acks inside the handler's own transaction: the job is done if and only if the transaction commits.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use duly::rusqlite::{Connection, Transaction, TransactionBehavior};
use duly::store::{AttemptEnd, Claim, JobStore, Node};
use duly::worker::RunSummary;
use duly::{BoxError, ConflictKind, Ctx, Duly, Error, Outcome, Push, Retry, State};
use test_support::in_time;

struct Shop {
    duly: Duly,
    file: PathBuf,
    _dir: test_support::TempDir,
}

async fn shop() -> Shop {
    let dir = test_support::temp_dir();
    let file = dir.path().join("shop.db");
    let duly = Duly::open_file(&file).await.expect("opens");
    connect(&file).execute_batch("CREATE TABLE effect (fence INTEGER)").expect("writes");
    Shop { duly, file, _dir: dir }
}

fn connect(file: &Path) -> Connection {
    let conn = Connection::open(file).expect("opens");
    conn.busy_timeout(test_support::TIMEOUT).expect("sets");
    conn
}

/// Records an effect and acks the job in one transaction.
fn act<T>(file: &Path, ctx: &Ctx, end: impl FnOnce(Transaction<'_>) -> T) -> duly::Result<T> {
    let mut conn = connect(file);
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).expect("begins");
    tx.execute("INSERT INTO effect VALUES (?1)", [ctx.fence().0.cast_signed()]).expect("writes");
    ctx.ack_in(&tx)?;
    Ok(end(tx))
}

fn commit(tx: Transaction<'_>) {
    tx.commit().expect("commits");
}

impl Shop {
    fn effects(&self) -> i64 {
        connect(&self.file).query_row("SELECT count(*) FROM effect", [], |row| row.get(0)).expect("counts")
    }

    /// Runs all jobs with this handler.
    async fn drain<Fut>(&self, handler: impl Fn(Ctx, PathBuf) -> Fut + Send + Sync + 'static) -> RunSummary
    where
        Fut: Future<Output = Result<(), BoxError>> + Send + 'static,
    {
        let file = self.file.clone();
        let worker = self.duly.worker().default_retry(Retry::fixed(Duration::ZERO));
        let run = worker.on_kind("charge", move |ctx: Ctx| handler(ctx, file.clone())).drain();
        in_time(run).await.expect("drains")
    }

    async fn assert_sound(&self) {
        let verified = self.duly.verify().await.expect("verifies");
        assert!(verified.violations.is_empty(), "{:?}", verified.violations);
    }
}

#[tokio::test]
async fn committed_ack_ends_the_job_with_its_result_once() {
    let shop = shop().await;
    let id = shop.duly.push(Push::new("charge", "{}").unique("order:7")).await.expect("pushes").id();
    let summary = shop
        .drain(async |ctx, file| {
            ctx.set_result(&42)?;
            act(&file, &ctx, commit)?;
            assert_eq!(ctx.duly().queues().counts().await?[0].running, 1, "until the handler returns");
            Ok(())
        })
        .await;
    assert_eq!((summary.acked, summary.settled(), summary.lost), (1, 1, 0));
    let record = shop.duly.jobs().get(id).await.expect("reads").expect("is kept");
    assert_eq!((record.state, record.attempts, record.result.as_deref()), (State::Done, 0, Some("42")));
    assert_eq!(shop.effects(), 1);
    assert!(shop.duly.push(Push::new("charge", "{}").unique("order:7")).await.expect("pushes").is_new());
    shop.assert_sound().await;
}

#[tokio::test]
async fn job_that_is_not_kept_is_deleted_and_its_waiter_notified() {
    let shop = shop().await;
    let id = shop.duly.push(Push::new("charge", "{}").keep(Duration::ZERO)).await.expect("pushes").id();
    let (waiter, waited_id) = (shop.duly.clone(), id);
    let wait = tokio::spawn(async move { waiter.jobs().wait(waited_id).await });
    let summary = shop
        .drain(async |ctx, file| {
            act(&file, &ctx, commit)?;
            Err("after the commit".into())
        })
        .await;
    assert_eq!(summary.acked, 1);
    in_time(wait).await.expect("no panic").expect("waits");
    assert_eq!(shop.duly.jobs().get(id).await.expect("reads"), None);
    shop.assert_sound().await;
}

#[tokio::test]
async fn rolled_back_ack_leaves_the_decision_to_the_handler() {
    let shop = shop().await;
    let id = shop.duly.push(Push::new("charge", "{}")).await.expect("pushes").id();
    let summary = shop
        .drain(async |ctx, file| {
            if ctx.attempt() == 1 {
                act(&file, &ctx, |tx| tx.rollback().expect("rolls back"))?;
                return Err("rolled back".into());
            }
            act(&file, &ctx, commit)?;
            Ok(())
        })
        .await;
    assert_eq!((summary.retried, summary.acked), (1, 1));
    let record = shop.duly.jobs().get(id).await.expect("reads").expect("is kept");
    assert_eq!((record.state, record.attempts, shop.effects()), (State::Done, 1, 1));
    shop.assert_sound().await;
}

#[tokio::test]
async fn failure_after_the_commit_does_not_run_the_job_again() {
    for failure in ["error", "panic", "timeout"] {
        let shop = shop().await;
        let push = Push::new("charge", "{}").timeout(Duration::from_millis(300));
        let id = shop.duly.push(push).await.expect("pushes").id();
        let summary = shop
            .drain(move |ctx, file| async move {
                act(&file, &ctx, commit)?;
                match failure {
                    "error" => Err("after the commit".into()),
                    "panic" => panic!("after the commit"),
                    _ => std::future::pending().await,
                }
            })
            .await;
        assert_eq!((summary.acked, summary.settled(), shop.effects()), (1, 1, 1), "{failure}");
        let record = shop.duly.jobs().get(id).await.expect("reads").expect("is kept");
        assert_eq!((record.state, record.failures.len()), (State::Done, 0), "{failure}");
        shop.assert_sound().await;
    }
}

#[tokio::test]
async fn settle_of_another_outcome_records_the_committed_ack() {
    let shop = shop().await;
    let id = shop.duly.push(Push::new("charge", "{}")).await.expect("pushes").id();
    // The worker is told to stop at once, so the attempt is aborted and released.
    let stop = duly::CancellationToken::new();
    let (file, stopper) = (shop.file.clone(), stop.clone());
    let worker = shop.duly.worker().grace(Duration::from_millis(1)).on_kind("charge", move |ctx: Ctx| {
        let (file, stopper) = (file.clone(), stopper.clone());
        async move {
            act(&file, &ctx, commit).expect("acks");
            stopper.cancel();
            std::future::pending::<()>().await;
        }
    });
    in_time(worker.run_until(stop)).await.expect("ends well");
    assert_eq!(shop.duly.jobs().get(id).await.expect("reads").expect("is kept").state, State::Done);
    shop.assert_sound().await;
}

#[tokio::test]
async fn cancel_after_the_commit_leaves_the_job_done() {
    let shop = shop().await;
    let id = shop.duly.push(Push::new("charge", "{}")).await.expect("pushes").id();
    let summary = shop
        .drain(async |ctx, file| {
            act(&file, &ctx, commit)?;
            ctx.duly().jobs().cancel(ctx.job().id).await?;
            ctx.cancelled().await;
            Err("cancelled".into())
        })
        .await;
    assert_eq!(summary.acked, 1);
    assert_eq!(shop.duly.jobs().get(id).await.expect("reads").expect("is kept").state, State::Done);
    shop.assert_sound().await;
}

#[tokio::test]
async fn ack_of_a_lost_job_fails_and_rolls_its_rows_back() {
    let shop = shop().await;
    shop.duly.push(Push::new("charge", "{}")).await.expect("pushes");
    let attempts = Arc::new(AtomicU32::new(0));
    let counted = attempts.clone();
    let summary = shop
        .drain(move |ctx, file| {
            let is_first = counted.fetch_add(1, Ordering::SeqCst) == 0;
            async move {
                if is_first {
                    // As if another node had taken the job back and claimed it.
                    connect(&file).execute("UPDATE duly_running SET fence = fence - 1", [])?;
                    let error = act(&file, &ctx, commit).expect_err("lost");
                    assert!(matches!(error, Error::Conflict { kind: ConflictKind::LeaseLost, .. }), "{error}");
                    connect(&file).execute("UPDATE duly_running SET fence = fence + 1", [])?;
                    return Err(error.into());
                }
                act(&file, &ctx, commit)?;
                Ok(())
            }
        })
        .await;
    assert_eq!((summary.acked, summary.retried, shop.effects()), (1, 1, 1));
}

#[tokio::test]
async fn next_step_is_pushed_in_the_transaction_of_the_ack() {
    let shop = shop().await;
    shop.duly.push(Push::new("charge", "1")).await.expect("pushes");
    let summary = shop
        .drain(async |ctx, file| {
            let mut conn = connect(&file);
            let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let next = (ctx.job().args == "1").then(|| Push::new("charge", "2"));
            let after_commit = ctx.duly().push_in(&tx, next)?;
            ctx.ack_in(&tx)?;
            tx.commit()?;
            after_commit.wake();
            Ok(())
        })
        .await;
    assert_eq!(summary.acked, 2);
    shop.assert_sound().await;
}

#[tokio::test]
async fn ack_in_needs_a_transaction_on_the_file_of_the_store() {
    let (shop, other) = (shop().await, shop().await);
    let memory = Duly::open(":memory:").await.expect("opens");
    for (duly, field) in [(&shop.duly, true), (&memory, false)] {
        duly.push(Push::new("charge", "{}")).await.expect("pushes");
        let file = other.file.clone();
        let worker = duly.worker().on_kind("charge", move |ctx: Ctx| {
            let error = act(&file, &ctx, commit).expect_err("refused");
            match field {
                true => assert!(matches!(error, Error::Invalid { field: "transaction", .. }), "{error}"),
                false => assert!(matches!(error, Error::Unsupported { .. }), "{error}"),
            }
            async {}
        });
        assert_eq!(in_time(worker.drain()).await.expect("drains").acked, 1);
    }
    assert_eq!(other.effects(), 0);
}

/// The transaction would commit into a file that no other process opens.
#[tokio::test]
async fn ack_in_a_file_that_was_moved_or_replaced_is_refused() {
    let shop = shop().await;
    let (backup, moved) = (shop.file.with_extension("backup"), shop.file.with_extension("moved"));
    shop.duly.backup(&backup).await.expect("backs up");
    shop.duly.push(Push::new("charge", "{}")).await.expect("pushes");
    let summary = shop
        .drain(move |ctx, file| {
            let moved = moved.clone();
            async move {
                let mut conn = connect(&file);
                let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
                std::fs::rename(&file, &moved)?;
                let error = ctx.ack_in(&tx).expect_err("refused");
                std::fs::rename(&moved, &file)?;
                assert!(error.to_string().contains("was deleted or moved while it is open"), "{error}");
                Ok(())
            }
        })
        .await;
    assert_eq!(summary.acked, 1);

    // A store that is opened again sees the new file, the connection of the handler does not.
    let old = Arc::new(std::sync::Mutex::new(connect(&shop.file)));
    old.lock().expect("no panic").execute("INSERT INTO effect VALUES (0)", []).expect("opens the file");
    let Shop { duly, file, _dir } = shop;
    drop(duly);
    std::fs::rename(&backup, &file).expect("restores");
    for suffix in ["-wal", "-shm"] {
        std::fs::remove_file(format!("{}{suffix}", file.display())).expect("removes");
    }
    let shop = Shop { duly: Duly::open_file(&file).await.expect("opens"), file, _dir };
    shop.duly.push(Push::new("charge", "{}")).await.expect("pushes");
    let summary = shop
        .drain(move |ctx, _| {
            let mut conn = old.lock().expect("no panic");
            let error = ctx.ack_in(&conn.transaction().expect("begins")).expect_err("refused");
            assert!(error.to_string().contains("open the connection again"), "{error}");
            async { Ok(()) }
        })
        .await;
    assert_eq!(summary.acked, 1);
}

/// The fastest of the ways in which an acked attempt ends is the settle; these are the others.
#[tokio::test]
async fn acked_and_cancelled_job_counts_as_an_ack_however_its_attempt_ends() {
    for end in ["settled", "repaired"] {
        let shop = shop().await;
        let id = shop.duly.push(Push::new("charge", "{}")).await.expect("pushes").id();
        let (store, node) = (shop.duly.store(), Node::fresh(vec!["default".into()]));
        store.heartbeat(&node).await.expect("joins");
        let held = store.claim(node.id, Claim::new("default", 1)).await.expect("claims").jobs.remove(0);
        shop.duly.jobs().cancel(id).await.expect("cancels");
        let conn = connect(&shop.file);
        conn.execute("UPDATE duly_running SET acked = 1", []).expect("as ack_in does");
        if end == "settled" {
            let failed = AttemptEnd::new(Arc::new(held), Outcome::bury("after the commit"), Duration::from_secs(60));
            assert_eq!(store.settle(node.id, vec![failed]).await.expect("settles"), []);
        } else {
            conn.execute("UPDATE duly_running SET node_no = 99", []).expect("as a damaged file");
            shop.duly.repair(shop.file.with_extension("damaged")).await.expect("repairs");
        }
        assert_eq!(shop.duly.jobs().get(id).await.expect("reads").expect("is kept").state, State::Done, "{end}");
        let totals = shop.duly.queues().totals().await.expect("reads").remove(0).1;
        assert_eq!((totals.done, totals.cancelled, totals.buried), (1, 0, 0), "{end}");
        shop.assert_sound().await;
    }
}
