//! Counts and history.

use std::collections::BTreeSet;
use std::time::Duration;

use duly::admin::QueueCounts;
use duly::job::{Due, HeldJob};
use duly::store::{AdminStore, AttemptEnd, AttemptTiming, HistoryQuery, JobStore, StatCounters, StatsStore};
use duly::{Outcome, Priority, Push};

use crate::test_store::{KEEP, MS, SECOND, TestStore, job, past_the_lease, release};

const MINUTE: Duration = Duration::from_secs(60);

async fn counters(store: &TestStore, minutes: u32) -> StatCounters {
    store.store.history(HistoryQuery::last_minutes(minutes).queue("default".to_owned())).await.expect("reads").total()
}

fn timed(mut end: AttemptEnd) -> AttemptEnd {
    end.timing = Some(AttemptTiming { lateness: 2 * MS, duration: SECOND });
    end
}

async fn counts(store: &TestStore) -> QueueCounts {
    let counts = store.store.counts().await.expect("counts");
    counts.into_iter().find(|queue| queue.queue == "default").expect("is there")
}

pub async fn history_counts_by_minute_and_queue(store: TestStore) {
    store.push_all((0..4).map(|n| job(&n.to_string())).collect()).await;
    store.push(job("other").queue("other")).await;
    let held = store.claim("a", 4).await;
    let outcomes = [Outcome::Ack, Outcome::retry(SECOND, "oh"), Outcome::bury("no"), release()];
    for (held, outcome) in held.iter().zip(outcomes) {
        store.settle("a", held, outcome).await;
    }
    let total = counters(&store, 1).await;
    assert_eq!(
        [total.pushed, total.done, total.retried, total.buried, total.released, total.taken_back],
        [4, 1, 1, 1, 1, 0]
    );
    store.advance(MINUTE).await;
    assert_eq!(counters(&store, 1).await, StatCounters::default(), "a new minute");
    store.claim("b", 1).await;
    store.silence("b");
    store.advance(past_the_lease()).await;
    store.claim_from("a", "b", 1).await;
    assert_eq!(counters(&store, 1).await.taken_back, 1);
    let history = store.store.history(HistoryQuery::last_minutes(5)).await.expect("reads");
    let by_queue = history.by_queue();
    assert_eq!((by_queue["default"].pushed, by_queue["other"].pushed), (4, 1));
    let points: Vec<_> = history.points.iter().filter(|point| point.queue == "default").collect();
    assert_eq!(points.len(), 2);
    assert_eq!(points[1].start.duration_since(points[0].start).expect("oldest first"), MINUTE);
}

pub async fn history_counts_lateness_and_duration(store: TestStore) {
    store.push_all((0..3).map(|n| job(&n.to_string())).collect()).await;
    let held = store.claim("a", 3).await;
    let node = store.node("a").await;
    let ends = held.iter().map(|held| timed(AttemptEnd::from_held(held, Outcome::Ack, KEEP)));
    assert!(store.store.settle(node, ends.collect()).await.expect("settles").is_empty());
    let total = counters(&store, 1).await;
    assert_eq!((total.lateness.count(), total.duration.count()), (3, 3));
    let (late, took) = (total.lateness.quantile(0.5).expect("some"), total.duration.quantile(0.5).expect("some"));
    assert!((MS..=5 * MS).contains(&late) && (SECOND / 2..=2 * SECOND).contains(&took), "{late:?} {took:?}");
}

pub async fn rejected_settle_is_not_counted(store: TestStore) {
    store.push_all((0..3).map(|n| Push::new(n.to_string(), "{\"n\":1}")).collect()).await;
    let held = store.claim("a", 3).await;
    store.settle("a", &held[0], Outcome::Ack).await;
    let node = store.node("a").await;
    let ends = held.iter().map(|held| timed(AttemptEnd::from_held(held, Outcome::Ack, Duration::ZERO))).collect();
    assert_eq!(store.store.settle(node, ends).await.expect("settles"), [held[0].job.id]);
    let total = counters(&store, 1).await;
    assert_eq!((total.done, total.duration.count()), (3, 2));
    assert_eq!(counts(&store).await.bytes, 0);
}

