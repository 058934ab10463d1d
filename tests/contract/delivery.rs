//! Delivery: a push may hand its job directly to an idle node. A store may also only wake the node, which then claims.

use duly::admin::Capacity;
use duly::job::HeldJob;
use duly::store::{AdminStore, Claim, HistoryQuery, JobStore, StatsStore, Wake};
use duly::{Error, Outcome, Priority, Push, State};
use tokio::sync::mpsc::Receiver;

use crate::test_store::*;

/// An idle node that accepts deliveries and has run one job, so pushing clients know of it.
async fn idle_node(store: &TestStore, name: &'static str) -> Receiver<Wake> {
    idle_node_for(store, name, None).await
}

/// The same for a node with handlers for these kinds only.
async fn idle_node_for(store: &TestStore, name: &'static str, kinds: Option<&[&str]>) -> Receiver<Wake> {
    let node = store.node(name).await;
    let mut wakes = store.store.subscribe_wakes(node).await.expect("subscribes");
    let kinds = kinds.map(|kinds| kinds.iter().map(|kind| (*kind).to_owned()).collect());
    store.store.accept_deliveries(node, kinds).await.expect("accepts");
    assert!(store.claim(name, 1).await.is_empty());
    store.push(job("first")).await;
    let first = receive_job(store, name, &mut wakes).await;
    assert!(store.settle(name, &first, Outcome::Ack).await.is_empty());
    assert!(store.claim(name, 1).await.is_empty());
    wakes
}

/// Returns the job that the node was delivered or has to claim.
async fn receive_job(store: &TestStore, name: &'static str, wakes: &mut Receiver<Wake>) -> HeldJob {
    match tokio::time::timeout(TIMEOUT, wakes.recv()).await.expect("in time").expect("open") {
        Wake::Job(held) => *held,
        _ => store.claim_one(name).await,
    }
}

fn resync() -> Claim {
    Claim { resync: true, ..claim(0) }
}

pub async fn delivered_job_is_held_as_if_claimed(store: TestStore) {
    let mut wakes = idle_node(&store, "a").await;
    let id = store.push(job("one").priority(Priority::Critical)).await.id();
    let held = receive_job(&store, "a", &mut wakes).await;
    assert_eq!((held.job.id, held.job.kind.as_str(), held.attempts, held.crashes), (id, "one", 0, 0));
    assert_eq!(store.state(id).await, Some(State::Running));
    assert!(store.claim("b", 10).await.is_empty(), "no other node gets it");
    let reply = store.heartbeat("a").await;
    assert_eq!(reply.held, [("default".to_owned(), 1)]);
    assert_eq!(store.settle("b", &held, Outcome::Ack).await, [id], "only its holder settles it");
    assert_eq!(store.settle("a", &held, Outcome::Ack).await, nothing_lost());
    assert_eq!(store.settle("a", &held, Outcome::Ack).await, [id], "once");
    assert_eq!(store.state(id).await, Some(State::Done));
}

pub async fn fences_grow_across_deliveries_and_claims(store: TestStore) {
    let mut wakes = idle_node(&store, "a").await;
    let mut last = None;
    for round in 0..6 {
        let id = store.push(job("one")).await.id();
        let held = receive_job(&store, "a", &mut wakes).await;
        assert!(last < Some(held.fence), "round {round}");
        assert!(store.settle("a", &held, release()).await.is_empty());
        while wakes.try_recv().is_ok() {}
        let again = store.claim_one("a").await;
        assert_eq!(again.job.id, id);
        assert!(again.fence > held.fence, "round {round}");
        last = Some(again.fence);
        assert!(store.settle("a", &again, Outcome::Ack).await.is_empty());
        assert!(store.claim("a", 1).await.is_empty());
    }
}

pub async fn node_is_delivered_one_job_per_claim(store: TestStore) {
    let mut wakes = idle_node(&store, "a").await;
    let one = store.push(job("one")).await.id();
    let two = store.push(job("two")).await.id();
    assert_eq!(receive_job(&store, "a", &mut wakes).await.job.id, one);
    assert_eq!(store.state(two).await, Some(State::Ready));
    assert_eq!(store.claim_one("a").await.job.id, two);
}

pub async fn delivered_job_is_found_after_lost_notification(store: TestStore) {
    let mut wakes = idle_node(&store, "a").await;
    let id = store.push(job("one")).await.id();
    let held = receive_job(&store, "a", &mut wakes).await;
    // The node acts as if the delivery had been lost.
    assert_eq!(store.heartbeat("a").await.held, [("default".to_owned(), 1)]);
    let found = store.claim_with("a", resync()).await.jobs;
    assert_eq!(found.iter().map(|held| (held.job.id, held.fence)).collect::<Vec<_>>(), [(id, held.fence)]);
    assert_eq!(store.settle("a", &found[0], Outcome::Ack).await, nothing_lost());
}

