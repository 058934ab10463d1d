//! A server that is killed and restarted.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use duly::{Ctx, Duly, JobId, Outcome, Push};

use crate::outage::ledger::Ledger;
use crate::outage::load::{Load, Mark};
use test_support::servers::{Binary, Fsync, Options, Server};

/// Later than the end of the test.
const LATER: Duration = Duration::from_secs(600);

/// Number of kills; `DULY_KILLS` sets it.
fn kills() -> u64 {
    test_support::env_number("DULY_KILLS").unwrap_or(5)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_of_a_server_with_fsync_always_loses_nothing_acknowledged() {
    for binary in [Binary::Redis, Binary::Valkey] {
        let server = Options::new(binary).aof(Fsync::Always).start();
        let load = Load::begin(&server.url()).await;
        for _ in 0..kills() {
            load.wait_until_pushed(100).await;
            server.kill();
            server.restart();
        }
        load.wait_until_pushed(100).await;
        assert_eq!(load.end().await, 0);
    }
}

/// A crash may truncate the append-only file within a transaction. The server skips it on load, but Redis 7.0.15 keeps
/// its start in the file. At the next restart it executes that start with the commands behind it, unless the file was
/// rewritten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partial_transaction_does_not_return_after_a_rewrite() {
    for binary in [Binary::Redis, Binary::Valkey] {
        let server = Options::new(binary).aof(Fsync::Always).start();
        assert_eq!(truncate_and_restart_twice(&server, Server::restart).await, Vec::new());
        // Control: without the rewrite, on a version that is known to need it.
        if server.info(&["INFO", "server"], "redis_version") == "7.0.15" {
            server.send_command(&["FLUSHALL"]);
            assert_ne!(truncate_and_restart_twice(&server, Server::restart_only).await, Vec::new());
        }
    }
}

/// Truncates the last push, restarts, pushes again, restarts again. Returns the violations found then.
async fn truncate_and_restart_twice(server: &Server, start: fn(&Server)) -> Vec<duly::store::Violation> {
    let open = async || Duly::open(format!("{}?keep=0", server.url())).await.expect("opens");
    let push = |number: u64| Push::from(Mark(number)).id(JobId::from_name(&number.to_string())).after(LATER);
    let duly = open().await;
    duly.push(push(0)).await.expect("pushes");
    duly.push(push(1)).await.expect("pushes");
    drop(duly);
    server.kill();
    truncate_aof(server.directory(), 5);
    start(server);
    let duly = open().await;
    assert!(duly.jobs().get(JobId::from_name("1")).await.expect("a reply").is_none(), "the push is lost");
    duly.push_all([push(1), push(2)]).await.expect("pushes");
    drop(duly);
    start(server);
    let duly = open().await;
    assert_eq!(duly.queues().counts().await.expect("counts")[0].scheduled, 3);
    duly.verify().await.expect("a report").violations
}

/// Truncates the append-only file, as if its last bytes had never reached the disk.
fn truncate_aof(directory: &Path, bytes: u64) {
    let files = std::fs::read_dir(directory.join("appendonlydir")).expect("an append-only file").flatten();
    let file = files.map(|file| file.path()).find(|path| path.to_string_lossy().ends_with(".incr.aof"));
    let file = std::fs::File::options().write(true).open(file.expect("it has appended")).expect("opens");
    let length = file.metadata().expect("it exists").len();
    file.set_len(length - bytes).expect("is cut");
}

/// Control of the checker: it finds loss if there is some.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checker_finds_loss_on_a_server_without_persistence() {
    let server = Options::new(Binary::Redis).start();
    let duly = Duly::open(format!("{}?allow_data_loss=true", server.url())).await.expect("opens");
    let ledger = Arc::new(Ledger::default());
    let push = async |number: u64| {
        let id = duly.push(Push::from(Mark(number))).await.expect("pushes").id();
        ledger.acknowledged(id, number);
        id
    };
    // One job that has started and would be retried later, one that is done, one that has not started.
    let later = push(0).await;
    let handler = |outcome: Outcome| {
        let ledger = ledger.clone();
        move |Mark(number): Mark, ctx: Ctx| {
            let outcome = outcome.clone();
            ledger.started(0, &ctx, number, &outcome);
            ledger.settled(ctx.job().id, &outcome);
            async move { outcome }
        }
    };
    let retry = Outcome::retry(Duration::from_secs(3_600), "once more");
    assert_eq!(duly.worker().on(handler(retry)).drain().await.expect("drains").retried, 1);
    let done = push(1).await;
    assert_eq!(duly.worker().on(handler(Outcome::Ack)).drain().await.expect("drains").acked, 1);
    let lost = push(2).await;
    assert_eq!(ledger.vanished(&BTreeSet::new()), [later], "only this one waits");
    server.kill();
    server.restart();
    let summary = duly.worker().on(handler(Outcome::Ack)).drain().await.expect("drains");
    assert_eq!((summary.acked, ledger.missing()), (0, vec![lost]));
    assert_eq!(ledger.vanished(&BTreeSet::new()), [later]);
    assert_eq!(ledger.vanished(&BTreeSet::from([later])), [], "a dead job is not missing");

    // A job that is run again although it was done.
    assert_eq!(ledger.violations(), Vec::<String>::new());
    duly.push(Push::from(Mark(1)).id(done)).await.expect("pushes");
    assert_eq!(duly.worker().on(handler(Outcome::Ack)).drain().await.expect("drains").acked, 1);
    let violations = ledger.violations();
    assert!(violations.len() == 1 && violations[0].contains("although it was done"), "{violations:?}");
}
