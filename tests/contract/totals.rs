//! What has ever happened, and since when the first ready job waits.

use std::time::{Duration, SystemTime};

use duly::store::Timing;
use duly::{HistoryTally, Outcome, Priority};

use crate::support::*;

async fn total(store: &TestStore) -> HistoryTally {
    let totals = store.store.totals().await.expect("reads");
    totals.into_iter().find(|(queue, _)| queue == "default").map(|(_, tally)| tally).unwrap_or_default()
}

async fn one_done(store: &TestStore) {
    store.push(job("k")).await;
    let held = store.claim_one("a").await;
    let mut end = duly::store::End::of(&held, Outcome::Ack, KEEP);
    end.timing = Some(Timing { lateness: MS, duration: SECOND });
    store.store.settle(store.node("a").await, vec![end]).await.expect("settles");
}

pub async fn totals_only_grow_also_when_history_is_forgotten(store: TestStore) {
    let hour = Duration::from_secs(3600);
    assert_eq!(total(&store).await, HistoryTally::default());
    for n in 1..=3 {
        one_done(&store).await;
        let total = total(&store).await;
        assert_eq!((total.pushed, total.done, total.duration.count(), total.lateness.count()), (n, n, n, n));
        // Over the end of a minute, and longer than history is kept.
        for _ in 0..25 {
            store.sleep(hour);
            store.beat("a").await;
            while store.prune().await > 0 {}
            assert_eq!(self::total(&store).await.done, n, "nothing is counted twice, and nothing is lost");
        }
        let kept = store.store.history(duly::HistoryAsk::default()).await.expect("reads").total();
        assert_eq!(kept.done, 0, "history itself is gone by now");
    }
}

pub async fn totals_are_of_each_queue(store: TestStore) {
    store.push_all(vec![job("a"), job("b").queue("other"), job("c").queue("other")]).await;
    let totals = store.store.totals().await.expect("reads");
    let pushed: Vec<(&str, u64)> = totals.iter().map(|(queue, tally)| (queue.as_str(), tally.pushed)).collect();
    assert_eq!(pushed, [("default", 1), ("other", 2)]);
}

async fn oldest(store: &TestStore) -> Option<SystemTime> {
    let counts = store.store.counts().await.expect("counts");
    counts.into_iter().find(|counts| counts.queue == "default").and_then(|counts| counts.oldest)
}

pub async fn the_first_ready_job_is_known_by_its_due_moment(store: TestStore) {
    let later = store.push(job("later").after(SECOND)).await.id();
    assert_eq!(oldest(&store).await, None, "nothing is ready");
    let first = store.now();
    store.push(job("first")).await;
    store.advance(MS).await;
    let urgent = store.now();
    store.push(job("urgent").priority(Priority::High)).await;
    assert_eq!(oldest(&store).await, Some(first), "whatever its priority");
    assert_eq!(store.claim_one("a").await.job.kind, "urgent");
    assert_eq!(oldest(&store).await, Some(first));
    let held = store.claim_one("a").await;
    assert_eq!(held.job.kind, "first");
    assert_eq!(oldest(&store).await, None);
    assert!(urgent > first);
    // Released, it is as old as before; retried, it is as young as that.
    store.settle("a", &held, release()).await;
    assert_eq!(oldest(&store).await, Some(first));
    let held = store.claim_one("a").await;
    store.advance(MS).await;
    let again = store.now();
    store.settle("a", &held, retry_at_once()).await;
    assert_eq!(oldest(&store).await, Some(again));
    store.remove(held.job.id).await;
    assert_eq!(oldest(&store).await, None, "one that is gone does not wait");
    store.store.reschedule(later, duly::Due::Now).await.expect("moves");
    assert_eq!(oldest(&store).await, Some(again), "from now on");
}
