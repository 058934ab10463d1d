//! Administration through the client: bulk changes, progress of handlers, capacities.

use std::time::Duration;

use duly::admin::{Capacity, HistoryQuery};
use duly::job::{Due, UniqueScope};
use duly::{Ctx, Duly, Error, Filter, JobId, Outcome, Push, State};

fn filter(text: &str) -> Filter {
    text.parse().expect("a filter")
}

async fn duly() -> Duly {
    Duly::open(":memory:").await.expect("opens")
}

#[tokio::test]
async fn bulk_change_counts_then_changes_each_job_once() {
    let duly = duly().await;
    let later = |n: u32| Push::new(format!("k{}", n % 2), "{}").after(Duration::from_secs(1_000 + u64::from(n)));
    duly.push_all((0..1_000).map(later)).await.expect("pushes");
    let filter_k1 = filter("state:scheduled kind:k1");
    let count = duly.jobs().count(&filter_k1).await.expect("counts");
    assert_eq!((count.matching, count.is_complete), (500, true));
    let all = duly.jobs().count(&filter("state:scheduled")).await.expect("counts");
    assert_eq!((all.matching, all.scanned), (1_000, 0), "from a stored count");
    // Rescheduled jobs move behind the cursor of the list: each is changed once.
    let bulk = duly.jobs().reschedule_all(filter_k1.clone(), Due::After(Duration::from_secs(9_999)));
    assert_eq!(bulk.dry_run().await.expect("counts").matching, 500);
    let mut batches = 0;
    let report = bulk.on_progress(|_| batches += 1).run().await.expect("runs");
    assert_eq!((report.matching, report.applied, report.skipped_changed, report.has_more), (500, 500, 0, false));
    assert!(batches > 1, "in several batches");
    let report = duly.jobs().remove_all(filter_k1).run().await.expect("runs");
    assert_eq!(report.applied, 500);
    assert_eq!(duly.queues().clear("default").run().await.expect("runs").applied, 500);
    assert_eq!(duly.jobs().count(&Filter::all()).await.expect("counts").matching, 0);
}

#[tokio::test]
async fn done_job_is_rerun_only_on_request() {
    let duly = duly().await;
    let job = Push::new("free", "{}").keep(Duration::from_secs(3600));
    duly.push(job).await.expect("pushes");
    duly.worker().on_kind("free", |_: Ctx| async {}).drain().await.expect("drains");
    duly.push(Push::new("free", "{}").after(Duration::from_secs(3600))).await.expect("pushes");
    for selected in [Filter::all(), filter("kind:free")] {
        let bulk = duly.jobs().reschedule_all(selected, Due::After(Duration::from_secs(1_800)));
        assert_eq!(bulk.dry_run().await.expect("counts").matching, 1);
        assert_eq!(bulk.run().await.expect("runs").applied, 1, "only the scheduled job");
    }
    assert_eq!(duly.jobs().reschedule_all(filter("state:done"), Due::Now).run().await.expect("runs").applied, 1);
}

#[tokio::test]
async fn bulk_change_reports_jobs_it_could_not_change() {
    let duly = duly().await;
    duly.push_all([Push::new("free", "{}"), Push::new("held", "{}").unique("key")]).await.expect("pushes");
    let report = duly.jobs().remove_all(filter("-kind:free")).run().await.expect("runs");
    assert_eq!((report.applied, report.skipped_running), (1, 0));
    // A dead job stays dead if another job has its key.
    let key = |kind: &str| Push::new(kind, "{}").unique("key").unique_scope(UniqueScope::Queue);
    let id = duly.push(key("dies").max_attempts(1)).await.expect("pushes").id();
    duly.worker()
        .on_kind("dies", |_: Ctx| async { Outcome::bury("no") })
        .on_kind("free", |_: Ctx| async {})
        .drain()
        .await
        .expect("drains");
    duly.push(key("next")).await.expect("pushes");
    let report = duly.jobs().reschedule_all(filter("state:dead"), Due::Now).run().await.expect("runs");
    assert_eq!((report.applied, report.skipped_unique), (0, 1));
    assert_eq!(duly.jobs().get(id).await.expect("reads").expect("is there").state, State::Dead);
}

