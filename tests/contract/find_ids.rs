//! Lookups of jobs by a part of their id.

use duly::store::{FoundIds, JobStore};
use duly::{ConflictKind, Error, Filter, JobId, Outcome, State};

use crate::test_store::{SECOND, TestStore, job};

/// Ids in the shape of those that duly makes: the beginning is a time, so neighbours share it. The last bytes of two of them
/// are special in patterns of a server.
const IDS: [&str; 4] = [
    "0198f7a1-5a3c-7c1e-9b0e-6f1f2a3f5b5d",
    "0198f7a1-5a3c-7c1e-9b0e-6f1f6f0c7c11",
    "0198f7a1-5a3d-7c1e-9b0e-6f1f2a5c0011",
    "0298f7a1-5a3c-7c1e-9b0e-0198f7a17c11",
];

fn id(index: usize) -> JobId {
    IDS[index].parse().expect("an id")
}

async fn find(store: &TestStore, part: &str, max: usize) -> FoundIds {
    let mut found = store.store.find_ids(part.parse().expect(part), max).await.expect("finds");
    found.ids.sort_unstable();
    found
}

pub async fn job_is_found_by_the_beginning_or_end_of_its_id(store: TestStore) {
    for index in 0..IDS.len() {
        let push = job("one").id(id(index)).queue(["default", "other"][index % 2]);
        store.push(if index == 2 { push.after(SECOND) } else { push }).await;
    }
    let held = store.claim_one("a").await;
    store.settle("a", &held, Outcome::bury("no")).await;
    for (part, indexes) in [
        ("3f5b5d", &[0][..]),
        ("2A3F5B5D", &[0]),
        ("2a3f5b5d", &[0]),
        ("f2a3f5b5d", &[0]),
        ("7c11", &[1, 3]),
        ("c7c11", &[1]),
        ("0011", &[2]),
        ("0198f7a15a3d", &[2]),
        ("0198f7a1-5a3c", &[0, 1]),
        ("0198f7a1", &[0, 1, 2]),
        ("0198f7a15", &[0, 1, 2]),
        ("0198f7a17c11", &[3]),
        ("0198f7a1…7c11", &[1]),
        ("…0198f7a17c11", &[3]),
        ("0198f7a17c12", &[]),
        ("5a3c", &[]),
        (IDS[3], &[3]),
    ] {
        let expected: Vec<JobId> = indexes.iter().map(|index| id(*index)).collect();
        let found = find(&store, part, 4).await;
        assert_eq!((&found.ids, found.is_complete), (&expected, true), "{part}");
        let page = store.duly.jobs().list(Filter::all().id(part.parse::<duly::job::IdPart>().expect(part))).await;
        let mut listed: Vec<JobId> = page.expect("lists").jobs.iter().map(|record| record.job.id).collect();
        listed.sort_unstable();
        assert_eq!(listed, expected, "id:{part}");
    }
    let few = find(&store, "0198", 2).await;
    assert_eq!((few.ids.len(), few.is_complete), (2, false), "{few:?}");
    assert!(find(&store, "7c11", 2).await.is_complete);
}

pub async fn part_of_an_id_names_one_job_or_none(store: TestStore) {
    for index in 0..IDS.len() {
        store.push(job("mail").id(id(index))).await;
    }
    let jobs = store.duly.jobs();
    assert_eq!(jobs.find_id(" 2a3f5b5d ").await.expect("is unique"), id(0));
    assert_eq!(jobs.find_id(&IDS[1].to_uppercase()).await.expect("is whole"), id(1));
    let error = jobs.find_id("7c11").await.expect_err("is ambiguous");
    let text = error.to_string();
    assert!(matches!(error, Error::Conflict { kind: ConflictKind::Ambiguous, .. }), "{text}");
    for expected in [IDS[1], IDS[3], "mail", "ready", "in queue default", "use more digits"] {
        assert!(text.contains(expected), "{expected} is not in {text}");
    }
    assert_eq!(jobs.find_id("beef").await.expect_err("no such job").code(), "not_found");
    assert_eq!(jobs.find_id("c11").await.expect_err("too short").code(), "invalid");

    // A bulk change reaches exactly the jobs with that id.
    let report = jobs.remove_all("id:7c11 kind:mail".parse().expect("a filter")).run().await.expect("removes");
    assert_eq!(report.applied, 2);
    let count = async |filter: &str| jobs.count(&filter.parse().expect(filter)).await.expect("counts").matching;
    assert_eq!((count("id:0198").await, count("-id:2a3f5b5d").await, count("id:0198 kind:other").await), (2, 1, 0));
    assert_eq!(store.state(id(0)).await, Some(State::Ready));
}
