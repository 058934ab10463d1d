//! Counts and history, kept as things happen.

use std::collections::BTreeSet;
use std::time::Duration;

use duly::store::{AttemptEnd, AttemptTiming, HistoryQuery, StatCounters};
use duly::{Due, HeldJob, Outcome, Priority, Push, QueueCounts};

use crate::test_store::{KEEP, MS, SECOND, TestStore, job, past_the_lease, release};

const MINUTE: Duration = Duration::from_secs(60);

async fn tally(store: &TestStore, minutes: u32) -> StatCounters {
    store.store.history(HistoryQuery { queue: Some("default".into()), minutes }).await.expect("tells").total()
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
    let told = tally(&store, 1).await;
    assert_eq!([told.pushed, told.done, told.retried, told.buried, told.released, told.taken_back], [4, 1, 1, 1, 1, 0]);
    store.advance(MINUTE).await;
    assert_eq!(tally(&store, 1).await, StatCounters::default(), "a new minute");
    store.claim("b", 1).await;
    store.silence("b");
    store.advance(past_the_lease()).await;
    store.claim_from("a", "b", 1).await;
    assert_eq!(tally(&store, 1).await.taken_back, 1);
    let history = store.store.history(HistoryQuery { queue: None, minutes: 5 }).await.expect("tells");
    let by_queue = history.by_queue();
    assert_eq!((by_queue["default"].pushed, by_queue["other"].pushed), (4, 1));
    let points: Vec<_> = history.points.iter().filter(|point| point.queue == "default").collect();
    assert_eq!(points.len(), 2);
    assert_eq!(points[1].minute.duration_since(points[0].minute).expect("oldest first"), MINUTE);
}

pub async fn history_counts_lateness_and_duration(store: TestStore) {
    store.push_all((0..3).map(|n| job(&n.to_string())).collect()).await;
    let held = store.claim("a", 3).await;
    let node = store.node("a").await;
    let ends = held.iter().map(|held| timed(AttemptEnd::from_held(held, Outcome::Ack, KEEP)));
    assert!(store.store.settle(node, ends.collect()).await.expect("settles").is_empty());
    let told = tally(&store, 1).await;
    assert_eq!((told.lateness.count(), told.duration.count()), (3, 3));
    let (late, took) = (told.lateness.quantile(0.5).expect("some"), told.duration.quantile(0.5).expect("some"));
    assert!((MS..=5 * MS).contains(&late) && (SECOND / 2..=2 * SECOND).contains(&took), "{late:?} {took:?}");
}

pub async fn rejected_settle_is_not_counted(store: TestStore) {
    store.push_all((0..3).map(|n| Push::new(n.to_string(), "{\"n\":1}")).collect()).await;
    let held = store.claim("a", 3).await;
    store.settle("a", &held[0], Outcome::Ack).await;
    let node = store.node("a").await;
    let ends = held.iter().map(|held| timed(AttemptEnd::from_held(held, Outcome::Ack, Duration::ZERO))).collect();
    assert_eq!(store.store.settle(node, ends).await.expect("settles"), [held[0].job.id]);
    let told = tally(&store, 1).await;
    assert_eq!((told.done, told.duration.count()), (3, 2));
    assert_eq!(counts(&store).await.bytes, 0);
}

