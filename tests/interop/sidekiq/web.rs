//! duly workers in Sidekiq's process API, and the signals that it sends them.

use std::sync::Arc;
use std::time::Duration;

use duly::Ctx;
use serde_json::json;
use tokio::sync::Notify;

use super::sandbox::*;

#[tokio::test(flavor = "multi_thread")]
async fn worker_is_listed_and_obeys_quiet_and_stop() {
    let sandbox = Sandbox::new().await;
    let (started, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (notify, wait) = (started.clone(), go.clone());
    let worker = sandbox.duly.worker().queue("default", 7).queue("low", 2).on_kind("Echo", move |_: Ctx| {
        let (notify, wait) = (notify.clone(), wait.clone());
        async move {
            notify.notify_one();
            wait.notified().await;
        }
    });
    let running = sandbox.run(worker);
    sandbox.ruby("Echo.perform_async(1)");
    started.notified().await;
    test_support::until("it is shown", async || sandbox.ruby("Ask.work.size") == json!(1)).await;
    let process = sandbox
        .ruby("Sidekiq::ProcessSet.new.map { |p| [p['concurrency'], p['queues'], p['busy'], p['tag'], p.stopping?] }");
    assert_eq!(process, json!([[9, ["default", "low"], 1, "duly", false]]));
    assert_eq!(sandbox.ruby("Ask.work"), json!([["default", [1], true]]));
    assert_eq!(sandbox.redis(&["KEYS", "*:work"]).len(), 1, "the new name of the key is written too");

    sandbox.ruby("Sidekiq::ProcessSet.new.each(&:quiet!)");
    test_support::until("it is quiet", async || {
        sandbox.ruby("Sidekiq::ProcessSet.new.map(&:stopping?)") == json!([true])
    })
    .await;
    sandbox.ruby("Echo.perform_async(2)");
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(sandbox.redis(&["LLEN", "queue:default"]), ["1"], "a quiet worker claims no more");

    sandbox.ruby("Sidekiq::ProcessSet.new.each(&:stop!)");
    go.notify_one();
    let summary =
        tokio::time::timeout(LONG, running.task).await.expect("it stops").expect("no panic").expect("ends well");
    assert_eq!(summary.acked, 1);
    assert_eq!(sandbox.ruby("[Sidekiq::ProcessSet.new.size, Ask.work.size]"), json!([0, 0]));
}
