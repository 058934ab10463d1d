//! Lists in one order across all queues.

use std::time::Duration;

use duly::job::JobOrder;
use duly::store::{AdminStore, Claim};
use duly::{Filter, JobId, Outcome, Push};

use crate::test_store::{KEEP, SECOND, TestStore, job};

const QUEUES: [&str; 3] = ["default", "mail", "media"];
const HOUR: Duration = Duration::from_secs(3_600);

/// Lists all pages of a filter, `limit` jobs each.
async fn list(store: &TestStore, filter: Filter, limit: usize) -> Vec<JobId> {
    let (mut filter, mut ids) = (filter.limit(limit), Vec::new());
    for _ in 0..100 {
        let page = store.duly.jobs().list(filter.clone()).await.expect("lists");
        assert!(page.jobs.len() <= limit);
        ids.extend(page.jobs.iter().map(|record| record.job.id));
        match page.next_cursor {
            Some(next) => filter = filter.cursor(next),
            None => return ids,
        }
    }
    panic!("more pages than jobs");
}

/// Asserts the order of a list and of its reverse, on one page and on several.
async fn assert_order(store: &TestStore, filter: &str, order: JobOrder, expected: &[JobId]) {
    let sorted = filter.parse::<Filter>().expect(filter).order(order);
    for limit in [2, 100] {
        assert_eq!(list(store, sorted.clone(), limit).await, expected, "{filter} by {order}, {limit} per page");
        let reversed: Vec<JobId> = expected.iter().rev().copied().collect();
        let found = list(store, sorted.clone().reverse(true), limit).await;
        assert_eq!(found, reversed, "{filter} by {order} reversed, {limit} per page");
    }
}

/// Ends jobs of all queues one after the other, with different retention times. Returns them in the order of their end.
async fn end_jobs(store: &TestStore, kinds: &[&str]) -> Vec<JobId> {
    let mut ids = Vec::new();
    for (n, kind) in kinds.iter().enumerate() {
        let queue = QUEUES[n % QUEUES.len()];
        // The first jobs are kept longest, so the order of their ends is not that of their pruning.
        let keep = KEEP * (kinds.len() - n) as u32;
        let id = store.push(Push::new(*kind, "{}").queue(queue).keep(keep)).await.id();
        ids.push(id);
        if *kind == "cancelled" {
            store.store.cancel(id, keep).await.expect("cancels");
        } else {
            let held = store.claim_with("a", Claim::new(queue, 1)).await.jobs.pop().expect("is ready");
            let outcome = if *kind == "dead" { Outcome::bury("no") } else { Outcome::Ack };
            store.settle("a", &held, outcome).await;
        }
        store.advance(SECOND).await;
    }
    ids
}

pub async fn ended_jobs_are_sorted_across_queues(store: TestStore) {
    let kinds = ["done", "dead", "done", "cancelled", "done", "done", "dead", "dead", "cancelled", "done", "dead"];
    let mut ids = end_jobs(&store, &kinds).await;
    store.push(job("ready")).await;
    store.push(job("later").after(HOUR)).await;
    let mut expected: Vec<(&str, JobId)> = kinds.into_iter().zip(ids.iter().copied()).collect();
    expected.reverse();
    ids.reverse();
    assert_order(&store, "", JobOrder::End, &ids).await;
    for state in ["done", "dead", "cancelled"] {
        let of_state: Vec<JobId> = expected.iter().filter(|(kind, _)| *kind == state).map(|(_, id)| *id).collect();
        assert_order(&store, &format!("state:{state}"), JobOrder::End, &of_state).await;
        assert_order(&store, &format!("kind:{state}"), JobOrder::End, &of_state).await;
        assert_order(&store, &format!("state:{state} kind:{state}"), JobOrder::End, &of_state).await;
        assert_order(&store, &format!("state:{state} -queue:none"), JobOrder::End, &of_state).await;
    }
    let group = store.store.dead_groups(None).await.expect("reads").pop().expect("jobs are dead").id;
    let dead: Vec<JobId> = expected.iter().filter(|(kind, _)| *kind == "dead").map(|(_, id)| *id).collect();
    assert_order(&store, &format!("group:{group}"), JobOrder::End, &dead).await;
    assert_order(&store, &format!("group:{group} state:done"), JobOrder::End, &[]).await;
    // The last five, and those before.
    assert_order(&store, "since:5s", JobOrder::End, &ids[..5]).await;
    assert_order(&store, "until:5s", JobOrder::End, &ids[5..]).await;
    let mail: Vec<JobId> = ids.iter().rev().skip(1).step_by(3).rev().copied().collect();
    assert_order(&store, "queue:mail", JobOrder::End, &mail).await;
    let report = store.duly.jobs().remove_all("state:done".parse::<Filter>().expect("a filter").order(JobOrder::End));
    assert_eq!(report.run().await.expect("removes").applied, 5, "a change has no order");
}

pub async fn scheduled_jobs_are_sorted_across_queues(store: TestStore) {
    let delays = [50u32, 10, 40, 30, 20, 60, 15];
    let jobs = delays.iter().enumerate().map(|(n, delay)| {
        let kind = if n % 2 == 0 { "even" } else { "odd" };
        job(kind).queue(QUEUES[n % QUEUES.len()]).after(*delay * SECOND)
    });
    let pushed = store.push_all(jobs.collect()).await;
    store.push(job("ready")).await;
    let mut sorted: Vec<(u32, usize)> = delays.iter().copied().zip(0..).collect();
    sorted.sort_unstable();
    let select = |keep: &dyn Fn(u32, usize) -> bool| -> Vec<JobId> {
        sorted.iter().filter(|(delay, n)| keep(*delay, *n)).map(|(_, n)| pushed[*n].id()).collect()
    };
    assert_order(&store, "", JobOrder::Due, &select(&|_, _| true)).await;
    assert_order(&store, "state:scheduled kind:even", JobOrder::Due, &select(&|_, n| n % 2 == 0)).await;
    assert_order(&store, "queue:mail", JobOrder::Due, &select(&|_, n| n % 3 == 1)).await;
    assert_order(&store, "due<35s", JobOrder::Due, &select(&|delay, _| delay < 35)).await;
    assert_order(&store, "due>35s kind:even", JobOrder::Due, &select(&|delay, n| delay > 35 && n % 2 == 0)).await;

    let jobs = store.duly.jobs();
    let refused = async |filter: Filter| jobs.list(filter).await.expect_err("is refused").code();
    assert_eq!(refused("state:ready".parse::<Filter>().expect("a filter").order(JobOrder::End)).await, "invalid");
    assert_eq!(refused("state:dead".parse::<Filter>().expect("a filter").order(JobOrder::Due)).await, "invalid");
    assert_eq!(refused(Filter::all().reverse(true)).await, "invalid");
    assert_eq!(refused(Filter::all().order(JobOrder::Due).cursor("end.1.2".to_owned())).await, "invalid");
}
