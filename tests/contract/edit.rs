//! Changes to jobs that are not running.

use duly::job::Due;
use duly::store::{AdminStore, ChangeResult, ChangeTarget, JobEdit, JobStore};
use duly::{JobId, Outcome, Priority, State};

use crate::test_store::{SECOND, TestStore, job, kinds};

async fn edit(store: &TestStore, id: JobId, args: Option<&str>, priority: Option<Priority>) -> ChangeResult {
    store.store.edit(id, JobEdit::new().args(args.map(str::to_owned)).priority(priority)).await.expect("edits")
}

pub async fn args_of_a_waiting_job_can_be_changed(store: TestStore) {
    let id = store.push(job("a")).await.id();
    let later = store.push(job("later").after(SECOND)).await.id();
    assert_eq!(edit(&store, id, Some(r#"{"n":12345678901234567890}"#), None).await, ChangeResult::Applied);
    assert_eq!(edit(&store, later, Some("[]"), None).await, ChangeResult::Applied);
    assert_eq!(store.store.counts().await.expect("counts")[0].bytes, 26 + 2);
    let held = store.claim_one("a").await;
    assert_eq!(held.job.args, r#"{"n":12345678901234567890}"#);
    store.settle("a", &held, Outcome::bury("no")).await;
    assert_eq!(edit(&store, id, Some("7"), None).await, ChangeResult::Applied);
    let dead = store.get(id).await.expect("is there");
    assert_eq!((dead.state, dead.job.args.as_str(), dead.failures.len()), (State::Dead, "7", 1));
    assert_eq!(store.get(later).await.expect("is there").job.args, "[]");
}

pub async fn running_job_cannot_be_edited(store: TestStore) {
    let id = store.push(job("a")).await.id();
    let held = store.claim_one("a").await;
    assert_eq!(edit(&store, id, Some("1"), None).await, ChangeResult::Running);
    assert!(store.settle("a", &held, Outcome::Ack).await.is_empty());
    assert_eq!(edit(&store, JobId::fresh(), Some("1"), None).await, ChangeResult::NotFound);
}

pub async fn changed_priority_changes_the_position(store: TestStore) {
    let ids: Vec<JobId> = store
        .push_all(vec![job("a"), job("b"), job("c"), job("d").after(SECOND)])
        .await
        .iter()
        .map(duly::PushResult::id)
        .collect();
    assert_eq!(edit(&store, ids[1], None, Some(Priority::High)).await, ChangeResult::Applied);
    assert_eq!(edit(&store, ids[0], Some("1"), Some(Priority::Low)).await, ChangeResult::Applied);
    assert_eq!(edit(&store, ids[3], None, Some(Priority::Critical)).await, ChangeResult::Applied);
    assert_eq!(store.get(ids[3]).await.expect("there").state, State::Scheduled);
    assert_eq!(kinds(&store.claim("a", 2).await), ["b", "c"]);
    store.advance(SECOND).await;
    let rest = store.claim("a", 9).await;
    assert_eq!(kinds(&rest), ["d", "a"]);
    assert_eq!((rest[1].job.priority, rest[1].job.args.as_str()), (Priority::Low, "1"));
    for held in &rest {
        assert!(store.settle("a", held, Outcome::Ack).await.is_empty(), "held under its new priority");
    }
}

pub async fn bulk_edit_changes_only_unchanged_jobs(store: TestStore) {
    let ids: Vec<JobId> =
        store.push_all(vec![job("a"), job("b"), job("c"), job("d")]).await.iter().map(duly::PushResult::id).collect();
    let target = |id: JobId, state: State| ChangeTarget { queue: "default".into(), id, state };
    let held = store.claim("a", 2).await;
    store.settle("a", &held[0], Outcome::bury("no")).await;
    let gone = JobId::fresh();
    let targets = vec![
        target(ids[0], State::Ready),
        target(ids[1], State::Ready),
        target(ids[2], State::Ready),
        target(gone, State::Ready),
    ];
    let results = store.store.remove_all(targets).await.expect("removes");
    assert_eq!(results, [ChangeResult::Changed, ChangeResult::Running, ChangeResult::Applied, ChangeResult::NotFound]);
    assert_eq!((store.get(ids[2]).await, store.state(ids[0]).await), (None, Some(State::Dead)));
    let targets = vec![target(ids[0], State::Dead), target(ids[3], State::Ready), target(ids[3], State::Ready)];
    let results = store.store.reschedule_all(targets, Due::After(SECOND)).await.expect("reschedules");
    assert_eq!(results, [ChangeResult::Applied, ChangeResult::Applied, ChangeResult::Changed]);
    assert_eq!(store.state(ids[3]).await, Some(State::Scheduled));
}
