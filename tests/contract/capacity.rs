//! Queues with a capacity.

use duly::admin::Capacity;
use duly::store::{AdminStore, JobStore};
use duly::{Error, Outcome, Push, PushResult};

use crate::test_store::{SECOND, TestStore, job};

async fn set_capacity(store: &TestStore, jobs: Option<u64>, bytes: Option<u64>) -> Capacity {
    store.store.set_capacity("default", Capacity::unlimited().jobs(jobs).bytes(bytes)).await.expect("sets")
}

async fn is_full(store: &TestStore, pushes: Vec<Push>) -> bool {
    match store.store.push(pushes).await {
        Ok(_) => false,
        Err(Error::Full { queue, capacity, .. }) => {
            assert!(queue == "default" && !capacity.is_unlimited());
            true
        }
        Err(other) => panic!("{other}"),
    }
}

async fn waiting_jobs(store: &TestStore) -> u64 {
    store.store.counts().await.expect("counts").iter().map(|queue| queue.ready + queue.scheduled).sum()
}

pub async fn full_queue_rejects_the_whole_push(store: TestStore) {
    store.push(job("a")).await;
    set_capacity(&store, Some(3), None).await;
    assert!(is_full(&store, vec![job("b"), job("c"), job("d").after(SECOND)]).await);
    assert_eq!(waiting_jobs(&store).await, 1, "none of them was pushed");
    assert!(!is_full(&store, vec![job("b"), job("c").after(SECOND)]).await);
    assert!(is_full(&store, vec![job("d")]).await);
    assert!(is_full(&store, vec![job("d").unique("key")]).await);
    let counts = store.store.counts().await.expect("counts");
    assert_eq!(counts[0].capacity, Capacity::unlimited().jobs(3));
    assert_eq!(store.push(job("elsewhere").queue("other")).await.id().to_string().len(), 36);
}

pub async fn capacity_limits_bytes(store: TestStore) {
    set_capacity(&store, None, Some(10)).await;
    assert!(!is_full(&store, vec![Push::new("a", "\"12345678\"")]).await);
    assert!(is_full(&store, vec![Push::new("a", "1")]).await);
    let held = store.claim_one("a").await;
    assert!(is_full(&store, vec![Push::new("a", "1")]).await, "a running job still counts");
    store.settle("a", &held, Outcome::Ack).await;
    assert!(!is_full(&store, vec![Push::new("a", "1")]).await);
    assert_eq!(store.store.counts().await.expect("counts")[0].bytes, 1);
}

pub async fn ended_jobs_free_capacity(store: TestStore) {
    set_capacity(&store, Some(1), None).await;
    store.push(job("a")).await;
    let held = store.claim_one("a").await;
    assert!(is_full(&store, vec![job("b")]).await);
    store.settle("a", &held, Outcome::retry(SECOND, "oh")).await;
    assert!(is_full(&store, vec![job("b")]).await);
    store.remove(held.job.id).await;
    assert!(!is_full(&store, vec![job("b")]).await);
    let held = store.claim_one("a").await;
    store.settle("a", &held, Outcome::bury("no")).await;
    assert!(!is_full(&store, vec![job("c")]).await, "a dead job does not count");
}

pub async fn repeated_push_into_full_queue_is_accepted(store: TestStore) {
    let first = job("a").unique("key");
    let id = first.job_id();
    store.push(first).await;
    set_capacity(&store, Some(1), None).await;
    assert_eq!(store.push(job("b").unique("key")).await, PushResult::Existing(id));
    assert_eq!(store.push(job("a").id(id)).await, PushResult::Existing(id));
    let replaced = store.push(job("c").unique("key").on_conflict(duly::job::UniqueConflict::Replace)).await;
    assert!(matches!(replaced, PushResult::Replaced { .. }), "the count does not grow");
}

pub async fn capacity_can_be_set_before_the_first_job_and_removed(store: TestStore) {
    assert_eq!(set_capacity(&store, Some(0), None).await, Capacity::default());
    assert!(is_full(&store, vec![job("a")]).await);
    assert_eq!(set_capacity(&store, None, None).await, Capacity::unlimited().jobs(0));
    assert!(!is_full(&store, vec![job("a")]).await);
}
