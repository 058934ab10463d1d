//! Totals per queue and kind, and the age of the first ready job.

use std::time::{Duration, SystemTime};

use duly::admin::StatCounters;
use duly::bounds::{KIND_HOURS_MAX, KIND_MINUTES_MAX, OTHER_KINDS};
use duly::store::{AttemptTiming, JobStore, KIND_STATS_MAX, KindStatsQuery, StatsStore};
use duly::{Ctx, Outcome, Priority};

use crate::test_store::*;

async fn total(store: &TestStore) -> StatCounters {
    let totals = store.store.queue_totals().await.expect("reads");
    totals.into_iter().find(|(queue, _)| queue == "default").map(|(_, counters)| counters).unwrap_or_default()
}

async fn one_done(store: &TestStore) {
    store.push(job("k")).await;
    let held = store.claim_one("a").await;
    let mut end = duly::store::AttemptEnd::from_held(&held, Outcome::Ack, KEEP);
    end.timing = Some(AttemptTiming { lateness: MS, duration: SECOND });
    store.store.settle(store.node("a").await, vec![end]).await.expect("settles");
}

pub async fn totals_grow_even_after_history_is_pruned(store: TestStore) {
    let hour = Duration::from_secs(3600);
    assert_eq!(total(&store).await, StatCounters::default());
    for n in 1..=3 {
        one_done(&store).await;
        let total = total(&store).await;
        assert_eq!((total.pushed, total.done, total.duration.count(), total.lateness.count()), (n, n, n, n));
        // Longer than history is kept.
        for _ in 0..25 {
            store.sleep(hour);
            store.heartbeat("a").await;
            while store.prune().await > 0 {}
            assert_eq!(self::total(&store).await.done, n, "nothing is counted twice, and nothing is lost");
        }
        let recent = store.store.history(duly::admin::HistoryQuery::default()).await.expect("reads").total();
        assert_eq!(recent.done, 0, "history itself is gone by now");
    }
}

pub async fn totals_include_days_without_reads(store: TestStore) {
    for _ in 0..3 {
        one_done(&store).await;
        store.sleep(Duration::from_secs(5 * 24 * 3600));
    }
    assert_eq!(total(&store).await.done, 3);
}

pub async fn totals_are_kept_per_queue(store: TestStore) {
    store.push_all(vec![job("a"), job("b").queue("other"), job("c").queue("other")]).await;
    let totals = store.store.queue_totals().await.expect("reads");
    let pushed: Vec<(&str, u64)> = totals.iter().map(|(queue, counters)| (queue.as_str(), counters.pushed)).collect();
    assert_eq!(pushed, [("default", 1), ("other", 2)]);
}

async fn oldest_ready(store: &TestStore) -> Option<SystemTime> {
    let counts = store.store.counts().await.expect("counts");
    counts.into_iter().find(|counts| counts.queue == "default").and_then(|counts| counts.oldest_ready)
}

pub async fn counts_include_waiting_time_of_the_first_ready_job(store: TestStore) {
    assert_eq!(oldest_ready(&store).await, None, "nothing is ready");
    let mut pushed = Vec::new();
    for kind in ["first", "second"] {
        pushed.push(store.now());
        store.push(job(kind)).await;
        store.advance(MS).await;
    }
    for ready_since in pushed {
        assert_eq!(oldest_ready(&store).await, Some(ready_since));
        store.claim_one("a").await;
    }
    assert_eq!(oldest_ready(&store).await, None);
}

