//! Jobs of kinds that not every node of a queue knows: whoever does not puts them off, whoever does need not wait for them.

use std::sync::Arc;
use std::time::Duration;

use duly::store::{AttemptEnd, CLAIM_MAX, Claim, DEFERRED_HINTS_MAX, Wake};
use duly::{Due, HeldJob, Outcome, Priority, Push, State};
use tokio_util::sync::CancellationToken;

use crate::test_store::*;

/// Claims for a node that knows these kinds alone.
async fn claim_known(store: &TestStore, name: &'static str, known: &[&str], max: usize) -> Vec<HeldJob> {
    let kinds: Arc<[String]> = known.iter().map(|kind| (*kind).to_owned()).collect();
    store.ask(name, Claim { kinds: Some(kinds), ..claim(max) }).await.jobs
}

/// Puts off jobs that the node has claimed and does not know.
async fn put_off(store: &TestStore, name: &'static str, held: &[HeldJob], after: Duration) {
    let end = |held| {
        let mut end = AttemptEnd::from_held(held, Outcome::release(after), KEEP);
        end.deferred = true;
        end
    };
    let node = store.node(name).await;
    let lost = store.store.settle(node, held.iter().map(end).collect()).await.expect("settles");
    assert_eq!(lost, nothing_lost());
}

/// One job of this kind, put off by a node that does not know it.
async fn one_put_off(store: &TestStore, kind: &str) -> HeldJob {
    store.push(job(kind)).await;
    let held = claim_known(store, "a", &["mail"], 9).await;
    assert_eq!(kinds(&held), [kind]);
    put_off(store, "a", &held, 10 * SECOND).await;
    held.into_iter().next().expect("one")
}

pub async fn node_with_handler_adopts_deferred_job_early(store: TestStore) {
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
}

pub async fn adopted_job_is_due_when_adopted(store: TestStore) {
    one_put_off(&store, "resize").await;
    store.advance(SECOND).await;
    let held = claim_known(&store, "b", &["resize"], 9).await;
    let record = store.get(held[0].job.id).await.expect("is there");
    assert_eq!((held[0].due, record.due), (store.now(), store.now()), "not at one that is to come");
}

pub async fn kind_listed_twice_yields_a_deferred_job_once(store: TestStore) {
    one_put_off(&store, "resize").await;
    assert_eq!(claim_known(&store, "b", &["resize", "resize"], 9).await.len(), 1);
    assert_eq!(store.beat("b").await.held, [("default".to_owned(), 1)]);
    assert!(store.claim("c", 9).await.is_empty());
}

pub async fn adopted_job_of_dead_node_is_taken_back(store: TestStore) {
    one_put_off(&store, "resize").await;
    store.node("c").await;
    assert_eq!(claim_known(&store, "b", &["resize"], 9).await.len(), 1);
    store.silence("b");
    store.advance(past_the_lease() + SECOND).await;
    let again = store.claim_from("c", "b", 9).await.jobs;
    assert_eq!((again.len(), again[0].crashes, again[0].attempts), (1, 1, 0));
}

pub async fn job_released_for_another_reason_is_not_adopted(store: TestStore) {
    store.push(job("resize")).await;
    let held = store.claim_one("a").await;
    store.settle("a", &held, Outcome::release(10 * SECOND)).await;
    assert!(claim_known(&store, "b", &["resize"], 9).await.is_empty(), "its handler wants it so");
}

pub async fn jobs_deferred_in_two_queues_are_found_in_both(store: TestStore) {
    store.push_all(vec![job("resize"), job("resize").queue("other")]).await;
    let of = |queue: &str| Claim { queue: queue.into(), kinds: Some(["resize".to_owned()].into()), ..claim(9) };
    let mut held = store.claim("a", 9).await;
    held.extend(store.ask("a", of("other")).await.jobs);
    put_off(&store, "a", &held, 10 * SECOND).await;
    for queue in ["default", "other"] {
        assert_eq!(kinds(&store.ask("b", of(queue)).await.jobs), ["resize"], "{queue}");
    }
}

