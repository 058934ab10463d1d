//! Claim: which jobs, in which order, and never before they are due.

use duly::bounds::ARGS_BYTES_MAX;
use duly::job::Due;
use duly::store::{AttemptEnd, ChangeResult, Claim, JobStore, PROMOTE_MAX};
use duly::{Fence, JobId, Outcome, Priority, Push, PushResult, State};

use crate::test_store::*;

pub async fn job_is_not_claimed_before_due(store: TestStore) {
    store.push(job("later").after(SECOND)).await;
    store.advance(SECOND - MS).await;
    assert!(store.claim("a", 9).await.is_empty());
    store.advance(MS).await;
    assert_eq!(kinds(&store.claim("a", 9).await), ["later"]);
}

pub async fn claim_orders_by_priority_then_waiting_time(store: TestStore) {
    for (kind, priority) in [
        ("low", Priority::Low),
        ("normal 1", Priority::Normal),
        ("high", Priority::High),
        ("normal 2", Priority::Normal),
        ("critical", Priority::Critical),
    ] {
        store.push(job(kind).priority(priority)).await;
    }
    let held = store.claim("a", 9).await;
    assert_eq!(kinds(&held), ["critical", "high", "normal 1", "normal 2", "low"]);
}

pub async fn one_claim_takes_retried_and_new_jobs(store: TestStore) {
    let with = |kind, priorities: &[Priority]| priorities.iter().map(|one| job(kind).priority(*one)).collect();
    store.push_all(with("tried", &[Priority::Low, Priority::Normal])).await;
    for held in store.claim("a", 9).await {
        store.settle("a", &held, retry_at_once()).await;
    }
    store.push_all(with("new", &[Priority::Low, Priority::Normal, Priority::Critical])).await;
    let held = store.claim("a", 9).await;
    let found: Vec<_> = held.iter().map(|held| (held.job.priority, held.job.kind.as_str(), held.attempts)).collect();
    let both = |priority| [(priority, "tried", 1), (priority, "new", 0)];
    let critical = [(Priority::Critical, "new", 0)];
    assert_eq!(found, [&critical[..], &both(Priority::Normal), &both(Priority::Low)].concat());
    let ends = held.iter().map(|held| AttemptEnd::from_held(held, Outcome::Ack, KEEP)).collect();
    let node = store.node("a").await;
    assert_eq!(store.store.settle(node, ends).await.expect("settles"), nothing_lost());
}

pub async fn retried_job_goes_to_the_tail(store: TestStore) {
    store.push_all(vec![job("first"), job("second")]).await;
    let first = store.claim_one("a").await;
    store.settle("a", &first, retry_at_once()).await;
    assert_eq!(kinds(&store.claim("a", 9).await), ["second", "first"]);
}

pub async fn released_job_goes_to_the_head(store: TestStore) {
    store.push_all(vec![job("first"), job("second"), job("third")]).await;
    let held = store.claim("a", 2).await;
    store.settle("a", &held[1], release()).await;
    assert_eq!(kinds(&store.claim("a", 9).await), ["second", "third"]);
}

pub async fn due_job_goes_behind_ready_jobs(store: TestStore) {
    store.push_all(vec![job("due").after(SECOND), job("ready")]).await;
    store.advance(SECOND).await;
    assert_eq!(kinds(&store.claim("a", 9).await), ["ready", "due"]);
}

pub async fn claim_takes_at_most_max_jobs(store: TestStore) {
    store.push_all((0..5).map(|_| job("one")).collect()).await;
    let first = store.claim_with("a", claim(2)).await;
    assert_eq!((first.jobs.len(), first.has_more), (2, true));
    let rest = store.claim_with("a", claim(4)).await;
    assert_eq!((rest.jobs.len(), rest.has_more), (3, false));
}

pub async fn claim_takes_only_from_its_queue(store: TestStore) {
    store.push(job("there").queue("other")).await;
    assert!(store.claim("a", 9).await.is_empty());
    let held = store.claim_with("a", Claim { queue: "other".into(), ..claim(9) }).await.jobs;
    assert_eq!(held[0].job.queue, "other");
}

pub async fn paused_queue_yields_no_jobs(store: TestStore) {
    let id = store.push(job("one")).await.id();
    assert!(store.store.set_paused("default", true).await.expect("pauses"));
    assert!(!store.store.set_paused("default", true).await.expect("pauses"), "was paused already");
    assert!(store.claim("a", 9).await.is_empty());
    assert_eq!(store.state(id).await, Some(State::Ready));
    assert!(store.store.set_paused("default", false).await.expect("resumes"));
    assert_eq!(store.claim("a", 9).await.len(), 1);
}

pub async fn queue_can_be_paused_before_its_first_job(store: TestStore) {
    assert!(store.store.set_paused("default", true).await.expect("pauses"));
    store.push(job("one")).await;
    assert!(store.claim("a", 9).await.is_empty());
}

