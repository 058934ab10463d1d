//! A server that is killed and comes back.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use duly::{Ctx, Duly, JobId, Outcome, Push};

use crate::outage::ledger::Ledger;
use crate::outage::load::{Load, Mark};
use test_support::servers::{Binary, Fsync, Options, Server};

/// Later than anything here takes.
const LATER: Duration = Duration::from_secs(600);

/// Kills in an ordinary run; `DULY_KILLS` asks for more.
fn kills() -> u64 {
    test_support::env_number("DULY_KILLS").unwrap_or(5)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_of_a_server_with_fsync_always_loses_nothing_acknowledged() {
    for binary in [Binary::Redis, Binary::Valkey] {
        let server = Options::new(binary).aof(Fsync::Always).start();
        let load = Load::begin(&server.url()).await;
        for _ in 0..kills() {
            load.until_pushed(100).await;
            server.kill();
            server.restart();
        }
        load.until_pushed(100).await;
        assert_eq!(load.end().await, 0);
    }
}

/// A crash may tear the append-only file off within a step. The server undoes the step, but Redis 7.0.15 leaves its beginning
/// in the file, and carries it out at its next start together with what follows: unless the file is rewritten before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partial_transaction_does_not_return_after_a_rewrite() {
    for binary in [Binary::Redis, Binary::Valkey] {
        let server = Options::new(binary).aof(Fsync::Always).start();
        assert_eq!(torn_and_started_twice(&server, Server::restart).await, Vec::new());
        // The same without that, on a server that is known to need it.
        if server.info(&["INFO", "server"], "redis_version") == "7.0.15" {
            server.ask(&["FLUSHALL"]);
            assert_ne!(torn_and_started_twice(&server, Server::restart_only).await, Vec::new());
        }
    }
}

/// Tears the last push off, starts the server, pushes again, starts it once more; answers what is wrong then.
async fn torn_and_started_twice(server: &Server, start: fn(&Server)) -> Vec<duly::store::Violation> {
    let open = async || Duly::open(format!("{}?keep=0", server.url())).await.expect("opens");
    let push = |number: u64| Push::from(Mark(number)).id(JobId::from_name(&number.to_string())).after(LATER);
    let duly = open().await;
    duly.push(push(0)).await.expect("pushes");
    duly.push(push(1)).await.expect("pushes");
    drop(duly);
    server.kill();
    tear_off(server.directory(), 5);
    start(server);
    let duly = open().await;
    assert!(duly.get(JobId::from_name("1")).await.expect("asks").is_none(), "as if it had not been answered");
    duly.push_all([push(1), push(2)]).await.expect("pushes");
    drop(duly);
    start(server);
    let duly = open().await;
    assert_eq!(duly.counts().await.expect("counts")[0].scheduled, 3);
    duly.verify().await.expect("looks").violations
}

/// So many bytes of what the server has appended last never reached the disk.
fn tear_off(directory: &Path, bytes: u64) {
    let files = std::fs::read_dir(directory.join("appendonlydir")).expect("it keeps one").flatten();
    let file = files.map(|file| file.path()).find(|path| path.to_string_lossy().ends_with(".incr.aof"));
    let file = std::fs::File::options().write(true).open(file.expect("it has appended")).expect("opens");
    let whole = file.metadata().expect("it is there").len();
    file.set_len(whole - bytes).expect("is cut");
}

/// The checker is worth something only if it finds loss where there is some.
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
    // One that has started and would go on later, one that is done, one that has not started.
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
    let again = Outcome::retry(Duration::from_secs(3_600), "once more");
    assert_eq!(duly.worker().on(handler(again)).drain().await.expect("drains").retried, 1);
    let done = push(1).await;
    assert_eq!(duly.worker().on(handler(Outcome::Ack)).drain().await.expect("drains").acked, 1);
    let lost = push(2).await;
    assert_eq!(ledger.vanished(&BTreeSet::new()), [later], "it waits, and nothing else does");
    server.kill();
    server.restart();
    let tally = duly.worker().on(handler(Outcome::Ack)).drain().await.expect("drains");
    assert_eq!((tally.acked, ledger.missing()), (0, vec![lost]));
    assert_eq!(ledger.vanished(&BTreeSet::new()), [later]);
    assert_eq!(ledger.vanished(&BTreeSet::from([later])), [], "among the dead it would be found");

    // One that is run again although it was done.
    assert_eq!(ledger.wrong(), Vec::<String>::new());
    duly.push(Push::from(Mark(1)).id(done)).await.expect("pushes");
    assert_eq!(duly.worker().on(handler(Outcome::Ack)).drain().await.expect("drains").acked, 1);
    let wrong = ledger.wrong();
    assert!(wrong.len() == 1 && wrong[0].contains("although it was done"), "{wrong:?}");
}
