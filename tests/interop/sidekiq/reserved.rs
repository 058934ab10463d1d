//! Jobs that an interrupted `duly move` has reserved: visible, not pushed twice, and put back.

use std::time::Duration;

use duly::job::Due;
use duly::store::{SharedKeysStore, TransferStore};
use duly::{Duly, Error, Filter, JobId, NodeId, Push, State};

use super::sandbox::*;

/// More requests than any move here makes.
const CALLS_MAX: u64 = 60;
const FAR: Duration = Duration::from_secs(100_000);

/// Returns the number of reserved jobs.
fn reserved(sandbox: &Sandbox) -> usize {
    let keys = sandbox.redis(&["KEYS", "duly:*:running:transfer"]);
    let count = |key: &String| sandbox.redis(&["HLEN", key])[0].parse::<usize>().expect("a number");
    keys.iter().filter(|key| !key.is_empty()).map(count).sum()
}

/// Kills a move after it has reserved the ready jobs, and before it adds them to the target.
async fn kill_after_reservation(source: &Duly, target: &Duly, sandbox: &Sandbox) {
    for calls in 0..CALLS_MAX {
        let error = source.transfer_to(target).kill_after(calls).run().await.expect_err("killed");
        assert!(error.to_string().contains("killed"), "{error}");
        if reserved(sandbox) > 0 {
            return;
        }
        assert!(target.jobs().list(Filter::all()).await.expect("lists").jobs.is_empty());
    }
    panic!("no job was reserved");
}

async fn counts(duly: &Duly) -> (u64, u64, bool) {
    let counts = duly.queues().counts().await.expect("counts");
    let default = counts.iter().find(|count| count.queue == "default").expect("is there");
    (default.ready, default.scheduled, default.moving.is_some())
}

/// Pushes three ready jobs and a scheduled one. Returns the id of the first.
async fn push_jobs(duly: &Duly) -> JobId {
    let id = JobId::from_name("first");
    duly.push(Push::new("Echo", "[0]").id(id)).await.expect("pushes");
    duly.push_all((1..3).map(|n| Push::new("Echo", format!("[{n}]")))).await.expect("pushes");
    duly.push(Push::new("Echo", "[9]").after(FAR)).await.expect("pushes");
    id
}

