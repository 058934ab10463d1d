//! Jobs of kinds that not every node of a queue knows: whoever does not puts them off, whoever does need not wait for them.

use std::sync::Arc;
use std::time::Duration;

use duly::store::{Claim, End, Wake};
use duly::{Due, Held, Outcome, Priority, State};
use tokio_util::sync::CancellationToken;

use crate::support::*;

/// Claims for a node that knows these kinds alone.
async fn claim_known(store: &TestStore, name: &'static str, known: &[&str], max: usize) -> Vec<Held> {
    let kinds: Arc<[String]> = known.iter().map(|kind| (*kind).to_owned()).collect();
    store.ask(name, Claim { kinds: Some(kinds), ..claim(max) }).await.jobs
}

/// Puts off jobs that the node has claimed and does not know.
async fn put_off(store: &TestStore, name: &'static str, held: &[Held], after: Duration) {
    let end = |held| {
        let mut end = End::of(held, Outcome::release(after), KEEP);
        end.put_off = true;
        end
    };
    let node = store.node(name).await;
    let lost = store.store.settle(node, held.iter().map(end).collect()).await.expect("settles");
    assert_eq!(lost, nothing_lost());
}

/// One job of this kind, put off by a node that does not know it.
async fn one_put_off(store: &TestStore, kind: &str) -> Held {
    store.push(job(kind)).await;
    let held = claim_known(store, "a", &["mail"], 9).await;
    assert_eq!(kinds(&held), [kind]);
    put_off(store, "a", &held, 10 * SECOND).await;
    held.into_iter().next().expect("one")
}

pub async fn who_knows_a_kind_need_not_wait_for_what_others_put_off(store: TestStore) {
    let first = one_put_off(&store, "resize").await;
    assert_eq!(store.state(first.job.id).await, Some(State::Scheduled), "for others it waits");
    assert!(claim_known(&store, "a", &["mail"], 9).await.is_empty());
    assert!(claim_known(&store, "c", &["mail", "resize:small", "resiz"], 9).await.is_empty());

    let held = claim_known(&store, "b", &["mail", "resize"], 9).await;
    assert_eq!(kinds(&held), ["resize"]);
    assert_eq!((held[0].attempts, held[0].crashes), (0, 0), "it was not tried");
    assert!(held[0].fence > first.fence);
    assert_eq!(store.settle("b", &held[0], Outcome::Ack).await, nothing_lost());
    store.advance(20 * SECOND).await;
    assert!(claim_known(&store, "a", &["mail"], 9).await.is_empty(), "it does not come back");
    assert_eq!(store.prune().await, 0);
}

pub async fn what_is_put_off_falls_due_all_the_same(store: TestStore) {
    one_put_off(&store, "resize").await;
    store.advance(10 * SECOND).await;
    let again = claim_known(&store, "a", &["mail"], 9).await;
    assert_eq!(kinds(&again), ["resize"], "another version of the program may have come");
    put_off(&store, "a", &again, 10 * SECOND).await;
    assert_eq!(kinds(&claim_known(&store, "b", &["resize"], 9).await), ["resize"]);
    assert!(claim_known(&store, "b", &["resize"], 9).await.is_empty(), "once");
}

pub async fn who_runs_anything_takes_what_others_put_off(store: TestStore) {
    one_put_off(&store, "resize").await;
    assert_eq!(kinds(&store.claim("b", 9).await), ["resize"]);
}

pub async fn what_was_put_off_keeps_its_turn(store: TestStore) {
    let urgent = |kind: &str| job(kind).priority(Priority::High);
    store.push_all(vec![job("first"), job("second"), urgent("third")]).await;
    let held = claim_known(&store, "a", &["mail"], 9).await;
    assert_eq!(kinds(&held), ["third", "first", "second"]);
    put_off(&store, "a", &held, 10 * SECOND).await;
    // On a server a process hears with the answer to any claim that there is something to look for.
    assert!(claim_known(&store, "c", &["mail"], 1).await.is_empty());
    store.push_all(vec![job("first"), urgent("first")]).await;

    let known = ["second", "first", "third"];
    let mut order = Vec::new();
    for _ in 0..5 {
        order.extend(claim_known(&store, "b", &known, 1).await.into_iter().map(|held| held.job.kind));
    }
    let order: Vec<&str> = order.iter().map(String::as_str).collect();
    assert_eq!(order, ["third", "first", "first", "second", "first"], "by priority, then by age");
    assert!(claim_known(&store, "b", &known, 1).await.is_empty());
}

