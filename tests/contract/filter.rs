//! Filters of lists.

use std::collections::HashSet;
use std::time::Duration;

use duly::Filter;
use duly::store::JobStore;
use duly::{JobId, Outcome, Priority, Push};

use crate::test_store::{MS, SECOND, TestStore, job};

/// Returns the kinds of all jobs that match a filter, sorted.
async fn matching_kinds(store: &TestStore, text: &str) -> Vec<String> {
    let filter: Filter = text.parse().expect("a filter");
    let mut kinds = Vec::new();
    let mut cursor = None;
    loop {
        let filter = filter.clone().cursor(cursor).limit(3);
        let page = store.store.list(filter.resolve_times(store.now())).await.expect("lists");
        kinds.extend(page.jobs.into_iter().map(|record| record.job.kind));
        cursor = page.next_cursor;
        if cursor.is_none() {
            kinds.sort();
            return kinds;
        }
    }
}

async fn die(store: &TestStore, error: &str) {
    let held = store.claim_one("a").await;
    store.settle("a", &held, Outcome::bury(error)).await;
}

pub async fn filter_selects_by_every_field(store: TestStore) {
    let push = |kind: &str, args: &str| Push::new(kind, args).keep(crate::test_store::KEEP);
    store.push(push("failed", r#"{"to":"Ada","n":7,"deep":{"list":["x",true]}}"#).tag("blue")).await;
    die(&store, "connection timed out after 30s").await;
    store.push(push("ready", r#"{"to":"bob","n":17}"#).tag("blue").tag("red").priority(Priority::High)).await;
    store.push(push("later", r#"{"to":"ada lovelace"}"#).after(Duration::from_secs(60))).await;
    store.push(push("other", "null").queue("other")).await;
    let all = ["failed", "later", "other", "ready"];
    let cases: &[(&str, &[&str])] = &[
        ("", &all),
        ("state:dead", &["failed"]),
        ("queue:other", &["other"]),
        ("queue:nowhere", &[]),
        ("kind:ready", &["ready"]),
        ("kind:rea", &[]),
        ("tag:blue", &["failed", "ready"]),
        ("tag:blue tag:red", &["ready"]),
        ("priority:high", &["ready"]),
        ("args.to:ada", &["failed", "later"]),
        ("args.n:7", &["failed"]),
        ("args.deep.list.1:true", &["failed"]),
        ("args.deep.list:x", &["failed"]),
        ("error:TIMED", &["failed"]),
        ("ada", &["failed", "later"]),
        ("\"timed out\"", &["failed"]),
        ("-state:dead -queue:other", &["later", "ready"]),
        ("-args.to:ada queue:default", &["ready"]),
        ("state:dead kind:failed tag:blue args.to:ada error:timed", &["failed"]),
        ("state:ready error:timed", &[]),
        ("due<2m", &["later"]),
        ("due>2m", &[]),
    ];
    for (text, kinds) in cases {
        assert_eq!(matching_kinds(&store, text).await, *kinds, "{text}");
    }
}

pub async fn filter_by_time_uses_due_end_or_push_time(store: TestStore) {
    store.push(job("died early")).await;
    die(&store, "oh").await;
    store.push(job("early")).await;
    store.advance(100 * SECOND).await;
    let early = store.claim_one("a").await;
    store.settle("a", &early, Outcome::Ack).await;
    store.push(job("late")).await;
    store.push(job("soon").after(10 * SECOND)).await;
    store.push(job("much later").after(1_000 * SECOND)).await;
    store.advance(MS).await;
    let cases: &[(&str, &[&str])] = &[
        ("since:50s", &["early", "late", "much later", "soon"]),
        ("until:50s", &["died early"]),
        ("since:50s until:+60s", &["early", "late", "soon"]),
        ("state:dead until:50s", &["died early"]),
        ("state:dead since:50s", &[]),
        ("state:done since:50s", &["early"]),
        ("state:scheduled since:+60s", &["much later"]),
        ("state:scheduled until:+60s", &["soon"]),
        ("state:ready since:50s", &["late"]),
        ("state:ready until:50s", &[]),
    ];
    for (text, kinds) in cases {
        assert_eq!(matching_kinds(&store, text).await, *kinds, "{text}");
    }
}

pub async fn indexed_filter_finds_scheduled_and_dead_jobs(store: TestStore) {
    for n in 0..5 {
        store.push(job("mail").tag(format!("n{n}")).after((n + 1) * SECOND)).await;
        store.push(job("else").tag("n1").after((n + 1) * SECOND)).await;
    }
    assert_eq!(matching_kinds(&store, "state:scheduled kind:mail").await.len(), 5);
    assert_eq!(matching_kinds(&store, "state:scheduled tag:n1").await.len(), 6);
    assert_eq!(matching_kinds(&store, "state:scheduled tag:n1 kind:mail").await.len(), 1);
    store.advance(2 * SECOND).await;
    // Two jobs of each kind are due; two of those run and die.
    die(&store, "oh 1").await;
    die(&store, "oh 2").await;
    assert_eq!(matching_kinds(&store, "state:scheduled kind:mail").await.len(), 3);
    assert_eq!(matching_kinds(&store, "state:scheduled tag:n1").await.len(), 3);
    assert_eq!(
        matching_kinds(&store, "state:dead kind:mail").await.len()
            + matching_kinds(&store, "state:dead kind:else").await.len(),
        2
    );
    let dead: Filter = "state:dead".parse().expect("a filter");
    let first = store.store.list(dead).await.expect("lists").jobs.remove(0);
    let kind = format!("state:dead kind:{}", first.job.kind);
    let before = matching_kinds(&store, &kind).await.len();
    store.remove(first.job.id).await;
    assert_eq!(matching_kinds(&store, &kind).await.len(), before - 1);
}

pub async fn page_returns_the_number_of_jobs_scanned(store: TestStore) {
    store.push_all((0..1_500).map(|n| Push::new("k", format!(r#"{{"n":{n}}}"#))).collect()).await;
    let filter: Filter = "state:ready args.n:1499".parse().expect("a filter");
    let page = store.store.list(filter).await.expect("lists");
    assert_eq!((page.jobs.len(), page.scanned), (1, 1_500));
    let page = store.store.list(Filter::all().limit(10)).await.expect("lists");
    assert_eq!((page.jobs.len(), page.scanned), (10, 10));
}

pub async fn unchanged_job_is_listed_while_others_move(store: TestStore) {
    let pushes: Vec<Push> =
        (0..120).map(|n| job(&format!("k{}", n % 3)).after(Duration::from_secs(60 + n % 7))).collect();
    let ids: Vec<JobId> = pushes.iter().map(|push| push.job_id()).collect();
    store.push_all(pushes).await;
    for text in ["", "state:scheduled", "state:scheduled kind:k1", "-kind:k9"] {
        let unmoved: HashSet<JobId> = ids.iter().copied().skip(60).collect();
        let (mut shown, mut cursor, mut round) = (Vec::new(), None, 0);
        loop {
            let filter = text.parse::<Filter>().expect("a filter").cursor(cursor).limit(7);
            let page = store.store.list(filter).await.expect("lists");
            shown.extend(page.jobs.into_iter().map(|record| (record.job.id, record.job.kind)));
            cursor = page.next_cursor;
            if cursor.is_none() {
                break;
            }
            // Other jobs are rescheduled and new ones are pushed.
            let rescheduled = ids[round % 60];
            store
                .store
                .reschedule(rescheduled, duly::job::Due::After((200 + round as u32) * SECOND))
                .await
                .expect("reschedules");
            round += 1;
            if round < 10 {
                store.push(job("k1").after(61 * SECOND)).await;
            }
        }
        let shown_ids: HashSet<JobId> = shown.iter().map(|(id, _)| *id).collect();
        let expected: HashSet<JobId> = match text.contains("kind:k1") {
            true => ids.iter().enumerate().skip(60).filter(|(n, _)| n % 3 == 1).map(|(_, id)| *id).collect(),
            false => unmoved,
        };
        assert!(expected.is_subset(&shown_ids), "{text}: {} are missing", expected.difference(&shown_ids).count());
    }
}

pub async fn unchanged_ready_job_is_listed_while_others_are_claimed(store: TestStore) {
    let pushes: Vec<Push> = (0..60).map(|_| job("k")).collect();
    let ids: Vec<JobId> = pushes.iter().map(|push| push.job_id()).collect();
    store.push_all(pushes).await;
    let (mut held, mut round) = (Vec::new(), 0);
    let (mut shown, mut cursor) = (HashSet::new(), None);
    loop {
        let filter = Filter::all().cursor(cursor).limit(5);
        let page = store.store.list(filter).await.expect("lists");
        shown.extend(page.jobs.into_iter().map(|record| record.job.id));
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
        // The head loses more jobs than a page shows, or fewer, or gets one back; new jobs go to the tail.
        match round % 4 {
            _ if round > 11 => {}
            0 => held.extend(store.claim("a", 7).await),
            3 => {
                let released = held.pop().expect("some are held");
                store.settle("a", &released, Outcome::release(Duration::ZERO)).await;
            }
            _ => held.extend(store.claim("a", 1).await),
        }
        store.push(job("new")).await;
        round += 1;
        assert!(round < 100, "the list never ends");
    }
    let claimed: HashSet<JobId> = held.iter().map(|held| held.job.id).collect();
    let missing: Vec<_> = ids.iter().filter(|id| !claimed.contains(id) && !shown.contains(id)).collect();
    assert!(missing.is_empty(), "{} unclaimed jobs were not listed", missing.len());
}