pub async fn urgent_jobs_precede_deferred_jobs(store: TestStore) {
    let urgent = |kind: &str| job(kind).priority(Priority::Critical);
    store.push(urgent("due").after(5 * SECOND)).await;
    one_put_off(&store, "resize").await;
    // A process hears with the answer to any claim that there is something to look for.
    assert!(claim_known(&store, "c", &["mail"], 1).await.is_empty());
    store.push(urgent("ready")).await;
    store.advance(5 * SECOND).await;
    let known = ["resize", "ready", "due"];
    let mut order = Vec::new();
    for _ in 0..3 {
        order.extend(claim_known(&store, "b", &known, 1).await.into_iter().map(|held| held.job.kind));
    }
    assert_eq!(order, ["ready", "due", "resize"]);
}

pub async fn deferred_hint_arrives_with_next_heartbeat_if_not_notified(store: TestStore) {
    const NAMES: [&str; 20] = [
        "n01", "n02", "n03", "n04", "n05", "n06", "n07", "n08", "n09", "n10", "n11", "n12", "n13", "n14", "n15", "n16",
        "n17", "n18", "n19", "n20",
    ];
    store.push(job("resize")).await;
    let held = claim_known(&store, "a", &["mail"], 9).await;
    for name in NAMES {
        assert!(claim_known(&store, name, &["mail"], 9).await.is_empty());
    }
    put_off(&store, "a", &held, 10 * SECOND).await;
    assert_eq!(store.beat("b").await.queues_to_check, ["default"]);
    assert_eq!(kinds(&claim_known(&store, "b", &["resize"], 9).await), ["resize"]);
}

pub async fn deferred_jobs_beyond_the_limit_wait_until_due(store: TestStore) {
    let jobs = DEFERRED_HINTS_MAX + 1;
    for some in (0..jobs).collect::<Vec<_>>().chunks(CLAIM_MAX) {
        store.push_all(some.iter().map(|_| Push::new("resize", "{}").keep(Duration::ZERO)).collect()).await;
        let held = claim_known(&store, "a", &["mail"], some.len()).await;
        assert_eq!(held.len(), some.len());
        put_off(&store, "a", &held, 10 * SECOND).await;
    }
    let mut taken = claim_known(&store, "b", &["resize"], CLAIM_MAX).await.len();
    assert!(taken > 0, "some are hinted at, after all were forgotten");
    store.advance(10 * SECOND).await;
    loop {
        match claim_known(&store, "b", &["resize"], CLAIM_MAX).await.len() {
            0 => break,
            some => taken += some,
        }
    }
    assert_eq!(taken, jobs, "none is lost");
}

pub async fn deferred_job_still_falls_due(store: TestStore) {
    one_put_off(&store, "resize").await;
    store.advance(10 * SECOND).await;
    let again = claim_known(&store, "a", &["mail"], 9).await;
    assert_eq!(kinds(&again), ["resize"], "another version of the program may have come");
    put_off(&store, "a", &again, 10 * SECOND).await;
    assert_eq!(kinds(&claim_known(&store, "b", &["resize"], 9).await), ["resize"]);
    assert!(claim_known(&store, "b", &["resize"], 9).await.is_empty(), "once");
}

pub async fn node_that_runs_any_kind_adopts_deferred_jobs(store: TestStore) {
    one_put_off(&store, "resize").await;
    assert_eq!(kinds(&store.claim("b", 9).await), ["resize"]);
}

