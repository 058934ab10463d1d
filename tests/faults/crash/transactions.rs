//! Work in the user's own transactions, in processes that are killed before and after the commit.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use duly::rusqlite::{Connection, TransactionBehavior};
use duly::{Ctx, Duly, Filter, Push, State};
use test_support::KillOnDrop;

use crate::crash::runtime;

const ROLE: &str = "DULY_TRANSACTION_ROLE";
const FILE: &str = "DULY_TRANSACTION_FILE";

/// Not a test: the entry point of a child process.
#[test]
fn child_process() {
    let (Ok(role), Ok(file)) = (std::env::var(ROLE), std::env::var(FILE)) else { return };
    let file = PathBuf::from(file);
    match role.as_str() {
        "insert" | "insert_commit" => insert_and_hang(&file, role == "insert_commit"),
        "ack" | "ack_commit" => runtime().block_on(ack_and_hang(file, role == "ack_commit")),
        _ => runtime().block_on(take_forever(&file)),
    }
}

/// Reports to the parent that the process has reached the point at which it should be killed.
fn report_ready() {
    let mut out = std::io::stdout().lock();
    writeln!(out, "ready").and_then(|()| out.flush()).expect("the parent reads");
}

fn hang() -> ! {
    report_ready();
    loop {
        std::thread::park();
    }
}

fn connect(file: &Path) -> Connection {
    let conn = Connection::open(file).expect("opens");
    conn.busy_timeout(crate::crash::LONG).expect("sets");
    conn
}

fn insert_and_hang(file: &Path, commits: bool) {
    let mut conn = connect(file);
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).expect("begins");
    tx.execute("INSERT INTO effect VALUES (1)", []).expect("writes");
    tx.execute("INSERT INTO duly_inbox (kind) VALUES ('charge')", []).expect("writes");
    if !commits {
        hang();
    }
    tx.commit().expect("commits");
    hang();
}

async fn ack_and_hang(file: PathBuf, commits: bool) {
    let duly = Duly::open_file(&file).await.expect("opens");
    let worker = duly.worker().on_kind("charge", move |ctx: Ctx| {
        let mut conn = connect(&file);
        let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).expect("begins");
        tx.execute("INSERT INTO effect VALUES (1)", []).expect("writes");
        ctx.set_result(&"charged").expect("fits");
        ctx.ack_in(&tx).expect("acks");
        if commits {
            tx.commit().expect("commits");
        }
        hang();
        #[allow(unreachable_code, reason = "gives the handler its type")]
        async {}
    });
    worker.run().await.expect("works");
}

async fn take_forever(file: &Path) {
    let duly = Duly::open_file(file).await.expect("opens");
    report_ready();
    loop {
        duly.take_inbox().await.expect("takes");
    }
}

/// Starts a child, and returns when it is ready to be killed.
fn start(role: &str, file: &Path) -> KillOnDrop {
    let mut process = test_support::child_test("crash::transactions::child_process")
        .env(ROLE, role)
        .env(FILE, file)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let out = process.stdout.take().expect("piped");
    let child = KillOnDrop(process);
    let mut lines = BufReader::new(out).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.ends_with("ready")), "the child has ended");
    child
}

fn open(dir: &test_support::TempDir) -> (PathBuf, Duly) {
    let file = dir.path().join("shop.db");
    let duly = runtime().block_on(Duly::open_file(&file)).expect("opens");
    connect(&file).execute_batch("CREATE TABLE effect (n INTEGER)").expect("writes");
    (file, duly)
}

fn effects(file: &Path) -> i64 {
    connect(file).query_row("SELECT count(*) FROM effect", [], |row| row.get(0)).expect("counts")
}

#[test]
fn killed_inserter_leaves_both_row_and_job_or_neither() {
    for (role, expected) in [("insert", 0_i64), ("insert_commit", 1)] {
        let dir = test_support::temp_dir();
        let (file, duly) = open(&dir);
        start(role, &file).kill();
        let summary = runtime().block_on(duly.worker().on_kind("charge", async |_| ()).drain()).expect("drains");
        assert_eq!((effects(&file), summary.acked), (expected, expected.cast_unsigned()), "{role}");
    }
}

#[test]
fn killed_handler_runs_again_only_if_its_ack_was_not_committed() {
    for (role, runs_again) in [("ack", true), ("ack_commit", false)] {
        let dir = test_support::temp_dir();
        let (file, duly) = open(&dir);
        let runtime = runtime();
        let id = runtime.block_on(duly.push(Push::new("charge", "{}").unique("order:7"))).expect("pushes").id();
        start(role, &file).kill();
        assert_eq!(effects(&file), i64::from(!runs_again), "{role}");

        let (runs, ran) = std::sync::mpsc::channel();
        let shop = file.clone();
        let worker = duly.worker().on_kind("charge", move |ctx: Ctx| {
            let mut conn = connect(&shop);
            let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).expect("begins");
            tx.execute("INSERT INTO effect VALUES (1)", []).expect("writes");
            ctx.set_result(&"charged").expect("fits");
            ctx.ack_in(&tx).expect("acks");
            tx.commit().expect("commits");
            runs.send(()).expect("the test reads");
            async {}
        });
        let stop = duly::CancellationToken::new();
        runtime.block_on(async {
            let run = tokio::spawn(worker.run_until(stop.clone()));
            test_support::until("the job is done", async || {
                duly.jobs().get(id).await.expect("reads").expect("is kept").state == State::Done
            })
            .await;
            stop.cancel();
            run.await.expect("no panic").expect("ends well");
        });
        assert_eq!(ran.try_iter().count(), usize::from(runs_again), "{role}");
        assert_eq!(effects(&file), 1, "{role}");
        let record = runtime.block_on(duly.jobs().get(id)).expect("reads").expect("is kept");
        assert_eq!((record.result.as_deref(), record.crashes), (Some("\"charged\""), u32::from(runs_again)), "{role}");
        let again = runtime.block_on(duly.push(Push::new("charge", "{}").unique("order:7"))).expect("pushes");
        assert!(again.is_new(), "{role}: the unique key is free");
        let verified = runtime.block_on(duly.verify()).expect("verifies");
        assert!(verified.violations.is_empty(), "{role}: {:?}", verified.violations);
    }
}

#[test]
fn killed_takers_take_every_row_exactly_once() {
    const ROWS: i64 = 600;
    const KILLS: i64 = 12;
    let dir = test_support::temp_dir();
    let (file, duly) = open(&dir);
    let mut conn = connect(&file);
    for kill in 0..KILLS {
        let mut taker = start("take", &file);
        for row in kill * ROWS / KILLS..(kill + 1) * ROWS / KILLS {
            let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).expect("begins");
            tx.execute("INSERT INTO effect VALUES (?1)", [row]).expect("writes");
            tx.execute("INSERT INTO duly_inbox (kind, args) VALUES ('charge', ?1)", [row.to_string()]).expect("writes");
            tx.commit().expect("commits");
        }
        taker.kill();
    }
    let runtime = runtime();
    runtime.block_on(duly.take_inbox()).expect("takes");
    let page = runtime.block_on(duly.jobs().list(Filter::all().limit(1_000))).expect("lists");
    let mut args: Vec<i64> = page.jobs.iter().map(|record| record.job.args.parse().expect("a number")).collect();
    args.sort_unstable();
    assert_eq!(args, (0..ROWS).collect::<Vec<_>>());
    let verified = runtime.block_on(duly.verify()).expect("verifies");
    assert!(verified.violations.is_empty(), "{:?}", verified.violations);
}
