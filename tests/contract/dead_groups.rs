//! Groups of dead jobs with the same kind and error.

use duly::job::Due;
use duly::store::{AdminStore, JobStore};
use duly::{JobId, Outcome};

use crate::test_store::{SECOND, TestStore, job};

async fn die(store: &TestStore, kind: &str, error: &str) -> JobId {
    let id = store.push(job(kind)).await.id();
    let held = store.claim_one("a").await;
    store.settle("a", &held, Outcome::bury(error)).await;
    id
}

async fn groups(store: &TestStore) -> Vec<(String, String, u64)> {
    let groups = store.store.dead_groups(Some("default")).await.expect("groups");
    groups.into_iter().map(|group| (group.kind, group.error, group.count)).collect()
}

fn group(kind: &str, error: &str, count: u64) -> (String, String, u64) {
    (kind.to_owned(), error.to_owned(), count)
}

pub async fn dead_jobs_are_grouped_by_kind_and_error(store: TestStore) {
    die(&store, "mail", "timed out after 30s").await;
    let first = store.now();
    store.advance(SECOND).await;
    die(&store, "mail", "timed out after 7s").await;
    die(&store, "mail", "no such user 'ada'").await;
    die(&store, "mail", "timed out after 9s").await;
    die(&store, "sms", "no such user 'bob'").await;
    die(&store, "sms", "no such user 'eve'").await;
    let found = groups(&store).await;
    let expected = [
        group("mail", "timed out after #s", 3),
        group("sms", "no such user '?'", 2),
        group("mail", "no such user '?'", 1),
    ];
    assert_eq!(found, expected);
    let all = store.store.dead_groups(None).await.expect("groups");
    assert_eq!((all[0].oldest, all[0].newest), (first, first + SECOND));
    assert!(store.store.dead_groups(Some("nowhere")).await.expect("groups").is_empty());
}

pub async fn group_shrinks_as_its_jobs_leave(store: TestStore) {
    let ids = [die(&store, "a", "oh 1").await, die(&store, "a", "oh 2").await, die(&store, "a", "oh 3").await];
    store.remove(ids[0]).await;
    assert_eq!(groups(&store).await, [group("a", "oh #", 2)]);
    store.store.reschedule(ids[1], Due::Now).await.expect("reschedules");
    assert_eq!(groups(&store).await, [group("a", "oh #", 1)]);
    let held = store.claim_one("a").await;
    store.settle("a", &held, Outcome::bury("ah 1")).await;
    assert_eq!(groups(&store).await.len(), 2, "it died of another error this time");
    store.sleep(100 * 24 * 3_600 * SECOND);
    store.prune().await;
    assert_eq!(groups(&store).await, []);
}

pub async fn group_selects_its_jobs_as_a_filter(store: TestStore) {
    let id = die(&store, "a", "oh 1").await;
    die(&store, "b", "oh 2").await;
    die(&store, "a", "else").await;
    let groups = store.store.dead_groups(None).await.expect("groups");
    let group = groups.iter().find(|group| group.kind == "a" && group.error == "oh #").expect("is there");
    let filter: duly::Filter = format!("group:{}", group.id).parse().expect("a filter");
    let jobs = store.store.list(filter).await.expect("lists").jobs;
    assert_eq!(jobs.iter().map(|record| record.job.id).collect::<Vec<_>>(), [id]);
}