/// One batch mixes kept and forgotten acks with retries, of two claims and two priorities. Some are rejected.
pub async fn mixed_settle_counts_only_recorded_outcomes(store: TestStore) {
    const REJECTED: [usize; 4] = [0, 4, 5, 9];
    let args = |n: usize| "1".repeat(n + 1);
    store.push_all((0..12).map(|n| mixed(n, args(n))).collect()).await;
    let mut held = store.claim("a", 5).await;
    held.extend(store.claim("a", 7).await);
    let number = |held: &HeldJob| held.job.kind.parse::<usize>().expect("a number");
    let is_rejected = |held: &&HeldJob| REJECTED.contains(&number(held));
    for held in held.iter().filter(is_rejected) {
        store.settle("a", held, Outcome::release(SECOND)).await;
    }
    let ends = held.iter().map(|held| {
        let outcome = if number(held) % 3 == 2 { Outcome::retry(SECOND, "oh") } else { Outcome::Ack };
        let duration = if is_rejected(&held) { MINUTE } else { SECOND };
        let mut end = AttemptEnd::from_held(held, outcome, held.job.keep);
        end.timing = Some(AttemptTiming { lateness: 2 * MS, duration });
        end
    });
    let node = store.node("a").await;
    let rejected = store.store.settle(node, ends.collect()).await.expect("settles");
    let expected: BTreeSet<_> = held.iter().filter(is_rejected).map(|held| held.job.id).collect();
    assert_eq!(rejected.into_iter().collect::<BTreeSet<_>>(), expected);
    let total = counters(&store, 1).await;
    assert_eq!([total.done, total.retried, total.released, total.duration.count()], [5, 3, 4, 8]);
    assert!(total.duration.quantile(1.0).expect("some") < MINUTE / 2, "the rejected attempts took longer");
    let found = counts(&store).await;
    assert_eq!([found.ready, found.running, found.scheduled, found.done], [0, 0, 7, 3]);
    let unfinished = (0..12).filter(|n| n % 3 == 2 || REJECTED.contains(n));
    assert_eq!(found.bytes, unfinished.map(|n| args(n).len() as u64).sum::<u64>());
}

/// Every third job is kept when it is done; every second one has a higher priority.
fn mixed(n: usize, args: String) -> Push {
    let push = Push::new(n.to_string(), args).keep(if n % 3 == 1 { KEEP } else { Duration::ZERO });
    if n.is_multiple_of(2) { push } else { push.priority(Priority::High) }
}

pub async fn history_is_kept_for_a_day(store: TestStore) {
    store.push(job("old")).await;
    store.sleep(24 * 60 * MINUTE + MINUTE);
    store.push(job("new")).await;
    store.prune().await;
    store.sleep(MINUTE);
    store.push(job("newer")).await;
    store.prune().await;
    assert_eq!(counters(&store, 0).await.pushed, 2);
    assert_eq!(counters(&store, u32::MAX).await.pushed, 2);
}

/// Returns the pushed jobs of each hour of the queue `default`.
async fn pushed_by_hour(store: &TestStore, hours: u32) -> Vec<u64> {
    let query = HistoryQuery::last_hours(hours).queue("default".to_owned());
    let history = store.store.history(query).await.expect("reads");
    history.points.iter().map(|point| point.counters.pushed).collect()
}

pub async fn each_minute_is_in_one_hour(store: TestStore) {
    // The minutes of an hour end in different ways: by a prune, by a read, by the next event.
    let mut pushed = 0;
    for n in 0..130u64 {
        store.push(job(&n.to_string())).await;
        pushed += 1;
        match n % 13 {
            0 => drop(store.prune().await),
            1 => assert_eq!(pushed_by_hour(&store, 0).await.iter().sum::<u64>(), pushed, "after {n} minutes"),
            _ => {}
        }
        store.sleep(MINUTE);
    }
    let hours = pushed_by_hour(&store, 0).await;
    assert_eq!((hours.len(), hours.iter().sum::<u64>()), (3, pushed), "{hours:?}");
    assert!(hours.contains(&60), "a whole hour: {hours:?}");
    let totals = store.store.queue_totals().await.expect("reads");
    assert_eq!(totals.iter().map(|(_, total)| total.pushed).sum::<u64>(), pushed);
    assert_eq!(pushed_by_hour(&store, 0).await, hours, "reading changes nothing");
}