pub async fn fences_grow_with_every_claim(store: TestStore) {
    let mut last = Fence(0);
    store.push(job("again")).await;
    for _ in 0..50 {
        let held = store.claim_one("a").await;
        assert!(held.fence > last, "although the clock does not advance");
        last = held.fence;
        store.settle("a", &held, release()).await;
    }
}

pub async fn claim_with_lost_reply_is_returned_again(store: TestStore) {
    store.push_all(vec![job("one"), job("two"), job("three")]).await;
    let lost = store.claim("a", 2).await;
    let again = store.claim_with("a", Claim { resync: true, ..claim(9) }).await.jobs;
    assert_eq!(kinds(&again), ["one", "two"], "every job the node holds, and no new one");
    assert_eq!(again[0].fence, lost[0].fence);
    for held in &again {
        assert_eq!(store.settle("a", held, Outcome::Ack).await, nothing_lost());
    }
    assert_eq!(kinds(&store.claim("a", 9).await), ["three"]);
}

/// A server closes a subscribed connection with too much pending output, so the size of a reply is bounded.
pub async fn largest_jobs_are_claimed_in_any_number(store: TestStore) {
    let large = |kind: &str, priority| {
        let args = format!("\"{}\"", "x".repeat(ARGS_BYTES_MAX - 2));
        Push::new(kind, args).priority(priority)
    };
    let _wakes = store.store.subscribe_wakes(store.node("a").await).await.expect("subscribes");
    for index in 0..30 {
        store.push(large(&format!("normal {index:02}"), Priority::Normal)).await;
    }
    for tried in store.claim("a", 10).await {
        store.settle("a", &tried, retry_at_once()).await;
    }
    for index in 0..20 {
        store.push(large(&format!("low {index:02}"), Priority::Low)).await;
    }
    let normal = (10..30).chain(0..10).map(|index| format!("normal {index:02}"));
    let expected: Vec<String> = normal.chain((0..20).map(|index| format!("low {index:02}"))).collect();

    let mut held = Vec::new();
    while held.len() < expected.len() {
        let reply = store.claim_with("a", claim(100)).await;
        assert!(!reply.jobs.is_empty(), "each reply contains jobs");
        assert!(reply.has_more || held.len() + reply.jobs.len() == expected.len(), "and reports that more are ready");
        held.extend(reply.jobs);
    }
    assert_eq!(kinds(&held), expected, "in their order, although some did not fit a reply");
    let tried = |kind: &str| kind.starts_with("normal 0");
    assert!(held.iter().all(|held| held.attempts == u32::from(tried(&held.job.kind))), "each with its attempts");
    let mut again = store.claim_with("a", Claim { resync: true, ..claim(0) }).await.jobs;
    again.sort_by_key(|one| held.iter().position(|held| held.job.id == one.job.id));
    assert_eq!(kinds(&again), expected, "a resync returns all of them");
    let ends = again.iter().map(|held| AttemptEnd::from_held(held, Outcome::Ack, KEEP)).collect();
    let node = store.node("a").await;
    assert_eq!(store.store.settle(node, ends).await.expect("settles"), nothing_lost());
}

/// Returns a job with args of this length.
fn job_of_bytes(kind: &str, bytes: usize) -> Push {
    job(kind).args(format!("\"{}\"", "x".repeat(bytes - 2)))
}

/// Jobs of two priorities, some of them tried before, and a stale entry of a removed one.
pub async fn claim_with_a_limit_of_bytes_leaves_further_jobs_in_place(store: TestStore) {
    const BYTES: usize = 1_000;
    let large = |kind: &str, priority| job_of_bytes(kind, BYTES).priority(priority);
    for kind in ["tried 1", "tried 2"] {
        store.push(large(kind, Priority::Normal)).await;
    }
    for tried in store.claim("a", 9).await {
        store.settle("a", &tried, retry_at_once()).await;
    }
    let removed = store.push(large("removed", Priority::Normal)).await;
    store.push_all(["normal 1", "normal 2"].map(|kind| large(kind, Priority::Normal)).into()).await;
    store.push_all(["high 1", "high 2", "high 3"].map(|kind| large(kind, Priority::High)).into()).await;
    store.remove(removed.id()).await;

    let expected = ["high 1", "high 2", "high 3", "tried 1", "tried 2", "normal 1", "normal 2"];
    let mut held = Vec::new();
    while held.len() < expected.len() {
        // Less than a job fits, or three of them.
        let args_bytes_max = Some([1, 7 * BYTES / 2][held.len() % 2]);
        let reply = store.claim_with("a", Claim { args_bytes_max, ..claim(9) }).await;
        assert!(!reply.jobs.is_empty() && reply.jobs.len() <= 3, "{:?}", kinds(&reply.jobs));
        held.extend(reply.jobs);
        assert!(reply.has_more || held.len() == expected.len(), "and reports that more are ready");
        let counts = store.store.counts().await.expect("counts");
        assert_eq!((counts[0].ready, counts[0].running), ((expected.len() - held.len()) as u64, held.len() as u64));
    }
    assert_eq!(kinds(&held), expected);
    assert!(held.iter().all(|held| held.attempts == u32::from(held.job.kind.starts_with("tried"))));
    for held in &held {
        assert_eq!(store.settle("a", held, Outcome::Ack).await, nothing_lost());
    }
    assert!(store.claim("a", 9).await.is_empty());
}

