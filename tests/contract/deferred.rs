//! Deferred jobs: a node without a handler defers them, and a node with one adopts them early.

use std::sync::Arc;
use std::time::Duration;

use duly::job::{Due, HeldJob};
use duly::store::{AttemptEnd, CLAIM_MAX, Claim, DEFERRED_HINTS_MAX, JobStore, Wake};
use duly::{Outcome, Priority, Push, State};
use tokio_util::sync::CancellationToken;

use crate::test_store::*;

/// Claims for a node with handlers for these kinds only.
async fn claim_kinds(store: &TestStore, name: &'static str, handled: &[&str], max: usize) -> Vec<HeldJob> {
    let kinds: Arc<[String]> = handled.iter().map(|kind| (*kind).to_owned()).collect();
    store.claim_with(name, Claim { kinds: Some(kinds), ..claim(max) }).await.jobs
}

/// Defers jobs that the node has claimed without a handler.
async fn defer(store: &TestStore, name: &'static str, held: &[HeldJob], after: Duration) {
    let end = |held| {
        let mut end = AttemptEnd::from_held(held, Outcome::release(after), KEEP);
        end.deferred = true;
        end
    };
    let node = store.node(name).await;
    let lost = store.store.settle(node, held.iter().map(end).collect()).await.expect("settles");
    assert_eq!(lost, nothing_lost());
}

/// Pushes a job of this kind and defers it on a node without a handler.
async fn push_deferred(store: &TestStore, kind: &str) -> HeldJob {
    store.push(job(kind)).await;
    let held = claim_kinds(store, "a", &["mail"], 9).await;
    assert_eq!(kinds(&held), [kind]);
    defer(store, "a", &held, 10 * SECOND).await;
    held.into_iter().next().expect("one")
}

pub async fn node_with_handler_adopts_deferred_job_early(store: TestStore) {
    let first = push_deferred(&store, "resize").await;
    assert_eq!(store.state(first.job.id).await, Some(State::Scheduled), "scheduled for other nodes");
    assert!(claim_kinds(&store, "a", &["mail"], 9).await.is_empty());
    assert!(claim_kinds(&store, "c", &["mail", "resize:small", "resiz"], 9).await.is_empty());

    let held = claim_kinds(&store, "b", &["mail", "resize"], 9).await;
    assert_eq!(kinds(&held), ["resize"]);
    assert_eq!((held[0].attempts, held[0].crashes), (0, 0), "deferring counts no attempt");
    assert!(held[0].fence > first.fence);
    assert_eq!(store.settle("b", &held[0], Outcome::Ack).await, nothing_lost());
    store.advance(20 * SECOND).await;
    assert!(claim_kinds(&store, "a", &["mail"], 9).await.is_empty(), "it is claimed once");
}

/// More kinds than a script can pass to one command.
pub async fn node_with_thousands_of_kinds_adopts_deferred_jobs(store: TestStore) {
    push_deferred(&store, "resize").await;
    store.push(job("later").after(MS)).await;
    store.advance(SECOND).await;
    let many: Vec<String> = (0..9_000).map(|n| format!("kind-{n}")).chain(["resize".to_owned()]).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let mut held = claim_kinds(&store, "b", &many, 9).await;
    held.extend(claim_kinds(&store, "b", &many, 9).await);
    let mut claimed = kinds(&held);
    claimed.sort_unstable();
    assert_eq!(claimed, ["later", "resize"]);
}

pub async fn adopted_job_is_due_when_adopted(store: TestStore) {
    push_deferred(&store, "resize").await;
    store.advance(SECOND).await;
    let held = claim_kinds(&store, "b", &["resize"], 9).await;
    let record = store.get(held[0].job.id).await.expect("is there");
    assert_eq!((held[0].due, record.due), (store.now(), store.now()), "not at the deferred time");
}

pub async fn kind_listed_twice_yields_a_deferred_job_once(store: TestStore) {
    push_deferred(&store, "resize").await;
    assert_eq!(claim_kinds(&store, "b", &["resize", "resize"], 9).await.len(), 1);
    assert_eq!(store.heartbeat("b").await.held, [("default".to_owned(), 1)]);
    assert!(store.claim("c", 9).await.is_empty());
}

