//! A server whose memory is full: nothing new comes in, and what is there goes out.

use std::time::Duration;

use duly::store::{AttemptEnd, Claim};
use duly::{Due, Duly, Error, Filter, Node, Outcome, Push, State};

use crate::helpers::{durable, open, whole};
use test_support::servers::{Binary, Server};

const ARGS_BYTES: usize = 20_000;

fn large() -> Push {
    Push::new("large", format!("\"{}\"", "x".repeat(ARGS_BYTES))).keep(Duration::ZERO)
}

/// A server with a little room, and its store with jobs until there is none.
async fn full(binary: Binary) -> (Server, Duly, Error) {
    let server = durable(binary).start();
    let duly = open(server.url()).await;
    let used: usize = server.info(&["INFO", "memory"], "used_memory").trim().parse().expect("a number");
    server.ask(&["CONFIG", "SET", "maxmemory", &(used + (8 << 20)).to_string()]);
    for _ in 0..10_000 {
        if let Err(error) = duly.push(large()).await {
            return (server, duly, error);
        }
    }
    panic!("8 MB hold 10,000 jobs of 20 kB");
}

async fn a_full_server_lets_out_and_nothing_in(binary: Binary) {
    let (server, duly, error) = full(binary).await;
    assert!(matches!(error, Error::Store { .. }), "nothing was changed: {error:?}");
    assert!(error.to_string().contains("memory is full"), "{error}");
    for push in [large().after(Duration::from_secs(1)), large().unique("key")] {
        let error = duly.push(push).await.expect_err("is refused too");
        assert!(error.to_string().contains("memory is full"), "{error}");
    }
    let ready = duly.list(Filter { state: Some(State::Ready), ..Filter::default() }).await.expect("lists").jobs;
    duly.remove(ready[0].job.id).await.expect("removes");
    duly.reschedule(ready[1].job.id, Due::Now).await.expect("moves");
    assert!(duly.pause_queue("default").await.expect("pauses") && duly.resume_queue("default").await.expect("resumes"));
    fill(&server);
    let other = open(":memory:").await;
    other.push(Push::new("large", "{}")).await.expect("pushes");
    let error = other.transfer_to(&duly).run().await.expect_err("is refused as well");
    assert!(error.to_string().starts_with("move_in: "), "says what was refused: {error}");
    one_by_hand(&duly).await;
    fill(&server);

    // A process that starts now, as one does to get the work done.
    let fresh = open(server.url()).await;
    let left = fresh.counts().await.expect("counts")[0].ready;
    // Also in a queue that nobody has heard of.
    let worker = fresh.worker().queue("default", 10).queue("new", 1).on_kind("large", |_| async {});
    let tally = worker.drain().await;
    assert_eq!(tally.unwrap_or_else(|why| panic!("{}", whole(&why))).acked, left);
    duly.push(large()).await.expect("there is room again");
}

/// Takes what room there is: the server frees and uses some by itself.
fn fill(server: &Server) {
    let piece = "x".repeat(50_000);
    let full =
        (0..1_000).any(|_| server.try_ask(&["APPEND", "filler", &piece]).expect("answers").text().starts_with("OOM"));
    assert!(full, "50 MB fit into 8");
}

/// Beat, claim, every outcome, prune, leave.
async fn one_by_hand(duly: &Duly) {
    let (store, node) = (duly.store(), Node::fresh(vec!["default".into()]));
    let claim = Claim { queue: "default".into(), max: 4, resync: false, suspect: None, kinds: None };
    store.heartbeat(&node).await.expect("beats");
    let jobs = store.claim(node.id, claim).await.expect("claims").jobs;
    let outcomes =
        [Outcome::Ack, Outcome::retry(Duration::ZERO, "oh"), Outcome::bury("oh"), Outcome::release(Duration::ZERO)];
    let ends =
        jobs.iter().zip(outcomes).map(|(held, outcome)| AttemptEnd::from_held(held, outcome, Duration::ZERO)).collect();
    assert!(store.settle(node.id, ends).await.expect("settles").is_empty());
    assert_eq!(store.prune("default", 0).await.expect("prunes"), 1, "the buried one is not kept");
    store.leave(node.id).await.expect("leaves");
}

#[tokio::test]
async fn full_redis_allows_claims_and_rejects_pushes() {
    a_full_server_lets_out_and_nothing_in(Binary::Redis).await;
}

#[tokio::test]
async fn full_valkey_allows_claims_and_rejects_pushes() {
    a_full_server_lets_out_and_nothing_in(Binary::Valkey).await;
}