#[tokio::test]
async fn progress_and_log_of_a_handler_are_kept_with_its_job() {
    let duly = duly().await;
    let id = duly.push(Push::new("reports", "{}")).await.expect("pushes").id();
    let handler = |ctx: Ctx| async move {
        for n in 0..10_000 {
            ctx.set_progress(f64::from(n) / 1e4, "half way");
            ctx.log(format!("line {n}"));
        }
        ctx.set_result(&vec![1, 2, 3])?;
        assert!(ctx.set_result(&"x".repeat(100_000)).is_err(), "too large");
        Ok::<(), Error>(())
    };
    duly.worker().on_kind("reports", handler).drain().await.expect("drains");
    let record = duly.jobs().get(id).await.expect("reads").expect("is kept");
    assert_eq!(record.result.as_deref(), Some("[1,2,3]"));
    assert_eq!(record.log.len(), 100);
    assert_eq!(record.log[99].line, "line 9999");
    assert!(record.progress.is_some_and(|progress| progress.fraction > 0.99 && progress.message == "half way"));
    let total = duly.queues().history(HistoryQuery::last_minutes(2)).await.expect("reads").total();
    assert_eq!((total.pushed, total.done, total.lateness.count(), total.duration.count()), (1, 1, 1, 1));
}

#[tokio::test]
async fn capacity_applies_in_the_users_own_transaction() {
    let dir = test_support::temp_dir();
    let path = dir.path().join("duly.db");
    let duly = Duly::open(path.to_str().expect("a plain path")).await.expect("opens");
    duly.queues().set_capacity("default", Capacity::unlimited().jobs(2)).await.expect("sets");
    let mut conn = duly::rusqlite::Connection::open(&path).expect("opens");
    let tx = conn.transaction_with_behavior(duly::rusqlite::TransactionBehavior::Immediate).expect("begins");
    let pushes = |count: usize| (0..count).map(|_| Push::new("k", "{}")).collect::<Vec<_>>();
    assert!(matches!(duly.push_in(&tx, pushes(3)), Err(Error::Full { .. })));
    duly.push_in(&tx, pushes(2)).expect("fits").wake();
    tx.commit().expect("commits");
    assert_eq!(duly.queues().counts().await.expect("counts")[0].ready, 2);
    let full = duly.push(Push::new("k", "{}")).await.expect_err("is full");
    assert_eq!((full.code(), full.is_retryable()), ("full", true));
    assert_eq!(duly.queues().history(HistoryQuery::default()).await.expect("reads").total().pushed, 2);
}

#[tokio::test]
async fn invalid_input_is_reported() {
    let duly = duly().await;
    let id = duly.push(Push::new("k", "{}")).await.expect("pushes").id();
    let edit = |args: &str| duly::admin::JobEdit::new().args(args.to_owned());
    assert_eq!(duly.jobs().edit(id, edit("{")).await.expect_err("no JSON").code(), "invalid");
    assert_eq!(duly.jobs().edit(JobId::fresh(), edit("1")).await.expect_err("is not there").code(), "not_found");
    duly.jobs().edit(id, edit("[1]")).await.expect("edits");
    assert_eq!(duly.jobs().get(id).await.expect("reads").expect("is there").job.args, "[1]");
}

#[tokio::test]
async fn counts_work_without_history() {
    let duly = Duly::open(":memory:?history=off").await.expect("opens");
    duly.push_all((0..5).map(|n| Push::new("k", n.to_string()).keep(Duration::from_secs(60)))).await.expect("pushes");
    duly.worker().on_any_kind(async |_: Ctx| ()).drain().await.expect("drains");
    duly.push(Push::new("k", "[1]")).await.expect("pushes");
    assert!(duly.queues().history(HistoryQuery::default()).await.expect("reads").points.is_empty());
    let counts = &duly.queues().counts().await.expect("counts")[0];
    assert_eq!((counts.ready, counts.done, counts.bytes), (1, 5, 3));
    assert!(duly.verify().await.expect("verifies").violations.is_empty());
    let facts = duly.health().await.expect("reads").facts;
    assert!(facts.iter().any(|(name, value)| name == "history" && value.starts_with("off")), "{facts:?}");
    assert_eq!(Duly::open(":memory:?history=no").await.expect_err("neither").code(), "invalid");
}