pub async fn adopted_job_of_dead_node_is_taken_back(store: TestStore) {
    push_deferred(&store, "resize").await;
    store.node("c").await;
    assert_eq!(claim_kinds(&store, "b", &["resize"], 9).await.len(), 1);
    store.silence("b");
    store.advance(past_the_lease() + SECOND).await;
    let again = store.claim_from("c", "b", 9).await.jobs;
    assert_eq!((again.len(), again[0].crashes, again[0].attempts), (1, 1, 0));
}

pub async fn job_released_for_another_reason_is_not_adopted(store: TestStore) {
    store.push(job("resize")).await;
    let held = store.claim_one("a").await;
    store.settle("a", &held, Outcome::release(10 * SECOND)).await;
    assert!(claim_kinds(&store, "b", &["resize"], 9).await.is_empty(), "its handler chose this time");
}

pub async fn jobs_deferred_in_two_queues_are_found_in_both(store: TestStore) {
    store.push_all(vec![job("resize"), job("resize").queue("other")]).await;
    let claim_of = |queue: &str| Claim { queue: queue.into(), kinds: Some(["resize".to_owned()].into()), ..claim(9) };
    let mut held = store.claim("a", 9).await;
    held.extend(store.claim_with("a", claim_of("other")).await.jobs);
    defer(&store, "a", &held, 10 * SECOND).await;
    for queue in ["default", "other"] {
        assert_eq!(kinds(&store.claim_with("b", claim_of(queue)).await.jobs), ["resize"], "{queue}");
    }
}

pub async fn urgent_jobs_precede_deferred_jobs(store: TestStore) {
    let urgent = |kind: &str| job(kind).priority(Priority::Critical);
    store.push(urgent("due").after(5 * SECOND)).await;
    push_deferred(&store, "resize").await;
    // The reply to any claim informs the process that deferred jobs exist.
    assert!(claim_kinds(&store, "c", &["mail"], 1).await.is_empty());
    store.push(urgent("ready")).await;
    store.advance(5 * SECOND).await;
    let handled = ["resize", "ready", "due"];
    let mut order = Vec::new();
    for _ in 0..3 {
        order.extend(claim_kinds(&store, "b", &handled, 1).await.into_iter().map(|held| held.job.kind));
    }
    assert_eq!(order, ["ready", "due", "resize"]);
}

pub async fn deferred_hint_arrives_with_next_heartbeat_if_not_notified(store: TestStore) {
    const NAMES: [&str; 20] = [
        "n01", "n02", "n03", "n04", "n05", "n06", "n07", "n08", "n09", "n10", "n11", "n12", "n13", "n14", "n15", "n16",
        "n17", "n18", "n19", "n20",
    ];
    store.push(job("resize")).await;
    let held = claim_kinds(&store, "a", &["mail"], 9).await;
    for name in NAMES {
        assert!(claim_kinds(&store, name, &["mail"], 9).await.is_empty());
    }
    defer(&store, "a", &held, 10 * SECOND).await;
    assert_eq!(store.heartbeat("b").await.queues_to_check, ["default"]);
    assert_eq!(kinds(&claim_kinds(&store, "b", &["resize"], 9).await), ["resize"]);
}

pub async fn deferred_jobs_beyond_the_limit_wait_until_due(store: TestStore) {
    let jobs = DEFERRED_HINTS_MAX + 1;
    for batch in (0..jobs).collect::<Vec<_>>().chunks(CLAIM_MAX) {
        store.push_all(batch.iter().map(|_| Push::new("resize", "{}").keep(Duration::ZERO)).collect()).await;
        let held = claim_kinds(&store, "a", &["mail"], batch.len()).await;
        assert_eq!(held.len(), batch.len());
        defer(&store, "a", &held, 10 * SECOND).await;
    }
    let mut taken = claim_kinds(&store, "b", &["resize"], CLAIM_MAX).await.len();
    assert!(taken > 0, "some hints remain after all were dropped");
    store.advance(10 * SECOND).await;
    loop {
        match claim_kinds(&store, "b", &["resize"], CLAIM_MAX).await.len() {
            0 => break,
            count => taken += count,
        }
    }
    assert_eq!(taken, jobs, "none is lost");
}