pub async fn job_delivered_to_dead_node_is_taken_back(store: TestStore) {
    let mut wakes = idle_node(&store, "a").await;
    store.node("b").await;
    let id = store.push(job("one")).await.id();
    let held = receive_job(&store, "a", &mut wakes).await;
    store.silence("a");
    store.advance(past_the_lease()).await;
    let taken = store.claim_from("b", "a", 10).await.jobs;
    assert_eq!((taken[0].job.id, taken[0].crashes), (id, 1));
    assert!(taken[0].fence > held.fence);
    assert_eq!(store.settle("a", &held, Outcome::Ack).await, [id], "too late");
}

pub async fn paused_queue_delivers_nothing(store: TestStore) {
    let _wakes = idle_node(&store, "a").await;
    store.store.set_paused("default", true).await.expect("pauses");
    let id = store.push(job("one")).await.id();
    assert_eq!(store.state(id).await, Some(State::Ready));
}

pub async fn node_with_expired_lease_is_delivered_nothing(store: TestStore) {
    let _wakes = idle_node(&store, "a").await;
    store.silence("a");
    store.sleep(past_the_lease());
    let id = store.push(job("one")).await.id();
    assert_eq!(store.state(id).await, Some(State::Ready));
}

pub async fn job_of_unknown_kind_is_not_delivered(store: TestStore) {
    let mut wakes = idle_node_for(&store, "a", Some(&["first", "known"])).await;
    let id = store.push(job("unknown")).await.id();
    assert_eq!(store.state(id).await, Some(State::Ready));
    let wake = tokio::time::timeout(TIMEOUT, wakes.recv()).await.expect("in time").expect("open");
    assert_eq!(wake, Wake::Queue("default".into()), "the node is woken instead");
    assert_eq!(store.claim_one("a").await.job.id, id);
    assert!(store.claim("a", 1).await.is_empty());
    let known = store.push(job("known")).await.id();
    assert_eq!(receive_job(&store, "a", &mut wakes).await.job.id, known);
}

pub async fn delivered_job_is_counted_like_any_other(store: TestStore) {
    let mut wakes = idle_node(&store, "a").await;
    let pushed = async || store.store.history(HistoryQuery::last_minutes(1)).await.expect("reads").total().pushed;
    let before = pushed().await;
    store.push(Push::new("one", format!("\"{}\"", "x".repeat(98)))).await;
    assert_eq!(pushed().await, before + 1);
    let counts = store.store.counts().await.expect("reads");
    assert_eq!((counts[0].running + counts[0].ready, counts[0].bytes), (1, 100));
    let held = receive_job(&store, "a", &mut wakes).await;
    assert!(store.settle("a", &held, Outcome::Ack).await.is_empty());
    assert_eq!(store.store.counts().await.expect("reads")[0].bytes, 0);
}

pub async fn push_into_full_queue_delivers_nothing(store: TestStore) {
    let mut wakes = idle_node(&store, "a").await;
    store.store.set_capacity("default", Capacity::unlimited().jobs(1).bytes(50)).await.expect("sets");
    let too_big = store.store.push(vec![Push::new("big", format!("\"{}\"", "x".repeat(49)))]).await;
    assert!(matches!(too_big, Err(Error::Full { .. })), "{too_big:?}");
    store.push(job("one")).await;
    let held = receive_job(&store, "a", &mut wakes).await;
    assert!(store.claim("a", 1).await.is_empty());
    let too_many = store.store.push(vec![job("two")]).await;
    assert!(matches!(too_many, Err(Error::Full { .. })), "{too_many:?}");
    while let Ok(wake) = wakes.try_recv() {
        assert!(!matches!(wake, Wake::Job(_)), "a rejected job is not delivered: {wake:?}");
    }
    assert!(store.settle("a", &held, Outcome::Ack).await.is_empty());
    assert!(store.claim("a", 1).await.is_empty());
    let two = store.push(job("two")).await.id();
    assert_eq!(receive_job(&store, "a", &mut wakes).await.job.id, two);
}

pub async fn delivery_does_not_overtake_due_jobs(store: TestStore) {
    let _wakes = idle_node(&store, "a").await;
    let first = store.push(job("due").after(SECOND).priority(Priority::Critical)).await.id();
    store.advance(2 * SECOND).await;
    let second = store.push(job("now")).await.id();
    let held = store.claim("a", 2).await;
    assert_eq!(held.iter().map(|held| held.job.id).collect::<Vec<_>>(), [first, second]);
}