pub async fn a_retry_is_not_taken_for_put_off(store: TestStore) {
    one_put_off(&store, "resize").await;
    store.advance(10 * SECOND).await;
    // Falls due before anybody looks for it, and then fails.
    let held = store.ask("c", Claim { queue: "default".into(), ..claim(9) }).await.jobs;
    assert_eq!(store.settle("c", &held[0], Outcome::retry(30 * SECOND, "oh")).await, nothing_lost());
    store.advance(SECOND).await;
    assert!(claim_known(&store, "b", &["resize"], 9).await.is_empty(), "it waits as long as its retry says");
    store.advance(29 * SECOND).await;
    assert_eq!(kinds(&claim_known(&store, "b", &["resize"], 9).await), ["resize"]);
}

pub async fn what_is_moved_by_hand_is_not_taken_for_put_off(store: TestStore) {
    let held = one_put_off(&store, "resize").await;
    let due = store.get(held.job.id).await.expect("is there").due;
    store.store.reschedule(held.job.id, Due::At(due)).await.expect("moves");
    assert!(claim_known(&store, "b", &["resize"], 9).await.is_empty(), "to its moment, whichever that is");
    let other = one_put_off(&store, "resize").await;
    store.remove(other.job.id).await;
    assert!(claim_known(&store, "b", &["resize"], 9).await.is_empty());
    store.advance(10 * SECOND).await;
    assert_eq!(kinds(&claim_known(&store, "b", &["resize"], 9).await), ["resize"]);
}

pub async fn a_paused_queue_keeps_what_was_put_off(store: TestStore) {
    one_put_off(&store, "resize").await;
    store.store.pause("default", true).await.expect("pauses");
    assert!(claim_known(&store, "b", &["resize"], 9).await.is_empty());
    store.store.pause("default", false).await.expect("resumes");
    assert_eq!(kinds(&claim_known(&store, "b", &["resize"], 9).await), ["resize"]);
}

pub async fn who_waits_is_told_of_what_is_put_off(store: TestStore) {
    let b = store.node("b").await;
    let mut wakes = store.store.subscribe(b).await.expect("subscribes");
    store.push(job("resize")).await;
    let held = claim_known(&store, "a", &["mail"], 9).await;
    assert!(claim_known(&store, "b", &["resize"], 9).await.is_empty());
    put_off(&store, "a", &held, 10 * SECOND).await;
    let wake = tokio::time::timeout(LONG, wakes.recv()).await.expect("in time").expect("open");
    assert_eq!(wake, Wake::Queue("default".into()));
    assert_eq!(kinds(&claim_known(&store, "b", &["resize"], 9).await), ["resize"]);
}

pub async fn more_than_there_is_room_for_is_taken_in_turns(store: TestStore) {
    store.push_all((0..30).map(|_| job("resize")).collect()).await;
    let held = claim_known(&store, "a", &["mail"], 30).await;
    put_off(&store, "a", &held, 10 * SECOND).await;
    let mut taken = 0;
    for _ in 0..4 {
        taken += claim_known(&store, "b", &["resize"], 8).await.len();
    }
    assert_eq!(taken, 30);
}

/// No time goes by here: whatever were left to wait until it is due would wait for ever.
pub async fn programs_that_know_different_kinds_share_a_queue(store: TestStore) {
    const EACH: u64 = 100;
    let (done, mut ends) = tokio::sync::mpsc::unbounded_channel();
    let stop = CancellationToken::new();
    let program = |kind: &'static str, slots: usize| {
        let done = done.clone();
        let handler = move |_| {
            let done = done.clone();
            async move { done.send(kind).expect("waits") }
        };
        let worker = store.duly.worker().on_kind(kind, handler).concurrency(slots);
        tokio::spawn(worker.run_until(stop.clone()))
    };
    let programs = [program("mail", 10), program("resize", 1)];
    store.push_all((0..2 * EACH).map(|n| job(if n % 2 == 0 { "mail" } else { "resize" })).collect()).await;
    let mut seen = [0, 0];
    for _ in 0..2 * EACH {
        let kind = tokio::time::timeout(LONG, ends.recv()).await.expect("in time").expect("open");
        seen[usize::from(kind == "resize")] += 1;
    }
    assert_eq!(seen, [EACH, EACH]);
    stop.cancel();
    for program in programs {
        program.await.expect("no panic").expect("ends well");
    }
}

pub async fn what_nobody_can_read_is_not_handed_around(store: TestStore) {
    store.push(job("resize")).await;
    let mut held = store.claim_one("a").await;
    held.job.kind = "duly:unreadable".into();
    put_off(&store, "a", &[held], 10 * SECOND).await;
    assert!(store.claim("b", 9).await.is_empty(), "who runs anything does not run that either");
}