pub async fn deferred_job_of_an_excluded_kind_is_not_adopted(store: TestStore) {
    let deferred = ["command", "comma", "command:x", "z"].map(job);
    store.push_all(deferred.into()).await;
    let held = claim_kinds(&store, "a", &["mail"], 9).await;
    defer(&store, "a", &held, 10 * SECOND).await;
    let claim_others = || Claim { excluded_kind: Some("command".into()), ..claim(9) };
    let adopted = store.claim_with("b", claim_others()).await;
    assert_eq!(kinds(&adopted.jobs), ["comma", "command:x", "z"]);
    assert!(store.claim_with("b", claim_others()).await.jobs.is_empty(), "it defers no job again and again");
    assert_eq!(kinds(&store.claim_with("c", claim(9)).await.jobs), ["command"]);
}

pub async fn deferred_job_still_falls_due(store: TestStore) {
    push_deferred(&store, "resize").await;
    store.advance(10 * SECOND).await;
    let again = claim_kinds(&store, "a", &["mail"], 9).await;
    assert_eq!(kinds(&again), ["resize"], "the node may run another version of the program by now");
    defer(&store, "a", &again, 10 * SECOND).await;
    assert_eq!(kinds(&claim_kinds(&store, "b", &["resize"], 9).await), ["resize"]);
    assert!(claim_kinds(&store, "b", &["resize"], 9).await.is_empty(), "once");
}

pub async fn node_that_runs_any_kind_adopts_deferred_jobs(store: TestStore) {
    push_deferred(&store, "resize").await;
    assert_eq!(kinds(&store.claim("b", 9).await), ["resize"]);
}

pub async fn adopted_job_keeps_its_position(store: TestStore) {
    let urgent = |kind: &str| job(kind).priority(Priority::High);
    store.push_all(vec![job("first"), job("second"), urgent("third")]).await;
    let held = claim_kinds(&store, "a", &["mail"], 9).await;
    assert_eq!(kinds(&held), ["third", "first", "second"]);
    defer(&store, "a", &held, 10 * SECOND).await;
    // On a server, the reply to any claim informs the process that deferred jobs exist.
    assert!(claim_kinds(&store, "c", &["mail"], 1).await.is_empty());
    store.push_all(vec![job("first"), urgent("first")]).await;

    let handled = ["second", "first", "third"];
    let mut order = Vec::new();
    for _ in 0..5 {
        order.extend(claim_kinds(&store, "b", &handled, 1).await.into_iter().map(|held| held.job.kind));
    }
    let order: Vec<&str> = order.iter().map(String::as_str).collect();
    assert_eq!(order, ["third", "first", "first", "second", "first"], "by priority, then by age");
    assert!(claim_kinds(&store, "b", &handled, 1).await.is_empty());
}

pub async fn retry_is_not_treated_as_deferred(store: TestStore) {
    push_deferred(&store, "resize").await;
    store.advance(10 * SECOND).await;
    // The job falls due before a node adopts it, and then fails.
    let held = claim_kinds(&store, "c", &["mail"], 9).await;
    assert_eq!(store.settle("c", &held[0], Outcome::retry(30 * SECOND, "oh")).await, nothing_lost());
    store.advance(SECOND).await;
    assert!(claim_kinds(&store, "b", &["resize"], 9).await.is_empty(), "it waits for its backoff");
    store.advance(29 * SECOND).await;
    assert_eq!(kinds(&claim_kinds(&store, "b", &["resize"], 9).await), ["resize"]);
}

pub async fn rescheduled_job_is_not_treated_as_deferred(store: TestStore) {
    let held = push_deferred(&store, "resize").await;
    let due = store.get(held.job.id).await.expect("is there").due;
    store.store.reschedule(held.job.id, Due::At(due)).await.expect("reschedules");
    assert!(claim_kinds(&store, "b", &["resize"], 9).await.is_empty(), "a rescheduled job waits for its due time");
    let other = push_deferred(&store, "resize").await;
    store.remove(other.job.id).await;
    assert!(claim_kinds(&store, "b", &["resize"], 9).await.is_empty());
    store.advance(10 * SECOND).await;
    assert_eq!(kinds(&claim_kinds(&store, "b", &["resize"], 9).await), ["resize"]);
}

