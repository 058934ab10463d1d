//! Sidekiq's keys over TLS, and behind Sentinels with a failover.

use duly::Push;
use serde_json::json;

use super::sandbox::*;
use test_support::servers::{Binary, Fsync, Options, Sentinel, certificates};

/// Ruby pushes ready and scheduled jobs that duly runs; duly pushes a job that Ruby runs.
async fn both_directions(sandbox: &Sandbox) {
    sandbox.ruby("3.times { |n| Echo.perform_async(n) }; Echo.perform_in(0.2, 'later')");
    let running = sandbox.run(sandbox.worker(&["Echo"]));
    let ran = sandbox.until_ran(4).await;
    assert!(ran.iter().all(|(runner, _)| runner == "rust"), "{ran:?}");
    running.end().await;
    let _sidekiq = sandbox.sidekiq(&["post"]);
    sandbox.duly.push(Push::new("Echo", "[\"from rust\"]").queue("post")).await.expect("pushes");
    assert_eq!(sandbox.until_ran(5).await[4], ("ruby".into(), json!(["from rust"])));
}

#[tokio::test(flavor = "multi_thread")]
async fn store_works_over_tls() {
    let server = Options::new(Binary::Redis).aof(Fsync::No).tls(certificates()).start();
    let (port, authority) = (server.tls_port(), certificates().file("ca.crt"));
    let store = format!("sidekiqs://localhost:{port}/0?lease=1s&ca={}", authority.display());
    let sandbox = Sandbox::on(server.port(), 0, store).await;
    both_directions(&sandbox).await;
    let plain = duly::Duly::open(format!("sidekiq://localhost:{port}/0")).await.map(drop);
    assert!(plain.is_err(), "the TLS port must reject plain connections");
}

#[tokio::test(flavor = "multi_thread")]
async fn store_works_behind_sentinels() {
    const JOBS: usize = 20;
    let sentinel = Sentinel::start(Options::new(Binary::Redis).aof(Fsync::No), Sentinel::QUICK);
    let store = format!("{}?lease=1s", sentinel.url().replacen("redis", "sidekiq", 1));
    let port = |master: usize| sentinel.servers()[master].port();
    let sandbox = Sandbox::on(port(sentinel.master()), 0, store).await;
    both_directions(&sandbox).await;

    // Jobs that have reached the replica survive the master, and connected clients find the new one.
    sandbox.duly.push_all((0..JOBS).map(|n| Push::new("Echo", format!("[{n}]")))).await.expect("pushes");
    let master = sentinel.master();
    let mut client = sentinel.servers()[master].client().expect("connects");
    client.send_command(&["SET", "sign", "1"]).expect("writes");
    assert_eq!(
        client.send_command(&["WAIT", "1", "10000"]).expect("succeeds").text(),
        "1",
        "the replica is up to date"
    );
    let old = sentinel.kill_master();
    let master = sentinel.wait_for_failover(old);
    let after = sandbox.after_failover(port(master));
    after.duly.push(Push::new("Echo", "[\"after\"]")).await.expect("pushes");
    let running = after.run(after.worker(&["Echo"]));
    let ran = after.until_ran(5 + JOBS + 1).await;
    assert!(ran.iter().any(|(runner, args)| runner == "rust" && *args == json!(["after"])));
    running.end().await;
}
