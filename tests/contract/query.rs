//! Reading jobs, and changing those that are not running.

use std::collections::BTreeSet;

use duly::job::Due;
use duly::store::{ChangeResult, JobStore, PeerStore};
use duly::{Filter, JobId, Outcome, Push, PushResult, State};

use crate::test_store::*;

pub async fn get_returns_a_job_in_every_state(store: TestStore) {
    let id = store.push(job("one").after(SECOND)).await.id();
    assert_eq!(store.state(id).await, Some(State::Scheduled));
    store.advance(SECOND).await;
    let held = store.claim_one("a").await;

    let running = store.get(id).await.expect("is there");
    assert_eq!((running.state, running.fence), (State::Running, Some(held.fence)));
    assert_eq!(running.node, Some(store.node("a").await));
    assert_eq!(running.due, held.due);

    store.settle("a", &held, Outcome::Ack).await;
    let done = store.get(id).await.expect("is kept");
    assert_eq!((done.state, done.node, done.fence), (State::Done, None, None));
    assert!(done.ended >= Some(done.due));
}

pub async fn unknown_job_is_not_found(store: TestStore) {
    let id = JobId::from_name("never");
    assert_eq!(store.get(id).await, None);
    assert_eq!(store.remove(id).await, ChangeResult::NotFound);
    assert_eq!(store.store.reschedule(id, Due::Now).await.expect("replies"), ChangeResult::NotFound);
}

pub async fn list_filters_by_state_queue_and_kind(store: TestStore) {
    store.push_all(vec![job("a"), job("b"), job("a").queue("other"), job("c").after(SECOND)]).await;
    let held = store.claim("n", 1).await;
    store.settle("n", &held[0], Outcome::bury("no")).await;

    let list = async |filter: Filter| {
        let page = store.store.list(filter.limit(10)).await.expect("lists");
        let mut kinds: Vec<_> = page.jobs.into_iter().map(|r| format!("{} {}", r.job.kind, r.state)).collect();
        kinds.sort();
        kinds
    };
    assert_eq!(list(Filter::default()).await, ["a dead", "a ready", "b ready", "c scheduled"]);
    assert_eq!(list(Filter::all().state(State::Ready)).await, ["a ready", "b ready"]);
    assert_eq!(list(Filter::all().state(State::Dead)).await, ["a dead"]);
    assert_eq!(list(Filter::all().state(State::Running)).await, [""; 0]);
    assert_eq!(list(Filter::all().queue("other")).await, ["a ready"]);
    assert_eq!(list(Filter::all().kind("a")).await, ["a dead", "a ready"]);
}

pub async fn pages_contain_every_job_once(store: TestStore) {
    let spread = |n: u32| job("one").queue(["x", "y"][n as usize % 2]).after(SECOND * (1 + n % 3));
    let pushed: BTreeSet<_> = store.push_all((0..25).map(spread).collect()).await.iter().map(PushResult::id).collect();
    for state in [None, Some(State::Scheduled)] {
        let mut listed = Vec::new();
        let mut cursor = None;
        loop {
            let page = store.store.list(Filter::all().state(state).limit(4).cursor(cursor)).await.expect("lists");
            assert!(page.jobs.len() <= 4);
            listed.extend(page.jobs.iter().map(|record| record.job.id));
            cursor = page.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!(listed.len(), 25);
        assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), pushed);
    }
}

pub async fn list_without_limit_is_one_page(store: TestStore) {
    store.push_all((0..60).map(|_| job("one")).collect()).await;
    let page = store.store.list(Filter::default()).await.expect("lists");
    assert_eq!((page.jobs.len(), page.next_cursor.is_some()), (duly::bounds::DEFAULT_PAGE_SIZE, true));
    let nowhere = Filter::all().queue("nowhere");
    assert!(store.store.list(nowhere).await.expect("lists").jobs.is_empty());
}

pub async fn invalid_cursor_is_rejected(store: TestStore) {
    let filter = Filter::all().cursor("x; DROP TABLE".to_owned()).limit(1);
    let error = store.store.list(filter).await.expect_err("refused");
    assert_eq!(error.code(), "invalid");
}

pub async fn removed_job_never_runs(store: TestStore) {
    let ready = store.push(job("ready")).await.id();
    let scheduled = store.push(job("scheduled").after(SECOND)).await.id();
    let promoted = store.push(job("promoted").after(MS)).await.id();
    store.push(job("held")).await;
    store.advance(MS).await;
    let held = store.claim("a", 1).await; // promotes `promoted`, claims `ready`
    store.settle("a", &held[0], release()).await;

    for id in [ready, scheduled, promoted] {
        assert_eq!(store.remove(id).await, ChangeResult::Applied);
        assert_eq!(store.get(id).await, None);
        assert_eq!(store.remove(id).await, ChangeResult::NotFound);
    }
    store.advance(SECOND).await;
    assert_eq!(kinds(&store.claim("a", 9).await), ["held"]);
}

