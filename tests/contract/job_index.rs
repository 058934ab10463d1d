//! The job index: scheduled and dead jobs are found by kind, tag, group and time without scanning others.

use duly::Filter;
use duly::job::UniqueConflict;
use duly::store::{AdminStore, JobStore, MaintenanceStore};
use duly::{Error, Outcome, Priority, Push};

use crate::test_store::{KEEP, SECOND, TestStore, job};

/// Returns how many jobs match a filter, and how many were scanned.
async fn found(store: &TestStore, text: &str) -> (usize, u64) {
    let filter = text.parse::<Filter>().expect("a filter").resolve_times(store.now()).limit(5);
    let (mut cursor, mut jobs, mut scanned) = (None, 0, 0);
    loop {
        let page = store.store.list(filter.clone().cursor(cursor)).await.expect("lists");
        (jobs, scanned) = (jobs + page.jobs.len(), scanned + page.scanned);
        cursor = page.next_cursor;
        if cursor.is_none() {
            return (jobs, scanned);
        }
    }
}

/// Fails if the index does not match the jobs.
async fn assert_consistent(store: &TestStore, after: &str) {
    match store.store.verify().await {
        Err(Error::Unsupported { .. }) => {}
        verified => assert_eq!(verified.expect("verifies").violations, [], "after {after}"),
    }
}

/// Fails unless kind and tags find this many scheduled and dead jobs.
async fn assert_found(store: &TestStore, after: &str, scheduled: usize, dead: usize) {
    for term in ["kind:mail", "tag:blue", "tag:red kind:mail"] {
        for (state, count) in [("scheduled", scheduled), ("dead", dead)] {
            let text = format!("state:{state} {term}");
            assert_eq!(found(store, &text).await.0, count, "{text} after {after}");
        }
    }
    assert_consistent(store, after).await;
}

pub async fn index_entries_follow_a_job_through_its_states(store: TestStore) {
    let mail = || job("mail").tag("blue").tag("red").tag("blue").unique("key").max_attempts(9);
    let push = mail().after(10 * SECOND);
    let id = push.job_id();
    store.push(push).await;
    assert_found(&store, "a push", 1, 0).await;
    store.store.reschedule(id, duly::job::Due::After(20 * SECOND)).await.expect("reschedules");
    assert_found(&store, "a reschedule", 1, 0).await;
    let edit = duly::store::JobEdit::new().priority(Priority::High);
    store.store.edit(id, edit).await.expect("edits");
    assert_found(&store, "an edit", 1, 0).await;
    let other = mail().after(5 * SECOND).on_conflict(UniqueConflict::Replace);
    let id = other.job_id();
    store.push(other).await;
    assert_found(&store, "a replacement", 1, 0).await;
    store.advance(6 * SECOND).await;
    let held = store.claim_one("a").await;
    assert_found(&store, "a claim", 0, 0).await;
    store.settle("a", &held, Outcome::retry(SECOND, "oh")).await;
    assert_found(&store, "a retry", 1, 0).await;
    store.advance(2 * SECOND).await;
    let held = store.claim_one("a").await;
    store.settle("a", &held, Outcome::Release { after: SECOND }).await;
    assert_found(&store, "a release", 1, 0).await;
    store.store.reschedule(id, duly::job::Due::Now).await.expect("reschedules");
    assert_found(&store, "a reschedule to now", 0, 0).await;
    let held = store.claim_one("a").await;
    store.settle("a", &held, Outcome::bury("no")).await;
    assert_found(&store, "its death", 0, 1).await;
    let group = store.store.dead_groups(None).await.expect("groups")[0].id.clone();
    assert_eq!(found(&store, &format!("group:{group}")).await.0, 1);
    store.store.reschedule(id, duly::job::Due::After(SECOND)).await.expect("reschedules");
    assert_found(&store, "a reschedule of the dead job", 1, 0).await;
    store.remove(id).await;
    assert_found(&store, "its removal", 0, 0).await;
}

pub async fn pruned_job_leaves_no_index_entry(store: TestStore) {
    for _ in 0..3 {
        store.push(job("mail").tag("blue").tag("red")).await;
        let held = store.claim_one("a").await;
        store.settle("a", &held, Outcome::bury("no")).await;
    }
    assert_found(&store, "their deaths", 0, 3).await;
    store.sleep(100 * KEEP);
    store.store.prune("default", 0).await.expect("prunes");
    assert_found(&store, "a prune", 0, 0).await;
}

pub async fn indexed_lookup_scans_no_other_jobs(store: TestStore) {
    let later = |kind: &str, tag: &str| Push::new(kind, "{}").tag(tag).after(60 * SECOND);
    store.push_all((0..400).map(|_| later("many", "common")).collect()).await;
    store.push_all((0..12).map(|n| later("few", if n < 4 { "rare" } else { "common" })).collect()).await;
    assert_eq!(found(&store, "state:scheduled kind:few").await, (12, 12));
    assert_eq!(found(&store, "state:scheduled tag:rare").await, (4, 4));
    assert_eq!(found(&store, "state:scheduled tag:rare kind:few since:+50s until:+70s").await, (4, 4));
    assert_eq!(found(&store, "state:scheduled kind:few until:+50s").await, (0, 0));
    assert_eq!(found(&store, "state:scheduled kind:fe").await, (0, 0));
    store.advance(61 * SECOND).await;
    for _ in 0..20 {
        let held = store.claim_one("a").await;
        store.settle("a", &held, Outcome::bury("no")).await;
        store.advance(SECOND).await;
    }
    let (jobs, scanned) = found(&store, "state:dead since:5500ms").await;
    assert_eq!((jobs, scanned), (5, 5));
    assert_eq!(found(&store, "state:dead until:5500ms").await, (15, 15));
    let (many, few) = (found(&store, "state:dead kind:many").await, found(&store, "state:dead kind:few").await);
    assert_eq!((many.0 + few.0, many.1 + few.1), (20, 20));
}

pub async fn done_jobs_are_found_by_end_time(store: TestStore) {
    for n in 0..40 {
        store.push(Push::new("k", "{}").keep(KEEP)).await;
        let held = store.claim_one("a").await;
        store.settle("a", &held, Outcome::Ack).await;
        store.advance(SECOND).await;
        assert_eq!(found(&store, "state:done since:500ms").await.0, 0, "{n}");
    }
    assert_eq!(found(&store, "state:done since:5500ms").await.0, 5);
    assert_eq!(found(&store, "state:done until:35500ms").await.0, 5);
    let (jobs, scanned) = found(&store, "state:done since:20500ms until:10500ms").await;
    assert!(jobs == 10 && scanned <= 15, "{jobs} found among {scanned}");
    // A different keep time makes the search scan more jobs, but it still finds them.
    store.push(Push::new("k", "{}").keep(2 * KEEP)).await;
    let held = store.claim_one("a").await;
    store.settle("a", &held, Outcome::Ack).await;
    store.advance(SECOND).await;
    assert_eq!(found(&store, "state:done since:1500ms").await.0, 1);
    assert_eq!(found(&store, "state:done since:3500ms").await.0, 3);
    assert_consistent(&store, "the last settle").await;
}