pub async fn first_ready_job_is_found_by_its_due_time(store: TestStore) {
    let later = store.push(job("later").after(SECOND)).await.id();
    assert_eq!(oldest_ready(&store).await, None, "nothing is ready");
    let first = store.now();
    store.push(job("first")).await;
    store.advance(MS).await;
    let urgent = store.now();
    store.push(job("urgent").priority(Priority::High)).await;
    assert_eq!(oldest_ready(&store).await, Some(first), "whatever its priority");
    assert_eq!(store.claim_one("a").await.job.kind, "urgent");
    assert_eq!(oldest_ready(&store).await, Some(first));
    let held = store.claim_one("a").await;
    assert_eq!(held.job.kind, "first");
    assert_eq!(oldest_ready(&store).await, None);
    assert!(urgent > first);
    // A release keeps the age of a job; a retry resets it.
    store.settle("a", &held, release()).await;
    assert_eq!(oldest_ready(&store).await, Some(first));
    let held = store.claim_one("a").await;
    store.advance(MS).await;
    let again = store.now();
    store.settle("a", &held, retry_at_once()).await;
    assert_eq!(oldest_ready(&store).await, Some(again));
    store.remove(held.job.id).await;
    assert_eq!(oldest_ready(&store).await, None, "a removed job does not count");
    store.store.reschedule(later, duly::job::Due::Now).await.expect("reschedules");
    assert_eq!(oldest_ready(&store).await, Some(again), "from now on");
}

fn counters(done: u64, buried: u64) -> StatCounters {
    let mut counters = StatCounters::default();
    (counters.done, counters.buried, counters.duration.buckets[5]) = (done, buried, done + buried);
    counters
}

async fn add(store: &TestStore, kinds: Vec<(String, StatCounters)>) {
    store.store.add_kind_stats(kinds).await.expect("adds");
}

async fn kinds_of(store: &TestStore, hours: u32) -> Vec<(String, u64)> {
    let points = store.store.kind_stats(KindStatsQuery::last_hours(hours)).await.expect("reads");
    points.into_iter().map(|point| (point.kind, point.counters.done)).collect()
}

pub async fn kinds_are_counted_per_hour_for_30_days(store: TestStore) {
    let hour = Duration::from_secs(3600);
    let stats = |done| vec![("mail".to_owned(), counters(done, 1)), ("report.build".to_owned(), counters(1, 0))];
    assert_eq!(kinds_of(&store, 24).await, []);
    add(&store, stats(3)).await;
    add(&store, stats(4)).await;
    let points = store.store.kind_stats(KindStatsQuery::last_hours(24)).await.expect("reads");
    assert_eq!((points[0].kind.as_str(), &points[0].counters), ("mail", &counters(7, 2)));
    assert_eq!((points[1].kind.as_str(), &points[1].counters), ("report.build", &counters(2, 0)));
    store.sleep(hour);
    add(&store, stats(1)).await;
    let named =
        |kinds: &[(&str, u64)]| kinds.iter().map(|(kind, done)| ((*kind).to_owned(), *done)).collect::<Vec<_>>();
    assert_eq!(kinds_of(&store, 1).await, named(&[("mail", 1), ("report.build", 1)]), "this hour");
    assert_eq!(kinds_of(&store, 24).await.len(), 4, "and the one before");
    store.sleep(hour * (KIND_HOURS_MAX - 1));
    add(&store, stats(9)).await;
    assert_eq!(kinds_of(&store, 0).await, named(&[("mail", 1), ("report.build", 1), ("mail", 9), ("report.build", 1)]));
    let summed = store.store.kind_stats(KindStatsQuery::last_hours(0).sum_intervals()).await.expect("reads");
    let summed: Vec<_> = summed.into_iter().map(|point| (point.kind, point.counters.done)).collect();
    assert_eq!(summed, named(&[("mail", 10), ("report.build", 2)]));
    let mail = KindStatsQuery::last_hours(u32::MAX).kind("mail".to_owned());
    let mail = store.store.kind_stats(mail).await.expect("reads");
    assert_eq!(mail.iter().map(|point| point.counters.done).collect::<Vec<_>>(), [1, 9]);
    assert_eq!(mail[1].start.duration_since(mail[0].start).expect("oldest first"), hour * (KIND_HOURS_MAX - 1));
    store.sleep(hour * KIND_HOURS_MAX);
    assert_eq!(kinds_of(&store, 0).await, []);
    add(&store, stats(5)).await;
    assert_eq!(kinds_of(&store, 0).await, named(&[("mail", 5), ("report.build", 1)]));
}

