//! A server with full memory: pushes are rejected, and existing jobs can be completed.

use std::time::Duration;

use duly::admin::{AuditEntry, AuditOutcome};
use duly::job::Due;
use duly::store::Node;
use duly::store::{AttemptEnd, Claim, JobStore};
use duly::{Duly, Error, Filter, Outcome, Push, State};

use crate::helpers::{error_chain, open};
use test_support::servers::{Binary, Options, Server};

const ARGS_BYTES: usize = 20_000;

fn large() -> Push {
    Push::new("large", format!("\"{}\"", "x".repeat(ARGS_BYTES))).keep(Duration::ZERO)
}

/// Returns a server with little memory, and its store filled with jobs.
async fn full(binary: Binary) -> (Server, Duly, Error) {
    let server = Options::durable(binary).start();
    let duly = open(server.url()).await;
    let used: usize = server.info(&["INFO", "memory"], "used_memory").trim().parse().expect("a number");
    server.send_command(&["CONFIG", "SET", "maxmemory", &(used + (8 << 20)).to_string()]);
    for _ in 0..10_000 {
        if let Err(error) = duly.push(large()).await {
            return (server, duly, error);
        }
    }
    panic!("8 MB hold 10,000 jobs of 20 kB");
}

async fn full_server_allows_claims_and_rejects_pushes(binary: Binary) {
    let (server, duly, error) = full(binary).await;
    assert!(matches!(error, Error::Store { .. }), "nothing was changed: {error:?}");
    assert!(error.to_string().contains("memory is full"), "{error}");
    for push in [large().after(Duration::from_secs(1)), large().unique("key")] {
        let error = duly.push(push).await.expect_err("is rejected too");
        assert!(error.to_string().contains("memory is full"), "{error}");
    }
    let ready = duly.jobs().list(Filter::all().state(State::Ready)).await.expect("lists").jobs;
    duly.jobs().remove(ready[0].job.id).await.expect("removes");
    duly.jobs().reschedule(ready[1].job.id, Due::Now).await.expect("moves");
    assert!(
        duly.queues().pause("default").await.expect("pauses")
            && duly.queues().resume("default").await.expect("resumes")
    );
    fill(&server);
    let other = open(":memory:").await;
    other.push(Push::new("large", "{}")).await.expect("pushes");
    let error = other.transfer_to(&duly).run().await.expect_err("is rejected as well");
    assert!(error.to_string().starts_with("transfer_in: "), "names the operation: {error}");
    let entry = AuditEntry::new("ada", "jobs.remove", AuditOutcome::Done);
    duly.audit().add(entry).await.expect("removes are recorded");
    settle_in_every_way(&duly).await;
    fill(&server);

    // A process that starts now, to work the jobs off.
    let fresh = open(server.url()).await;
    let ready_count = fresh.queues().counts().await.expect("counts")[0].ready;
    // Also in an unregistered queue.
    let worker = fresh.worker().queue("default", 10).queue("new", 1).on_kind("large", |_| async {});
    let summary = worker.drain().await;
    assert_eq!(summary.unwrap_or_else(|error| panic!("{}", error_chain(&error))).acked, ready_count);
    duly.push(large()).await.expect("there is room again");
}

/// Fills the remaining memory: the server frees and uses some on its own.
fn fill(server: &Server) {
    let piece = "x".repeat(50_000);
    let full = (0..1_000)
        .any(|_| server.try_send_command(&["APPEND", "filler", &piece]).expect("a reply").text().starts_with("OOM"));
    assert!(full, "50 MB fit into 8");
}

/// Heartbeat, claim, every outcome, prune, leave.
async fn settle_in_every_way(duly: &Duly) {
    let (store, node) = (duly.store(), Node::fresh(vec!["default".into()]));
    let claim = Claim::new("default", 4);
    store.heartbeat(&node).await.expect("sends a heartbeat");
    let jobs = store.claim(node.id, claim).await.expect("claims").jobs;
    let outcomes =
        [Outcome::Ack, Outcome::retry(Duration::ZERO, "oh"), Outcome::bury("oh"), Outcome::release(Duration::ZERO)];
    let attempt_ends =
        jobs.iter().zip(outcomes).map(|(held, outcome)| AttemptEnd::from_held(held, outcome, Duration::ZERO)).collect();
    assert!(store.settle(node.id, attempt_ends).await.expect("settles").is_empty());
    assert_eq!(store.prune("default", 0).await.expect("prunes"), 1, "the buried one is not kept");
    store.leave(node.id).await.expect("leaves");
}

#[tokio::test]
async fn full_redis_allows_claims_and_rejects_pushes() {
    full_server_allows_claims_and_rejects_pushes(Binary::Redis).await;
}

#[tokio::test]
async fn full_valkey_allows_claims_and_rejects_pushes() {
    full_server_allows_claims_and_rejects_pushes(Binary::Valkey).await;
}
