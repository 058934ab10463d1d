//! Unique keys: at most one unfinished job per key and queue, and no key outlives its job.

use std::time::Duration;

use duly::job::{Due, UniqueConflict, UniqueScope};
use duly::store::{ChangeResult, JobStore};
use duly::{JobId, Outcome, Push, PushResult, State};

use crate::test_store::*;

fn keyed(kind: &str) -> Push {
    job(kind).unique("k")
}

fn replacing(kind: &str) -> Push {
    keyed(kind).on_conflict(UniqueConflict::Replace)
}

pub async fn push_with_taken_key_keeps_the_existing_job(store: TestStore) {
    let old = store.push(keyed("old")).await.id();
    assert_eq!(store.push(keyed("new")).await, PushResult::Existing(old));
    assert_eq!(kinds(&store.claim("a", 9).await), ["old"]);
}

pub async fn replace_substitutes_a_waiting_job(store: TestStore) {
    let old = store.push(keyed("old").after(SECOND)).await.id();
    let new = replacing("new").id(JobId::from_name("new"));
    assert_eq!(store.push(new).await, PushResult::Replaced { id: JobId::from_name("new"), old });
    assert_eq!(store.get(old).await, None);
    store.advance(SECOND).await;
    assert_eq!(kinds(&store.claim("a", 9).await), ["new"]);
    assert!(matches!(store.push(keyed("third")).await, PushResult::Existing(id) if id == JobId::from_name("new")));
}

pub async fn running_job_is_not_replaced(store: TestStore) {
    let old = store.push(keyed("old")).await.id();
    let held = store.claim_one("a").await;
    assert_eq!(store.push(replacing("new")).await, PushResult::Existing(old));
    assert_eq!(store.settle("a", &held, Outcome::Ack).await, nothing_lost());
}

pub async fn key_is_free_after_its_job_ends(store: TestStore) {
    for outcome in [Outcome::Ack, Outcome::bury("no")] {
        for keep in [Duration::ZERO, KEEP] {
            store.push(keyed("one").keep(keep)).await;
            let held = store.claim_one("a").await;
            store.settle("a", &held, outcome.clone()).await;
            assert!(matches!(store.push(keyed("two").keep(keep)).await, PushResult::New(_)), "after {outcome:?}");
            let two = store.claim_one("a").await;
            store.settle("a", &two, Outcome::Ack).await;
        }
    }
    let id = store.push(keyed("removed")).await.id();
    store.remove(id).await;
    assert!(matches!(store.push(keyed("next")).await, PushResult::New(_)), "after a remove");
}

pub async fn key_stays_taken_across_a_retry(store: TestStore) {
    let id = store.push(keyed("one")).await.id();
    let held = store.claim_one("a").await;
    store.settle("a", &held, Outcome::retry(SECOND, "oh")).await;
    assert_eq!(store.push(keyed("two")).await, PushResult::Existing(id));
}

pub async fn same_key_in_two_queues_does_not_conflict(store: TestStore) {
    store.push(keyed("here")).await;
    assert!(matches!(store.push(keyed("there").queue("other")).await, PushResult::New(_)));
}

pub async fn same_key_of_two_kinds_does_not_conflict(store: TestStore) {
    let key = |kind: &str| job(kind).unique("user:7");
    let (first, second) = (store.duly.push(key("a")).await.expect("pushes"), store.duly.push(key("b")).await);
    assert!(matches!(second, Ok(PushResult::New(_))), "{second:?}");
    assert_eq!(store.duly.push(key("a")).await.expect("pushes"), PushResult::Existing(first.id()));
    let unique = store.get(first.id()).await.and_then(|record| record.job.unique).expect("is kept");
    assert_eq!((unique.key(), unique.scope()), ("user:7", UniqueScope::Kind));
}

pub async fn key_of_the_whole_queue_is_shared_by_kinds(store: TestStore) {
    let key = |kind: &str| job(kind).unique("user:7").unique_scope(UniqueScope::Queue);
    let first = store.duly.push(key("a")).await.expect("pushes").id();
    assert_eq!(store.duly.push(key("b")).await.expect("pushes"), PushResult::Existing(first));
    let own = store.duly.push(job("a").unique("user:7")).await.expect("pushes");
    assert!(matches!(own, PushResult::New(_)), "another scope: {own:?}");
    let newer = key("b").on_conflict(UniqueConflict::Replace);
    assert!(matches!(store.duly.push(newer).await, Ok(PushResult::Replaced { old, .. }) if old == first));
}

pub async fn first_of_two_jobs_with_one_key_in_one_push_wins(store: TestStore) {
    let pushed = store.push_all(vec![keyed("first"), keyed("second")]).await;
    assert_eq!(pushed[1], PushResult::Existing(pushed[0].id()));
    assert_eq!(kinds(&store.claim("a", 9).await), ["first"]);
}

pub async fn first_of_two_replacements_in_one_push_wins(store: TestStore) {
    let pushed = store.push_all(vec![replacing("first"), replacing("second")]).await;
    assert_eq!(pushed[1], PushResult::Existing(pushed[0].id()), "an acknowledged job is not replaced");
    assert_eq!(kinds(&store.claim("a", 9).await), ["first"]);
}

pub async fn key_conflict_does_not_use_up_the_id(store: TestStore) {
    let id = JobId::from_name("twice");
    let pushed =
        store.push_all(vec![job("first").unique("x"), job("second").id(id).unique("x"), job("third").id(id)]).await;
    assert_eq!(pushed[1..], [PushResult::Existing(pushed[0].id()), PushResult::New(id)]);
    assert_eq!(kinds(&store.claim("a", 9).await), ["first", "third"]);
}

pub async fn replaced_id_is_remembered(store: TestStore) {
    let old = JobId::from_name("old");
    store.push(keyed("old").id(old)).await;
    store.push(replacing("new")).await;
    assert_eq!(
        store.push(keyed("old").id(old)).await,
        PushResult::Existing(old),
        "a late repetition is not pushed again"
    );
    assert_eq!(kinds(&store.claim("a", 9).await), ["new"]);
}

pub async fn dead_job_with_taken_key_stays_dead(store: TestStore) {
    let dead = store.push(keyed("dead")).await.id();
    let held = store.claim_one("a").await;
    store.settle("a", &held, Outcome::bury("no")).await;
    let other = store.push(keyed("other")).await.id();

    assert_eq!(store.store.reschedule(dead, Due::Now).await.expect("replies"), ChangeResult::Existing(other));
    assert_eq!(store.state(dead).await, Some(State::Dead));

    store.remove(other).await;
    assert_eq!(store.store.reschedule(dead, Due::Now).await.expect("replies"), ChangeResult::Applied);
    assert_eq!(store.push(keyed("third")).await, PushResult::Existing(dead), "it has its key again");
}

pub async fn rejected_ack_frees_no_key(store: TestStore) {
    let id = store.push(keyed("one")).await.id();
    store.node("b").await;
    let a = store.claim_one("a").await;
    store.silence("a");
    store.advance(past_the_lease() + SECOND).await;
    let b = store.claim_from("b", "a", 1).await.jobs.pop().expect("taken back");
    assert_eq!(store.settle("a", &a, Outcome::Ack).await, [id]);
    assert_eq!(store.push(keyed("two")).await, PushResult::Existing(id));
    assert_eq!(store.settle("b", &b, Outcome::Ack).await, nothing_lost());
}