pub async fn resync_with_a_limit_of_bytes_has_no_args(store: TestStore) {
    store.push_all(["one", "two"].map(|kind| job_of_bytes(kind, 1_000)).into()).await;
    let held = store.claim("a", 2).await;
    let resync = Claim { resync: true, args_bytes_max: Some(1_500), ..claim(9) };
    let listed = store.claim_with("a", resync).await.jobs;
    assert_eq!(kinds(&listed), ["one", "two"], "all of them, whatever their size");
    assert!(listed.iter().zip(&held).all(|(listed, held)| listed.job.args.is_empty() && listed.fence == held.fence));
    assert_eq!(store.settle("a", &listed[0], release()).await, nothing_lost());
    assert_eq!(store.settle("a", &listed[1], Outcome::Ack).await, nothing_lost());
    let again = store.claim_one("a").await;
    assert_eq!((again.job.args.len(), again.attempts), (1_000, 0));
    assert_eq!(store.settle("a", &again, Outcome::Ack).await, nothing_lost());
    let counts = store.store.counts().await.expect("counts");
    assert_eq!(counts[0].bytes, 0, "the args of both are subtracted");
}

pub async fn many_due_jobs_are_promoted_in_bounded_batches(store: TestStore) {
    let flood = 2 * PROMOTE_MAX + 10;
    store.push_all((0..flood).map(|_| job("due").after(SECOND)).collect()).await;
    store.push(job("urgent").queue("other")).await;
    store.advance(SECOND).await;

    let (mut claimed, mut claims) = (0, 0);
    while claimed < flood {
        let reply = store.claim_with("a", claim(100)).await;
        assert!(!reply.jobs.is_empty(), "each operation returns jobs");
        claimed += reply.jobs.len();
        claims += 1;
        assert_eq!(reply.has_more, claimed < flood);
    }
    assert!(claims <= flood / 100 + 1);
    assert!(store.claim("a", 1).await.is_empty());
}

pub async fn empty_claim_returns_when_to_look_again(store: TestStore) {
    assert_eq!(store.claim_with("a", claim(1)).await.next_due, None);
    store.push_all(vec![job("second").after(5 * SECOND), job("first").after(2 * SECOND)]).await;
    store.advance(SECOND).await;
    assert_eq!(store.claim_with("a", claim(1)).await.next_due, Some(SECOND));
}

pub async fn claim_finds_jobs_behind_many_removed_ones(store: TestStore) {
    let removed = store.push_all((0..150).map(|_| job("removed")).collect()).await;
    store.push(job("live")).await;
    for pushed in removed {
        store.remove(pushed.id()).await;
    }
    for claims in 1.. {
        let reply = store.claim_with("a", claim(1)).await;
        if !reply.jobs.is_empty() {
            assert_eq!(kinds(&reply.jobs), ["live"]);
            break;
        }
        assert!(reply.has_more && claims < 9, "an empty reply asks for another claim");
    }
}

/// In a paused queue a job is rescheduled and removed; after its id is forgotten, it is pushed again.
pub async fn rescheduled_job_is_distinguished_from_its_stale_entry(store: TestStore) {
    let id = JobId::fresh();
    store.store.set_paused("default", true).await.expect("pauses");
    // The last change of each round.
    for last in ["removed", "removed", "rescheduled", "ready"] {
        let pushed = store.push(job(last).id(id).after(SECOND)).await;
        assert_eq!(pushed, PushResult::New(id), "its id is forgotten");
        assert_eq!(store.store.reschedule(id, Due::Now).await.expect("reschedules"), ChangeResult::Applied);
        if last == "ready" {
            break;
        }
        if last == "rescheduled" {
            assert_eq!(
                store.store.reschedule(id, Due::After(SECOND)).await.expect("reschedules"),
                ChangeResult::Applied
            );
        }
        store.remove(id).await;
        for _ in 0..2 {
            store.advance(REMEMBER).await;
            store.prune().await;
        }
    }
    let counts = store.store.counts().await.expect("counts");
    assert_eq!((counts[0].ready, counts[0].scheduled), (1, 0));
    store.store.set_paused("default", false).await.expect("resumes");
    let held = store.claim("a", 9).await;
    assert_eq!(kinds(&held), ["ready"], "once, as pushed last");
    assert_eq!(store.settle("a", &held[0], Outcome::Ack).await, nothing_lost());
    assert!(store.claim("a", 9).await.is_empty());
}