/// A store may read fewer large jobs per operation; pages still continue where the last one ended.
pub async fn running_jobs_are_listed_while_others_end(store: TestStore) {
    let long = || Push::new("long", format!("\"{}\"", "x".repeat(700_000))).keep(KEEP);
    let pushed = store.push_all((0..4).map(|_| long()).chain((0..60).map(|_| job("short"))).collect()).await;
    let mut held = Vec::new();
    while held.len() < pushed.len() {
        held.extend(store.claim("n", 64).await);
    }
    let mut shown = Vec::new();
    let (mut cursor, mut pages) = (None, 0);
    loop {
        let filter = Filter::all().state(State::Running).limit(7).cursor(cursor);
        let page = store.store.list(filter).await.expect("lists");
        shown.extend(page.jobs.into_iter().filter(|record| record.job.kind == "short").map(|record| record.job.id));
        (cursor, pages) = (page.next_cursor, pages + 1);
        if cursor.is_none() {
            break;
        }
        if let Some(index) = held.iter().position(|held| held.job.kind == "long") {
            store.settle("n", &held.swap_remove(index), Outcome::Ack).await;
        }
    }
    assert!(pages > 5, "{pages} pages");
    let all: BTreeSet<JobId> = held.iter().map(|held| held.job.id).collect();
    assert_eq!(shown.into_iter().collect::<BTreeSet<_>>(), all);
}

pub async fn running_job_cannot_be_removed_or_rescheduled(store: TestStore) {
    let id = store.push(job("one")).await.id();
    let held = store.claim_one("a").await;
    assert_eq!(store.remove(id).await, ChangeResult::Running);
    assert_eq!(store.store.reschedule(id, Due::Now).await.expect("replies"), ChangeResult::Running);
    assert_eq!(store.settle("a", &held, Outcome::Ack).await, nothing_lost());
}

pub async fn scheduled_job_can_be_rescheduled_to_now(store: TestStore) {
    let id = store.push(job("one").after(1_000 * SECOND)).await.id();
    assert_eq!(store.store.reschedule(id, Due::Now).await.expect("replies"), ChangeResult::Applied);
    assert_eq!(store.claim_one("a").await.job.id, id);
}

pub async fn ready_job_can_be_rescheduled_to_later(store: TestStore) {
    let id = store.push(job("one")).await.id();
    assert_eq!(store.store.reschedule(id, Due::After(SECOND)).await.expect("replies"), ChangeResult::Applied);
    assert!(store.claim("a", 1).await.is_empty());
    store.advance(SECOND).await;
    assert_eq!(store.claim_one("a").await.job.id, id);
}

pub async fn rescheduled_dead_job_starts_over(store: TestStore) {
    let id = store.push(job("one")).await.id();
    let held = store.claim_one("a").await;
    store.settle("a", &held, Outcome::bury("no")).await;
    assert_eq!(store.store.reschedule(id, Due::Now).await.expect("replies"), ChangeResult::Applied);
    let again = store.claim_one("a").await;
    assert_eq!((again.job.id, again.attempts, again.crashes), (id, 0, 0));
    assert_eq!(store.get(id).await.expect("is there").failures.len(), 1, "its history stays");
}

pub async fn counts_are_by_queue_and_state(store: TestStore) {
    store.push_all((0..4).map(|_| job("one")).collect()).await;
    store.push_all(vec![job("one").after(SECOND), job("one").queue("other")]).await;
    let held = store.claim("a", 3).await;
    store.settle("a", &held[0], Outcome::Ack).await;
    store.settle("a", &held[1], Outcome::bury("no")).await;
    store.store.set_paused("other", true).await.expect("pauses");

    let counts = store.store.counts().await.expect("counts");
    assert_eq!(counts.len(), 2);
    let first = &counts[0];
    assert_eq!((first.queue.as_str(), first.paused), ("default", false));
    assert_eq!((first.scheduled, first.ready, first.running, first.done, first.dead), (1, 1, 1, 1, 1));
    assert_eq!((counts[1].queue.as_str(), counts[1].paused, counts[1].ready), ("other", true, 1));
}

pub async fn nodes_are_listed_with_their_state(store: TestStore) {
    let (a, b) = (store.node("a").await, store.node("b").await);
    store.push(job("one")).await;
    store.claim_one("a").await;
    store.silence("a");
    store.advance(past_the_lease() + SECOND).await;

    let nodes = store.store.nodes().await.expect("lists");
    let listed: Vec<_> = nodes.iter().map(|n| (n.id, n.alive, n.held)).collect();
    assert_eq!(listed, [(a, false, 1), (b, true, 0)]);
    assert_eq!(nodes[0].pid, std::process::id());

    store.store.leave(b).await.expect("leaves");
    assert_eq!(store.store.nodes().await.expect("lists").len(), 1);
}

pub async fn expired_node_is_listed_again_after_a_heartbeat(store: TestStore) {
    let a = store.node("a").await;
    store.node("b").await;
    store.silence("a");
    store.advance(past_the_lease()).await;
    store.push(job("one")).await;
    // The node claims before its next heartbeat.
    store.claim_one("a").await;
    store.heartbeat("a").await;
    let nodes = store.store.nodes().await.expect("reads");
    let found = nodes.iter().find(|node| node.id == a).expect("is listed");
    assert!(found.alive && found.held == 1, "{found:?}");
}