pub async fn adopted_job_keeps_its_position(store: TestStore) {
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

pub async fn retry_is_not_treated_as_deferred(store: TestStore) {
    one_put_off(&store, "resize").await;
    store.advance(10 * SECOND).await;
    // Falls due before anybody looks for it, and then fails.
    let held = claim_known(&store, "c", &["mail"], 9).await;
    assert_eq!(store.settle("c", &held[0], Outcome::retry(30 * SECOND, "oh")).await, nothing_lost());
    store.advance(SECOND).await;
    assert!(claim_known(&store, "b", &["resize"], 9).await.is_empty(), "it waits as long as its retry says");
    store.advance(29 * SECOND).await;
    assert_eq!(kinds(&claim_known(&store, "b", &["resize"], 9).await), ["resize"]);
}

pub async fn rescheduled_job_is_not_treated_as_deferred(store: TestStore) {
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

pub async fn paused_queue_keeps_deferred_jobs(store: TestStore) {
    one_put_off(&store, "resize").await;
    store.store.set_paused("default", true).await.expect("pauses");
    assert!(claim_known(&store, "b", &["resize"], 9).await.is_empty());
    store.store.set_paused("default", false).await.expect("resumes");
    assert_eq!(kinds(&claim_known(&store, "b", &["resize"], 9).await), ["resize"]);
}

pub async fn waiting_node_is_notified_of_deferred_jobs(store: TestStore) {
    let subscribe = async |name| store.store.subscribe_wakes(store.node(name).await).await.expect("subscribes");
    // Whoever wakes the first that waits wakes another.
    let (_a, _c, mut b) = (subscribe("a").await, subscribe("c").await, subscribe("b").await);
    store.push(job("resize")).await;
    let held = claim_known(&store, "a", &["mail"], 9).await;
    assert!(claim_known(&store, "c", &["mail"], 9).await.is_empty());
    assert!(claim_known(&store, "b", &["resize"], 9).await.is_empty());
    put_off(&store, "a", &held, 10 * SECOND).await;
    let wake = tokio::time::timeout(LONG, b.recv()).await.expect("in time").expect("open");
    assert_eq!(wake, Wake::Queue("default".into()));
    assert_eq!(kinds(&claim_known(&store, "b", &["resize"], 9).await), ["resize"]);
}

pub async fn more_deferred_jobs_than_slots_are_adopted_in_batches(store: TestStore) {
    store.push_all((0..30).map(|_| job("resize")).collect()).await;
    let held = claim_known(&store, "a", &["mail"], 30).await;
    put_off(&store, "a", &held, 10 * SECOND).await;
    // Of so many kinds only a few hints of each are looked at in one step.
    let known: Arc<[String]> = (0..400).map(|n| format!("kind{n}")).chain(["resize".to_owned()]).collect();
    let mut taken = 0;
    while taken < 30 {
        let claimed = store.ask("b", Claim { kinds: Some(known.clone()), ..claim(8) }).await;
        taken += claimed.jobs.len();
        assert!((1..=8).contains(&claimed.jobs.len()) && (claimed.has_more || taken == 30), "{taken} and no more");
    }
    assert!(claim_known(&store, "b", &["resize"], 8).await.is_empty());
}

/// No time goes by here: whatever were left to wait until it is due would wait for ever.
pub async fn nodes_with_different_kinds_share_a_queue(store: TestStore) {
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
    let all = async {
        for _ in 0..2 * EACH {
            seen[usize::from(ends.recv().await.expect("open") == "resize")] += 1;
        }
    };
    tokio::time::timeout(LONG, all).await.expect("without waiting for a beat each time");
    assert_eq!(seen, [EACH, EACH]);
    stop.cancel();
    for program in programs {
        program.await.expect("no panic").expect("ends well");
    }
}

pub async fn unreadable_job_is_not_passed_between_nodes(store: TestStore) {
    store.push(job("resize")).await;
    let mut held = store.claim_one("a").await;
    held.job.kind = "duly:unreadable".into();
    put_off(&store, "a", &[held], 10 * SECOND).await;
    assert!(store.claim("b", 9).await.is_empty(), "who runs anything does not run that either");
}
