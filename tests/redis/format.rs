//! Queues whose format was changed by a newer duly: every operation is rejected and changes nothing.

use std::time::Duration;

use duly::job::Due;
use duly::store::{AttemptEnd, Claim, CronStore, JobStore, Node, TransferStore};
use duly::{Error, Filter, Outcome, Push};
use test_support::servers::{self, Reply, Server};

use crate::helpers::open;

/// Returns a digest of all queue keys and their contents.
const DIGEST: &str = "
local contents = {}
for _, key in ipairs(redis.call('KEYS', ARGV[1] .. ':queue:*')) do
  contents[#contents + 1] = key .. redis.call('DUMP', key)
end
table.sort(contents)
return redis.sha1hex(table.concat(contents))";

/// Checks the error of an operation on a queue of format 2.
fn check<T: std::fmt::Debug>(operation: &str, result: Result<T, Error>) {
    let error = result.expect_err(operation);
    assert!(matches!(error, Error::Store { .. }), "{operation}: {error:?}");
    let message = error.to_string();
    let is_explained = message.contains(
        ":queue:{default}:conf has format 2, but this build of duly supports formats up to 1; use a newer duly",
    );
    assert!(is_explained, "{operation}: {message}");
}

async fn every_operation_is_rejected(server: &Server) {
    let prefix = duly::JobId::fresh().to_string();
    let url = format!("{}?prefix={prefix}&lease=1h", server.url());
    let before = open(url.clone()).await;
    let (store, node) = (before.store(), Node::fresh(vec!["default".into()]));
    store.heartbeat(&node).await.expect("sends a heartbeat");
    let job = |n: usize| Push::new("ok", "{}").unique(format!("key {n}"));
    before.push_all((0..3).map(job)).await.expect("pushes");
    let claim = |suspect| Claim { suspect, ..Claim::new("default", 1) };
    let held = store.claim(node.id, claim(None)).await.expect("claims").jobs.remove(0);
    let conf = format!("{prefix}:queue:{{default}}:conf");
    server.send_command(&["HSET", &conf, "format", "2"]);

    // Another process, which has not used the queue yet.
    let duly = open(url).await;
    let (store, other) = (duly.store(), Node::fresh(vec!["default".into()]));
    let digest = || match server.send_command(&["EVAL", DIGEST, "0", &prefix]) {
        Reply::Text(digest) => digest,
        other => panic!("{other:?}"),
    };
    let unchanged = digest();
    check("push", duly.push(Push::new("ok", "{}")).await);
    check("push, scheduled", duly.push(Push::new("ok", "{}").after(Duration::from_secs(9))).await);
    check("push, unique", duly.push(job(7)).await);
    check("claim", store.claim(other.id, claim(None)).await);
    check("take back", store.claim(other.id, claim(Some(node.id))).await);
    check("claim of nothing", store.claim(other.id, Claim { max: 0, ..claim(None) }).await);
    check("heartbeat", store.heartbeat(&other).await);
    let end = |outcome| vec![AttemptEnd::from_held(&held, outcome, Duration::ZERO)];
    check("settle", store.settle(node.id, end(Outcome::Ack)).await);
    check("settle, released", store.settle(node.id, end(Outcome::release(Duration::ZERO))).await);
    check("get", duly.jobs().get(held.job.id).await);
    check("remove", store.remove(held.job.id).await);
    check("reschedule", store.reschedule(held.job.id, Due::Now).await);
    check("list", store.list(Filter::default()).await);
    check("counts", duly.queues().counts().await);
    check("set_paused", store.set_paused("default", true).await);
    check("prune", store.prune("default", 0).await);
    check("crons", store.crons(Some("default"), None).await);
    check("transfer mark", store.set_transfer_mark("default", other.id, Some("elsewhere")).await);
    assert_eq!(digest(), unchanged);

    server.send_command(&["HSET", &conf, "format", "1"]);
    assert_eq!(store.settle(node.id, end(Outcome::Ack)).await.expect("settles"), []);
    server.send_command(&["HDEL", &conf, "format"]);
    duly.push(Push::new("ok", "{}")).await.expect("a queue without the field has format 1");
}

#[tokio::test]
async fn operations_on_a_queue_with_a_newer_format_are_rejected_on_redis() {
    every_operation_is_rejected(servers::redis()).await;
}

#[tokio::test]
async fn operations_on_a_queue_with_a_newer_format_are_rejected_on_valkey() {
    every_operation_is_rejected(servers::valkey()).await;
}

/// Includes a push to keys of another system.
#[cfg(feature = "compat")]
#[tokio::test]
async fn sidekiq_queue_with_a_newer_format_is_rejected() {
    let server = servers::Options::durable(servers::Binary::Redis).start();
    let duly = duly::Duly::open(server.url().replacen("redis://", "sidekiq://", 1)).await.expect("opens");
    server.send_command(&["HSET", "duly:sidekiq:queue:{default}:conf", "format", "2"]);
    check("push", duly.push(Push::new("Echo", "[]")).await);
    let claim = Claim::new("default", 1);
    check("claim", duly.store().claim(Node::fresh(vec!["default".into()]).id, claim).await);
    check("counts", duly.queues().counts().await);
    assert_eq!(server.send_command(&["EXISTS", "queue:default"]).text(), "0");
}