/// Acks that leave nothing, acks that are kept and other outcomes, of two claims and two priorities, of each some refused.
pub async fn mixed_settle_counts_only_recorded_outcomes(store: TestStore) {
    const REFUSED: [usize; 4] = [0, 4, 5, 9];
    let args = |n: usize| "1".repeat(n + 1);
    store.push_all((0..12).map(|n| mixed(n, args(n))).collect()).await;
    let mut held = store.claim("a", 5).await;
    held.extend(store.claim("a", 7).await);
    let number = |held: &HeldJob| held.job.kind.parse::<usize>().expect("a number");
    let is_refused = |held: &&HeldJob| REFUSED.contains(&number(held));
    for held in held.iter().filter(is_refused) {
        store.settle("a", held, Outcome::release(SECOND)).await;
    }
    let ends = held.iter().map(|held| {
        let outcome = if number(held) % 3 == 2 { Outcome::retry(SECOND, "oh") } else { Outcome::Ack };
        let duration = if is_refused(&held) { MINUTE } else { SECOND };
        let mut end = AttemptEnd::from_held(held, outcome, held.job.keep);
        end.timing = Some(AttemptTiming { lateness: 2 * MS, duration });
        end
    });
    let node = store.node("a").await;
    let refused = store.store.settle(node, ends.collect()).await.expect("settles");
    let expected: BTreeSet<_> = held.iter().filter(is_refused).map(|held| held.job.id).collect();
    assert_eq!(refused.into_iter().collect::<BTreeSet<_>>(), expected);
    let told = tally(&store, 1).await;
    assert_eq!([told.done, told.retried, told.released, told.duration.count()], [5, 3, 4, 8]);
    assert!(told.duration.quantile(1.0).expect("some") < MINUTE / 2, "those that were refused took longer");
    let is = counts(&store).await;
    assert_eq!([is.ready, is.running, is.scheduled, is.done], [0, 0, 7, 3]);
    let unfinished = (0..12).filter(|n| n % 3 == 2 || REFUSED.contains(n));
    assert_eq!(is.bytes, unfinished.map(|n| args(n).len() as u64).sum::<u64>());
}

/// Every third is kept when done, every second is of a higher priority.
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
    assert_eq!(tally(&store, 0).await.pushed, 2);
    assert_eq!(tally(&store, u32::MAX).await.pushed, 2);
}

pub async fn counts_follow_every_state_change(store: TestStore) {
    let args = r#"{"ten":1}"#;
    let bytes = args.len() as u64;
    let push = |kind: &str| Push::new(kind, args).keep(KEEP);
    let is = async |numbers: [u64; 5], unfinished: u64, when: &str| {
        let c = counts(&store).await;
        assert_eq!([c.scheduled, c.ready, c.running, c.done, c.dead], numbers, "{when}");
        assert_eq!(c.bytes, unfinished * bytes, "bytes, {when}");
    };
    store.push_all(vec![push("a"), push("b"), push("c").after(SECOND), push("d").unique("u")]).await;
    is([1, 3, 0, 0, 0], 4, "pushed").await;
    store.push(push("e").unique("u").on_conflict(duly::UniqueConflict::Replace)).await;
    is([1, 3, 0, 0, 0], 4, "replaced").await;
    store.advance(SECOND).await;
    let held = store.claim("a", 3).await;
    is([0, 1, 3, 0, 0], 4, "claimed").await;
    store.settle("a", &held[0], Outcome::Ack).await;
    store.settle("a", &held[1], Outcome::bury("no")).await;
    is([0, 1, 1, 1, 1], 2, "ended").await;
    store.settle("a", &held[2], Outcome::retry(SECOND, "oh")).await;
    is([1, 1, 0, 1, 1], 2, "retried").await;
    store.store.reschedule(held[1].job.id, Due::Now).await.expect("moves");
    is([1, 2, 0, 1, 0], 3, "started over").await;
    store.remove(held[1].job.id).await;
    is([1, 1, 0, 1, 0], 2, "removed").await;
    store.claim("b", 1).await;
    store.silence("b");
    store.advance(past_the_lease()).await;
    store.claim_from("a", "b", 0).await;
    // What was retried has fallen due meanwhile, and is moved by the claim that takes back.
    let c = counts(&store).await;
    assert_eq!((c.scheduled + c.ready, c.running, c.bytes), (2, 0, 2 * bytes), "taken back");
    store.sleep(KEEP);
    store.prune().await;
    assert_eq!(counts(&store).await.done, 0, "pruned");
}