pub async fn paused_queue_keeps_deferred_jobs(store: TestStore) {
    push_deferred(&store, "resize").await;
    store.store.set_paused("default", true).await.expect("pauses");
    assert!(claim_kinds(&store, "b", &["resize"], 9).await.is_empty());
    store.store.set_paused("default", false).await.expect("resumes");
    assert_eq!(kinds(&claim_kinds(&store, "b", &["resize"], 9).await), ["resize"]);
}

pub async fn waiting_node_is_notified_of_deferred_jobs(store: TestStore) {
    let subscribe = async |name| store.store.subscribe_wakes(store.node(name).await).await.expect("subscribes");
    // Waking only the first idle node would wake a node without a handler.
    let (_a, _c, mut b) = (subscribe("a").await, subscribe("c").await, subscribe("b").await);
    store.push(job("resize")).await;
    let held = claim_kinds(&store, "a", &["mail"], 9).await;
    assert!(claim_kinds(&store, "c", &["mail"], 9).await.is_empty());
    assert!(claim_kinds(&store, "b", &["resize"], 9).await.is_empty());
    defer(&store, "a", &held, 10 * SECOND).await;
    let wake = tokio::time::timeout(TIMEOUT, b.recv()).await.expect("in time").expect("open");
    assert_eq!(wake, Wake::Queue("default".into()));
    assert_eq!(kinds(&claim_kinds(&store, "b", &["resize"], 9).await), ["resize"]);
}

pub async fn more_deferred_jobs_than_slots_are_adopted_in_batches(store: TestStore) {
    store.push_all((0..30).map(|_| job("resize")).collect()).await;
    let held = claim_kinds(&store, "a", &["mail"], 30).await;
    defer(&store, "a", &held, 10 * SECOND).await;
    // With this many kinds, one operation checks only a few hints of each.
    let handled: Arc<[String]> = (0..400).map(|n| format!("kind{n}")).chain(["resize".to_owned()]).collect();
    let mut taken = 0;
    while taken < 30 {
        let claimed = store.claim_with("b", Claim { kinds: Some(handled.clone()), ..claim(8) }).await;
        taken += claimed.jobs.len();
        assert!((1..=8).contains(&claimed.jobs.len()) && (claimed.has_more || taken == 30), "{taken} and no more");
    }
    assert!(claim_kinds(&store, "b", &["resize"], 8).await.is_empty());
}

/// The clock does not advance, so a job that waits for its due time would wait for ever.
pub async fn nodes_with_different_kinds_share_a_queue(store: TestStore) {
    const EACH: u64 = 100;
    let (done, mut completions) = tokio::sync::mpsc::unbounded_channel();
    let stop = CancellationToken::new();
    let spawn_worker = |kind: &'static str, slots: usize| {
        let done = done.clone();
        let handler = move |_| {
            let done = done.clone();
            async move { done.send(kind).expect("waits") }
        };
        let worker = store.duly.worker().on_kind(kind, handler).concurrency(slots);
        tokio::spawn(worker.run_until(stop.clone()))
    };
    let workers = [spawn_worker("mail", 10), spawn_worker("resize", 1)];
    store.push_all((0..2 * EACH).map(|n| job(if n % 2 == 0 { "mail" } else { "resize" })).collect()).await;
    let mut counts = [0, 0];
    let all = async {
        for _ in 0..2 * EACH {
            counts[usize::from(completions.recv().await.expect("open") == "resize")] += 1;
        }
    };
    tokio::time::timeout(TIMEOUT, all).await.expect("without waiting for a heartbeat each time");
    assert_eq!(counts, [EACH, EACH]);
    stop.cancel();
    for worker in workers {
        worker.await.expect("no panic").expect("ends well");
    }
}

pub async fn unreadable_job_is_not_passed_between_nodes(store: TestStore) {
    store.push(job("resize")).await;
    let mut held = store.claim_one("a").await;
    held.job.kind = "duly:unreadable".into();
    defer(&store, "a", &[held], 10 * SECOND).await;
    assert!(store.claim("b", 9).await.is_empty(), "a node that runs any kind does not adopt it either");
}