pub async fn hours_are_kept_for_30_days(store: TestStore) {
    let hour = 60 * MINUTE;
    store.push_all(vec![job("old"), job("other").queue("other")]).await;
    let held = store.claim_one("a").await;
    let node = store.node("a").await;
    let end = timed(AttemptEnd::from_held(&held, Outcome::Ack, KEEP));
    store.store.settle(node, vec![end]).await.expect("settles");
    // Long after the minutes are gone.
    for _ in 0..4 {
        store.sleep(7 * 24 * hour);
        store.push(job("new")).await;
        while store.prune().await > 0 {}
    }
    assert_eq!(counters(&store, 0).await.pushed, 1, "the last minute");
    assert_eq!(pushed_by_hour(&store, 0).await, [1, 1, 1, 1, 1]);
    assert_eq!(pushed_by_hour(&store, 7 * 24).await, [1], "a week");
    let summed = store.store.history(HistoryQuery::last_hours(0).sum_queues()).await.expect("reads");
    let first = &summed.points[0];
    assert_eq!((first.queue.as_str(), first.counters.pushed, first.counters.done), ("", 2, 1));
    let took = first.counters.duration.quantile(0.5).expect("timed");
    assert!((SECOND / 2..=2 * SECOND).contains(&took), "{took:?}");
    assert_eq!(summed.points.len(), 5);
    store.sleep(2 * 24 * hour + MINUTE);
    assert_eq!(pushed_by_hour(&store, u32::MAX).await, [1, 1, 1, 1], "the first is 30 days old");
    store.sleep(60 * 24 * hour);
    store.push(job("newest")).await;
    assert_eq!(pushed_by_hour(&store, 0).await, [1]);
}

pub async fn removed_queue_leaves_no_hours(store: TestStore) {
    let id = store.push(job("one")).await.id();
    store.sleep(60 * MINUTE);
    store.remove(id).await;
    store.push(job("two").queue("other")).await;
    assert_eq!(pushed_by_hour(&store, 0).await, [1]);
    store.store.remove_queue("default", false).await.expect("removes");
    assert_eq!(pushed_by_hour(&store, 0).await, [0; 0]);
    store.push(job("three")).await;
    assert_eq!(pushed_by_hour(&store, 0).await, [1], "of the new queue");
}

pub async fn counts_follow_every_state_change(store: TestStore) {
    let args = r#"{"ten":1}"#;
    let bytes = args.len() as u64;
    let push = |kind: &str| Push::new(kind, args).keep(KEEP);
    let assert_counts = async |numbers: [u64; 5], unfinished: u64, when: &str| {
        let found = counts(&store).await;
        assert_eq!([found.scheduled, found.ready, found.running, found.done, found.dead], numbers, "{when}");
        assert_eq!(found.bytes, unfinished * bytes, "bytes, {when}");
    };
    store.push_all(vec![push("a"), push("b"), push("c").after(SECOND), push("d").unique("u")]).await;
    assert_counts([1, 3, 0, 0, 0], 4, "pushed").await;
    store.push(push("e").unique("u").on_conflict(duly::job::UniqueConflict::Replace)).await;
    assert_counts([1, 3, 0, 0, 0], 4, "replaced").await;
    store.advance(SECOND).await;
    let held = store.claim("a", 3).await;
    assert_counts([0, 1, 3, 0, 0], 4, "claimed").await;
    store.settle("a", &held[0], Outcome::Ack).await;
    store.settle("a", &held[1], Outcome::bury("no")).await;
    assert_counts([0, 1, 1, 1, 1], 2, "ended").await;
    store.settle("a", &held[2], Outcome::retry(SECOND, "oh")).await;
    assert_counts([1, 1, 0, 1, 1], 2, "retried").await;
    store.store.reschedule(held[1].job.id, Due::Now).await.expect("reschedules");
    assert_counts([1, 2, 0, 1, 0], 3, "rescheduled after its death").await;
    store.remove(held[1].job.id).await;
    assert_counts([1, 1, 0, 1, 0], 2, "removed").await;
    store.claim("b", 1).await;
    store.silence("b");
    store.advance(past_the_lease()).await;
    store.claim_from("a", "b", 0).await;
    // The retried job has fallen due and is promoted by the claim that takes back.
    let found = counts(&store).await;
    assert_eq!((found.scheduled + found.ready, found.running, found.bytes), (2, 0, 2 * bytes), "taken back");
    store.sleep(KEEP);
    store.prune().await;
    assert_eq!(counts(&store).await.done, 0, "pruned");
}