pub async fn kinds_are_counted_per_minute_for_two_hours(store: TestStore) {
    let minute = Duration::from_secs(60);
    let minutes_of = async |minutes| {
        let query = KindStatsQuery::last_minutes(minutes).kind("mail".to_owned());
        let points = store.store.kind_stats(query).await.expect("reads");
        points.into_iter().map(|point| point.counters.done).collect::<Vec<_>>()
    };
    for n in 1..=3 {
        add(&store, vec![("mail".to_owned(), counters(n, 1)), ("other".to_owned(), counters(1, 0))]).await;
        store.sleep(minute);
    }
    assert_eq!(minutes_of(4).await, [1, 2, 3]);
    assert_eq!(minutes_of(3).await, [2, 3], "the current minute has none yet");
    store.sleep(minute * (KIND_MINUTES_MAX - 3));
    add(&store, vec![("mail".to_owned(), counters(7, 0))]).await;
    assert_eq!(minutes_of(0).await, [2, 3, 7]);
    let hours = KindStatsQuery::last_hours(3).kind("mail".to_owned()).sum_intervals();
    let hours = store.store.kind_stats(hours).await.expect("reads");
    assert_eq!(hours.iter().map(|point| point.counters.done).collect::<Vec<_>>(), [13], "each is in one hour");
}

pub async fn kinds_beyond_the_maximum_are_counted_together(store: TestStore) {
    let kinds = |from: usize, to: usize| (from..to).map(|n| (format!("k{n:04}"), counters(1, 0))).collect();
    add(&store, kinds(0, 150)).await;
    add(&store, kinds(100, KIND_STATS_MAX + 50)).await;
    let points = kinds_of(&store, 1).await;
    assert_eq!(points.len(), KIND_STATS_MAX + 1);
    assert!(points.contains(&(OTHER_KINDS.to_owned(), 50)), "{:?}", points.last());
    assert!(points.contains(&("k0120".to_owned(), 2)) && points.contains(&("k0199".to_owned(), 1)));
}

pub async fn worker_reports_outcomes_by_kind(store: TestStore) {
    store.duly.push_all([job("good"), job("good"), job("bad").max_attempts(1)]).await.expect("pushes");
    let bad = async |_: Ctx| Outcome::bury("oh");
    let worker = store.duly.worker().on_kind("good", async |_: Ctx| Outcome::Ack).on_kind("bad", bad);
    worker.drain().await.expect("works");
    let points = store.duly.kind_stats(KindStatsQuery::last_hours(1)).await.expect("reads");
    let found: Vec<_> = points
        .iter()
        .map(|p| (p.kind.as_str(), p.counters.done, p.counters.buried, p.counters.duration.count()))
        .collect();
    assert_eq!(found, [("bad", 0, 1, 1), ("good", 2, 0, 2)]);
}

/// Neither worker lives until its first regular prune.
pub async fn workers_that_drain_prune_done_jobs(store: TestStore) {
    const KEPT_MAX: u64 = 2;
    let drain = async || {
        let worker = store.duly.worker().keep_done_max(KEPT_MAX as usize).on_kind("good", async |_: Ctx| Outcome::Ack);
        worker.drain().await.expect("works");
        let counts = store.duly.queues().counts().await.expect("counts");
        counts.iter().map(|queue| queue.done).sum::<u64>()
    };
    for round in 0..3 {
        store.push_all((0..5).map(|_| job("good").keep(KEEP)).collect()).await;
        assert!(drain().await <= KEPT_MAX, "round {round}");
    }
    store.sleep(KEEP + SECOND);
    assert_eq!(drain().await, 0, "they have expired");
}
