//! A list has one format: duly rejects queues in which one system would destroy the entries of another.

use std::time::Duration;

use duly::job::Due;
use duly::store::Node;
use duly::store::{Claim, JobStore};
use duly::{Duly, Push};

use super::sandbox::*;

/// More entries than one operation promotes.
const STUCK: usize = 2_500;

/// Opens the same server for items of Redis in Action.
async fn in_action(sandbox: &Sandbox) -> Duly {
    Duly::open(sandbox.store().replacen("sidekiq", "redis-in-action", 1)).await.expect("opens")
}

/// Asserts that a claim from this queue fails with this reason.
async fn assert_claim_fails(duly: &Duly, queue: &str, reason: &str) {
    let node = Node::fresh(vec![queue.into()]);
    let claim = Claim::new(queue, 1);
    let error = duly.store().claim(node.id, claim).await.expect_err("rejected");
    assert!(error.code() == "invalid" && error.to_string().contains(reason), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn items_of_redis_in_action_are_left_unchanged() {
    let sandbox = Sandbox::new().await;
    let other = in_action(&sandbox).await;
    other.push(Push::new("send", "[1]").queue("mail")).await.expect("pushes");
    let items = sandbox.redis(&["LRANGE", "queue:mail", "0", "-1"]);
    let error = sandbox.duly.push(Push::new("Echo", "[]").queue("mail")).await.expect_err("rejected");
    assert!(error.code() == "invalid" && error.to_string().contains("two formats"), "{error}");
    assert_claim_fails(&sandbox.duly, "mail", "two formats").await;

    // Due entries of that queue stay in the schedule, and do not block other queues.
    let entry = |n: usize| {
        format!(r#"{{"retry":true,"queue":"mail","class":"Echo","args":[{n}],"jid":"{n:024x}","created_at":1.5}}"#)
    };
    let mut stuck = vec!["ZADD".to_owned(), "schedule".into()];
    stuck.extend((0..STUCK).flat_map(|n| [format!("{n}.5"), entry(n)]));
    sandbox.redis(&stuck.iter().map(String::as_str).collect::<Vec<_>>());
    let later =
        sandbox.duly.push(Push::new("Echo", "[7]").after(Duration::from_secs(3600))).await.expect("pushes").id();
    sandbox.duly.worker().on_kind("Echo", |_| async { Ok::<(), std::io::Error>(()) }).drain().await.expect("drains");
    sandbox.duly.jobs().reschedule(later, Due::Now).await.expect("reschedules");
    let running = sandbox.run(sandbox.worker(&["Echo"]));
    sandbox.until_ran(1).await;
    running.end().await;
    assert_eq!(sandbox.redis(&["ZCARD", "schedule"]), [STUCK.to_string()]);
    assert_eq!(sandbox.redis(&["LRANGE", "queue:mail", "0", "-1"]), items, "nothing is changed");
}

#[tokio::test(flavor = "multi_thread")]
async fn python_items_behind_sidekiq_jobs_are_noticed() {
    let sandbox = Sandbox::new().await;
    sandbox.ruby("Echo.perform_async('ruby')");
    sandbox.redis(&["RPUSH", "queue:default", r#"["id", "default", "send", []]"#]);
    assert_claim_fails(&sandbox.duly, "default", "two formats").await;
    assert_eq!(sandbox.redis(&["LLEN", "queue:default"]), ["2"], "nothing is changed");
    // The queue works again once the item is removed.
    sandbox.redis(&["RPOP", "queue:default"]);
    let running = sandbox.run(sandbox.worker(&["Echo"]));
    sandbox.until_ran(1).await;
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_of_ruby_or_duly_reject_items() {
    let sandbox = Sandbox::new().await;
    sandbox.ruby("Echo.set(queue: 'ruby').perform_async('x')");
    sandbox.duly.push(Push::new("Echo", "[]").queue("rust")).await.expect("pushes");
    let other = in_action(&sandbox).await;
    for queue in ["ruby", "rust"] {
        let error = other.push(Push::new("send", "[1]").queue(queue)).await.expect_err("rejected");
        assert!(error.code() == "invalid" && error.to_string().contains("two formats"), "{error}");
        assert_claim_fails(&other, queue, "two formats").await;
        assert_eq!(sandbox.redis(&["LLEN", &format!("queue:{queue}")]), ["1"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn key_that_is_not_a_list_is_not_a_queue() {
    let sandbox = Sandbox::new().await;
    sandbox.redis(&["SET", "queue:scalar", "x"]);
    let error = sandbox.duly.push(Push::new("Echo", "[]").queue("scalar")).await.expect_err("rejected").to_string();
    assert!(error.contains("not a list"), "{error}");
    assert_claim_fails(&sandbox.duly, "scalar", "not a list").await;
    assert_eq!(sandbox.redis(&["GET", "queue:scalar"]), ["x"]);
}
