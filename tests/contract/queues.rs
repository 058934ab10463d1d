//! Removal of queues.

use std::time::Duration;

use duly::store::{AdminStore, JobStore, QueueUse, RemoveQueueResult};
use duly::{Error, Push};

use crate::test_store::{TestStore, job, past_the_lease};

const HOUR: Duration = Duration::from_secs(3600);

async fn remove(store: &TestStore, queue: &str) -> RemoveQueueResult {
    store.store.remove_queue(queue, false).await.expect("removes")
}

async fn queues(store: &TestStore) -> Vec<String> {
    store.store.counts().await.expect("counts").into_iter().map(|counts| counts.queue).collect()
}

pub async fn queue_without_jobs_is_removed_with_its_settings(store: TestStore) {
    let id = store.push(job("a").queue("mail")).await.id();
    store.push(job("b").queue("other")).await;
    assert_eq!(remove(&store, "mail").await, RemoveQueueResult::InUse(QueueUse::Jobs));
    store.remove(id).await;
    let capacity = duly::admin::Capacity::unlimited().jobs(1);
    store.store.set_capacity("mail", capacity).await.expect("sets");
    store.store.set_paused("mail", true).await.expect("pauses");
    assert_eq!(remove(&store, "mail").await, RemoveQueueResult::Removed);
    assert_eq!(remove(&store, "mail").await, RemoveQueueResult::NotFound);
    assert_eq!(queues(&store).await, ["other"]);
    store.push_all(vec![job("a").queue("mail"), job("b").queue("mail")]).await;
    let counts = store.store.counts().await.expect("counts");
    let mail = counts.iter().find(|counts| counts.queue == "mail").expect("created again");
    assert_eq!((mail.ready, mail.paused, mail.capacity.is_unlimited()), (2, false, true));
}

pub async fn queue_with_cron_rule_is_not_removed(store: TestStore) {
    store.duly.cron("nightly", "0 3 * * *").push(Push::new("a", "1").queue("mail")).await.expect("a rule");
    assert_eq!(remove(&store, "mail").await, RemoveQueueResult::InUse(QueueUse::CronRules));
    store.duly.crons().remove("nightly").await.expect("removes");
    assert_eq!(remove(&store, "mail").await, RemoveQueueResult::Removed);
}

pub async fn queue_with_a_live_worker_is_not_removed(store: TestStore) {
    let id = store.push(job("a")).await.id();
    store.node("a").await;
    store.remove(id).await;
    let refused = store.duly.queues().remove("default").await;
    assert!(matches!(&refused, Err(Error::Conflict { reason, .. }) if reason.contains("works on it")), "{refused:?}");
    store.silence("a");
    store.advance(past_the_lease()).await;
    store.store.leave(store.node("a").await).await.expect("leaves");
    store.duly.queues().remove("default").await.expect("removes");
    assert_eq!(queues(&store).await, Vec::<String>::new());
}

pub async fn unused_queue_is_removed_after_a_day(store: TestStore) {
    let id = store.push(job("a").queue("mail")).await.id();
    store.push(job("a").queue("busy")).await;
    store.store.set_paused("paused", true).await.expect("pauses");
    store.remove(id).await;
    assert_eq!(store.duly.queues().remove_unused().await.expect("runs"), 0, "it has counters and remembers an id");
    store.sleep(25 * HOUR);
    let mut removed = 0;
    // The remembered ids go in two steps.
    for _ in 0..3 {
        removed += store.duly.queues().remove_unused().await.expect("runs");
        store.sleep(HOUR);
    }
    assert_eq!((removed, queues(&store).await), (1, vec!["busy".to_owned(), "paused".to_owned()]));
}

pub async fn resume_creates_no_queue(store: TestStore) {
    assert!(!store.store.set_paused("none", false).await.expect("resumes"));
    assert_eq!(queues(&store).await, Vec::<String>::new());
}
