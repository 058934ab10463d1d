//! Crashes, races and lost replies: no claimed job is lost, and no repeated push is duplicated.

use std::collections::HashMap;
use std::time::Duration;

use duly::{Duly, Error, JobId, Push};
use serde_json::json;

use super::child;
use super::sandbox::*;
use test_support::servers::{Binary, Fsync, Options, Proxy};

#[tokio::test(flavor = "multi_thread")]
async fn killed_worker_loses_no_job() {
    const JOBS: usize = 60;
    let sandbox = Sandbox::new().await;
    sandbox.ruby(&format!("{JOBS}.times {{ |n| Echo.perform_async(n) }}"));
    let before = sandbox.ruby("Ask.queue");
    let survivor = sandbox.run(sandbox.worker(&["Other"]));
    let killed = child::start(&sandbox.store(), 20);
    assert_eq!(sandbox.redis(&["LLEN", "queue:default"]), [(JOBS - 20).to_string()], "the worker holds 20");
    drop(killed);
    test_support::until("they are back", async || sandbox.redis(&["LLEN", "queue:default"]) == [JOBS.to_string()])
        .await;
    assert_eq!(sandbox.ruby("Ask.queue"), before, "unchanged and at the front, although the survivor has no handler");
    survivor.end().await;
    let running = sandbox.run(sandbox.worker(&["Echo"]));
    let mut times: HashMap<String, usize> = HashMap::new();
    sandbox.until_ran(JOBS).await.iter().for_each(|(_, args)| *times.entry(args.to_string()).or_default() += 1);
    assert!(times.len() == JOBS && times.values().all(|times| *times == 1));
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_promotion_duplicates_nothing() {
    const JOBS: usize = 400;
    let sandbox = Sandbox::new().await;
    sandbox.ruby(&format!("{JOBS}.times {{ |n| Echo.perform_in(0.5 + n / 400.0, n) }}"));
    let workers: Vec<_> = (0..3).map(|_| sandbox.run(sandbox.worker(&["Echo"]))).collect();
    // Ruby's poller, in a busy loop.
    sandbox.ruby("Ask.promote(4)");
    sandbox.until_ran(JOBS).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut times: HashMap<String, usize> = HashMap::new();
    sandbox.ran().iter().for_each(|(_, args)| *times.entry(args.to_string()).or_default() += 1);
    assert!(times.len() == JOBS && times.values().all(|times| *times == 1), "{times:?}");
    for worker in workers {
        worker.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_push_is_one_job() {
    let sandbox = Sandbox::new().await;
    let push = || {
        vec![
            Push::new("Echo", "[1]").id(JobId::from_name("a")),
            Push::new("Echo", "[2]").id(JobId::from_name("b")).queue("post"),
        ]
    };
    let first = sandbox.duly.push_all(push()).await.expect("pushes");
    let second = sandbox.duly.push_all(push()).await.expect("pushes");
    assert!(first.iter().all(|result| result.is_new()) && second.iter().all(|result| !result.is_new()));
    assert_eq!(sandbox.ruby("Sidekiq::Queue.all.map(&:size)"), json!([1, 1]));
    let jid = sandbox.ruby("Sidekiq::Queue.new.first.jid");
    assert_eq!(jid, json!(JobId::from_name("a").to_string()), "duly's id is the jid");
    assert!(sandbox.duly.jobs().remove(JobId::from_name("a")).await.is_ok());
    assert_eq!(sandbox.ruby("Sidekiq::Queue.new.size"), json!(0));
}

/// The reply is lost, and the second request finds no server; the first request has been applied.
#[tokio::test(flavor = "multi_thread")]
async fn push_with_lost_reply_before_an_outage_is_unknown() {
    let server = Options::new(Binary::Redis).aof(Fsync::No).start();
    let proxy = Proxy::start(server.port());
    let duly = Duly::open(format!("sidekiq://{}", proxy.address())).await.expect("opens");
    duly.push(Push::new("Echo", "[1]")).await.expect("pushes");
    proxy.refuse();
    proxy.drop_reply("Fleeting");
    let error = duly.push(Push::new("Fleeting", "[2]")).await.expect_err("no reply");
    assert!(matches!(error, Error::Unknown { .. }), "{error:?}");
    assert_eq!(server.send_command(&["LLEN", "queue:default"]).text(), "2");
}

#[tokio::test(flavor = "multi_thread")]
async fn partial_push_into_several_queues_is_unknown() {
    let sandbox = Sandbox::new().await;
    sandbox.redis(&["SET", "queue:second", "x"]);
    let jobs = ["first", "second"].map(|queue| Push::new("Echo", "[]").queue(queue));
    let error = sandbox.duly.push_all(jobs).await.expect_err("the second is rejected");
    assert!(error.code() == "unknown" && error.to_string().contains("not a list"), "{error}");
    assert_eq!(sandbox.redis(&["LLEN", "queue:first"]), ["1"], "the first is pushed");
    let error = sandbox.duly.push(Push::new("Echo", "[]").queue("second")).await.expect_err("rejected");
    assert_eq!(error.code(), "invalid", "the outcome is known: {error}");
}
