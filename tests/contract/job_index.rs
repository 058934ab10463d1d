//! The words of scheduled and dead jobs: kind, tags, group and the moment, by which they are found without a look at others.

use duly::store::Filter;
use duly::{Error, Outcome, Priority, Push, UniqueConflict};

use crate::test_store::{KEEP, SECOND, TestStore, job};

/// How many jobs a filter means, and how many were looked at for that.
async fn found(store: &TestStore, text: &str) -> (usize, u64) {
    let filter = Filter { limit: 5, ..text.parse::<Filter>().expect("a filter").resolve_times(store.now()) };
    let (mut cursor, mut jobs, mut looked) = (None, 0, 0);
    loop {
        let page = store.store.list(Filter { cursor, ..filter.clone() }).await.expect("lists");
        (jobs, looked) = (jobs + page.jobs.len(), looked + page.scanned);
        cursor = page.next_cursor;
        if cursor.is_none() {
            return (jobs, looked);
        }
    }
}

/// The index has what there is, and nothing else.
async fn is_sound(store: &TestStore, after: &str) {
    match store.store.verify().await {
        Err(Error::Unsupported { .. }) => {}
        verified => assert_eq!(verified.expect("verifies").violations, [], "after {after}"),
    }
}

/// A job that is waited for: its kind and tag, each found so often among the scheduled and among the dead.
async fn is_found(store: &TestStore, after: &str, scheduled: usize, dead: usize) {
    for word in ["kind:mail", "tag:blue", "tag:red kind:mail"] {
        for (state, count) in [("scheduled", scheduled), ("dead", dead)] {
            let text = format!("state:{state} {word}");
            assert_eq!(found(store, &text).await.0, count, "{text} after {after}");
        }
    }
    is_sound(store, after).await;
}

pub async fn index_entries_follow_a_job_through_its_states(store: TestStore) {
    let mail = || job("mail").tag("blue").tag("red").tag("blue").unique("key").max_attempts(9);
    let push = mail().after(10 * SECOND);
    let id = push.job_id();
    store.push(push).await;
    is_found(&store, "a push", 1, 0).await;
    store.store.reschedule(id, duly::Due::After(20 * SECOND)).await.expect("moves");
    is_found(&store, "a reschedule", 1, 0).await;
    let edit = duly::store::JobEdit { priority: Some(Priority::High), args: None };
    store.store.edit(id, edit).await.expect("edits");
    is_found(&store, "an edit", 1, 0).await;
    let other = mail().after(5 * SECOND).on_conflict(UniqueConflict::Replace);
    let id = other.job_id();
    store.push(other).await;
    is_found(&store, "another took its place", 1, 0).await;
    store.advance(6 * SECOND).await;
    let held = store.claim_one("a").await;
    is_found(&store, "a claim", 0, 0).await;
    store.settle("a", &held, Outcome::retry(SECOND, "oh")).await;
    is_found(&store, "a retry", 1, 0).await;
    store.advance(2 * SECOND).await;
    let held = store.claim_one("a").await;
    store.settle("a", &held, Outcome::Release { after: SECOND }).await;
    is_found(&store, "a release", 1, 0).await;
    store.store.reschedule(id, duly::Due::Now).await.expect("moves");
    is_found(&store, "it is ready", 0, 0).await;
    let held = store.claim_one("a").await;
    store.settle("a", &held, Outcome::bury("no")).await;
    is_found(&store, "its death", 0, 1).await;
    let group = store.store.dead_groups(None).await.expect("groups")[0].id.clone();
    assert_eq!(found(&store, &format!("group:{group}")).await.0, 1);
    store.store.reschedule(id, duly::Due::After(SECOND)).await.expect("moves");
    is_found(&store, "it came back", 1, 0).await;
    store.remove(id).await;
    is_found(&store, "it is gone", 0, 0).await;
}

pub async fn pruned_job_leaves_no_index_entry(store: TestStore) {
    for _ in 0..3 {
        store.push(job("mail").tag("blue").tag("red")).await;
        let held = store.claim_one("a").await;
        store.settle("a", &held, Outcome::bury("no")).await;
    }
    is_found(&store, "they died", 0, 3).await;
    store.sleep(100 * KEEP);
    store.store.prune("default", 0).await.expect("prunes");
    is_found(&store, "they were pruned", 0, 0).await;
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
    let (jobs, looked) = found(&store, "state:dead since:5500ms").await;
    assert_eq!((jobs, looked), (5, 5));
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
    let (jobs, looked) = found(&store, "state:done since:20500ms until:10500ms").await;
    assert!(jobs == 10 && looked <= 15, "{jobs} found among {looked}");
    // Kept for another time, they are still found: by a look at more.
    store.push(Push::new("k", "{}").keep(2 * KEEP)).await;
    let held = store.claim_one("a").await;
    store.settle("a", &held, Outcome::Ack).await;
    store.advance(SECOND).await;
    assert_eq!(found(&store, "state:done since:1500ms").await.0, 1);
    assert_eq!(found(&store, "state:done since:3500ms").await.0, 3);
    is_sound(&store, "all of it").await;
}