#[tokio::test(flavor = "multi_thread")]
async fn reserved_jobs_are_visible_and_return_to_ruby() {
    let sandbox = Sandbox::new().await;
    let id = push_jobs(&sandbox.duly).await;
    let away = Duly::open(":memory:").await.expect("opens");
    kill_after_reservation(&sandbox.duly, &away, &sandbox).await;
    assert_eq!(sandbox.redis(&["LLEN", "queue:default"]), ["0"], "out of Ruby's reach");
    assert_eq!(counts(&sandbox.duly).await, (3, 1, true));
    let found = sandbox.duly.jobs().get(id).await.expect("reads").expect("is found");
    assert_eq!((found.state, found.job.args.as_str()), (State::Ready, "[0]"));
    let warnings = sandbox.duly.health().await.expect("reads").warnings;
    let warning = warnings.iter().find(|warning| warning.starts_with("3 jobs of default are reserved"));
    assert!(warning.is_some_and(|text| text.contains("duly queues resume default --abandon-move")), "{warnings:?}");

    let _sidekiq = sandbox.sidekiq(&["default"]);
    let error = sandbox.duly.transfer_to(&away).run().await.expect_err("refused");
    assert!(error.to_string().contains("a move of queue default was interrupted"), "{error}");
    assert!(sandbox.ran().is_empty());
    assert!(sandbox.duly.abandon_transfer("default").await.expect("abandons"));
    let mut args: Vec<_> = sandbox.until_ran(3).await.into_iter().map(|(_, args)| args.to_string()).collect();
    args.sort();
    assert_eq!(args, ["[0]", "[1]", "[2]"]);
    assert_eq!(reserved(&sandbox), 0);
    let warnings = sandbox.duly.health().await.expect("reads").warnings;
    assert!(!warnings.iter().any(|warning| warning.contains("reserved")), "{warnings:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn reserved_job_is_not_pushed_again_or_changed() {
    let sandbox = Sandbox::new().await;
    let forgetful = Duly::open(format!("{}&remember_ids=0", sandbox.store())).await.expect("opens");
    let id = push_jobs(&forgetful).await;
    let away = Duly::open(":memory:").await.expect("opens");
    kill_after_reservation(&forgetful, &away, &sandbox).await;
    // As if the ids were pushed longer ago than they are remembered.
    for key in sandbox.redis(&["KEYS", "duly:*:removed*"]).iter().filter(|key| !key.is_empty()) {
        sandbox.redis(&["DEL", key]);
    }
    let again = forgetful.push(Push::new("Echo", "[0]").id(id)).await.expect("replies");
    assert_eq!(again, duly::PushResult::Existing(id));
    for change in [
        forgetful.jobs().remove(id).await.expect_err("refused"),
        forgetful.jobs().reschedule(id, Due::After(FAR)).await.expect_err("refused"),
    ] {
        assert!(matches!(&change, Error::Conflict { reason, .. } if reason.contains("moving")), "{change}");
    }
    forgetful.abandon_transfer("default").await.expect("abandons");
    assert_eq!(sandbox.redis(&["LLEN", "queue:default"]), ["3"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_batch_returns_to_its_place() {
    let sandbox = Sandbox::new().await;
    let open = async |name: &str| {
        let url = format!("{}&namespace={name}", sandbox.store());
        Duly::open(url).await.expect("opens")
    };
    let (old, new) = (open("old").await, open("new").await);
    push_jobs(&old).await;
    let before = sandbox.redis(&["LRANGE", "old:queue:default", "0", "-1"]);
    // The target rejects every batch.
    sandbox.redis(&["RPUSH", "new:queue:default", r#"["x","default","y",[]]"#]);
    let error = old.transfer_to(&new).run().await.expect_err("refused");
    assert!(error.to_string().contains("Redis in Action"), "{error}");
    assert_eq!(reserved(&sandbox), 0);
    assert_eq!(sandbox.redis(&["LRANGE", "old:queue:default", "0", "-1"]), before);
    sandbox.redis(&["DEL", "new:queue:default"]);
    let moved = old.transfer_to(&new).run().await.expect("continues");
    assert_eq!((moved[0].ready, moved[0].scheduled), (3, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn queue_stays_marked_while_its_reserved_jobs_cannot_return() {
    let sandbox = Sandbox::new().await;
    push_jobs(&sandbox.duly).await;
    let away = Duly::open(":memory:").await.expect("opens");
    kill_after_reservation(&sandbox.duly, &away, &sandbox).await;
    sandbox.redis(&["SET", "queue:default", "a text"]);
    let error = sandbox.duly.abandon_transfer("default").await.expect_err("refused");
    assert!(
        matches!(&error, Error::Conflict { reason, .. } if reason.starts_with("3 jobs") && reason.contains("\"queue:default\"")),
        "{error}"
    );
    assert_eq!(reserved(&sandbox), 3);
    sandbox.redis(&["DEL", "queue:default"]);
    assert!(counts(&sandbox.duly).await.2, "still marked");
    assert!(sandbox.duly.abandon_transfer("default").await.expect("abandons"));
    assert_eq!(counts(&sandbox.duly).await, (3, 1, false));
    assert_eq!(sandbox.redis(&["LLEN", "queue:default"]), ["3"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn reservation_waits_for_replicas() {
    let sandbox = Sandbox::new().await;
    let id = push_jobs(&sandbox.duly).await;
    let pushed = sandbox.duly.jobs().get(id).await.expect("reads").expect("is there").job.pushed;
    let mover = NodeId::fresh();
    sandbox.duly.store().set_transfer_mark("default", mover, Some("elsewhere")).await.expect("marks");
    // The server has no replica.
    let careful = Duly::open(format!("{}&replicas=1", sandbox.store())).await.expect("opens");
    for result in [
        careful.store().transfer_reserve("default", mover, vec![(id, pushed)]).await.map(drop),
        careful.store().transfer_out("default", mover, vec![(id, pushed)]).await.map(drop),
    ] {
        let error = result.expect_err("no replica has it");
        assert!(error.code() == "unknown" && error.to_string().contains("replica"), "{error}");
    }
}
