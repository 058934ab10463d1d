//! Backups: complete, never overwriting a file, and usable as a store.

use duly::{Ctx, Duly, Push, State};

use crate::verify::{populate, states};

async fn assert_backup_is_complete(url: &str) {
    let populated = populate(url).await;
    let dir = test_support::temp_dir();
    let file = dir.path().join("copy.db");
    populated.duly.backup(&file).await.expect("backs up");
    let files: Vec<_> =
        std::fs::read_dir(dir.path()).expect("readable").map(|entry| entry.expect("readable")).collect();
    assert_eq!(files.len(), 1, "only the backup: {files:?}");

    let refused = populated.duly.backup(&file).await.expect_err("it is there already");
    assert_eq!(refused.code(), "conflict");

    let copy = Duly::open(file.to_str().expect("a plain path")).await.expect("opens");
    let report = copy.verify().await.expect("verifies");
    assert_eq!((report.jobs, report.violations), (8, Vec::new()));
    for id in &populated.ids {
        let (original, copied) =
            (populated.duly.jobs().get(*id).await.expect("reads"), copy.jobs().get(*id).await.expect("reads"));
        assert_eq!(original.map(|r| (r.job, r.state)), copied.map(|r| (r.job, r.state)), "unchanged");
    }
    assert_eq!(
        copy.crons().list().await.expect("lists"),
        populated.duly.crons().list().await.expect("lists"),
        "and all rules"
    );
    // The running job runs again.
    let summary = copy.worker().on_any_kind(async |_: Ctx| ()).drain().await.expect("drains");
    assert_eq!((summary.acked, summary.lost), (4, 0), "three were ready, one was running");
    assert_eq!(states(&copy).await.iter().find(|(state, _)| *state == State::Running), Some(&(State::Running, 0)));
}

#[tokio::test]
async fn file_backup_is_complete() {
    let dir = test_support::temp_dir();
    assert_backup_is_complete(dir.path().join("duly.db").to_str().expect("a plain path")).await;
}

#[cfg(feature = "redis")]
#[tokio::test]
#[ignore = "needs servers: ./check stores"]
async fn server_backup_is_complete() {
    let url = test_support::servers::redis().url();
    assert_backup_is_complete(&format!("{url}?prefix={}", duly::JobId::fresh())).await;
}

/// A job that was cancelled while it runs does not run again in the backup.
async fn assert_backup_keeps_cancels(url: &str) {
    use duly::store::JobStore;
    let duly = Duly::open(url).await.expect("opens");
    let ids = ["cancelled", "other"].map(|kind| Push::new(kind, "{}").unique(kind));
    let ids: Vec<_> = duly.push_all(ids).await.expect("pushes").into_iter().map(|pushed| pushed.id()).collect();
    let node = duly::store::Node::fresh(vec!["default".into()]);
    duly.store().heartbeat(&node).await.expect("sends a heartbeat");
    let claim = duly::store::Claim::new("default", 2);
    assert_eq!(duly.store().claim(node.id, claim).await.expect("claims").jobs.len(), 2);
    duly.jobs().cancel(ids[0]).await.expect("cancels");
    let dir = test_support::temp_dir();
    let file = dir.path().join("copy.db");
    duly.backup(&file).await.expect("backs up");
    // In the copy of a file, the jobs are taken back from the node, which must not seem alive.
    duly.store().leave(node.id).await.expect("leaves");
    let copy = Duly::open(file.to_str().expect("a plain path")).await.expect("opens");
    let summary = copy.worker().on_any_kind(async |_: Ctx| ()).drain().await.expect("drains");
    assert_eq!(summary.acked, 1, "only the other one runs again");
    let record = copy.jobs().get(ids[0]).await.expect("reads").expect("is kept");
    assert_eq!(record.state, State::Cancelled);
    let again = copy.push(Push::new("cancelled", "{}").unique("cancelled")).await.expect("pushes");
    assert_ne!(again.id(), ids[0], "its unique key is free");
    assert_eq!(copy.verify().await.expect("verifies").violations, []);
}

#[tokio::test]
async fn file_backup_keeps_cancels() {
    let dir = test_support::temp_dir();
    assert_backup_keeps_cancels(dir.path().join("duly.db").to_str().expect("a plain path")).await;
}

#[cfg(feature = "redis")]
#[tokio::test]
#[ignore = "needs servers: ./check stores"]
async fn server_backup_keeps_cancels() {
    let url = test_support::servers::redis().url();
    assert_backup_keeps_cancels(&format!("{url}?prefix={}", duly::JobId::fresh())).await;
}

#[cfg(feature = "redis")]
#[tokio::test]
#[ignore = "needs servers: ./check stores"]
async fn server_backup_keeps_order_and_pauses() {
    use duly::store::JobStore;
    let url = format!("{}?prefix={}", test_support::servers::redis().url(), duly::JobId::fresh());
    let duly = Duly::open(url).await.expect("opens");
    let pushes = (0..2_500).map(|n| Push::new("one", n.to_string()));
    duly.push_all(pushes).await.expect("pushes");
    duly.queues().pause("default").await.expect("pauses");
    let capacity = duly::admin::Capacity::unlimited().jobs(9_000);
    duly.queues().set_capacity("default", capacity).await.expect("sets");
    let dir = test_support::temp_dir();
    let file = dir.path().join("copy.db");
    duly.backup(&file).await.expect("backs up");
    let copy = Duly::open(file.to_str().expect("a plain path")).await.expect("opens");
    let counts = copy.queues().counts().await.expect("counts");
    assert!(counts[0].paused && counts[0].capacity == capacity);
    copy.queues().resume("default").await.expect("resumes");
    let node = duly::store::Node::fresh(vec!["default".into()]);
    copy.store().heartbeat(&node).await.expect("sends a heartbeat");
    let claim = duly::store::Claim::new("default", 1_000);
    let jobs = copy.store().claim(node.id, claim).await.expect("claims").jobs;
    let args: Vec<String> = jobs.into_iter().map(|held| held.job.args).collect();
    assert_eq!(args, (0..1_000).map(|n| n.to_string()).collect::<Vec<_>>());
}

#[tokio::test]
async fn backup_during_changes_is_consistent() {
    let dir = test_support::temp_dir();
    let duly = Duly::open(dir.path().join("duly.db").to_str().expect("a plain path")).await.expect("opens");
    let pusher = tokio::spawn({
        let duly = duly.clone();
        async move {
            for n in 0..200 {
                duly.push_all((0..20).map(|m| Push::new("one", format!("[{n},{m}]")))).await.expect("pushes");
            }
        }
    });
    for n in 0..5 {
        let file = dir.path().join(format!("copy-{n}.db"));
        duly.backup(&file).await.expect("backs up");
        let copy = Duly::open(file.to_str().expect("a plain path")).await.expect("opens");
        let report = copy.verify().await.expect("verifies");
        assert_eq!((report.violations, report.jobs % 20), (Vec::new(), 0), "no push is incomplete");
    }
    pusher.await.expect("no panic");
}

#[tokio::test]
async fn backup_to_an_invalid_path_is_rejected() {
    let duly = Duly::open(":memory:").await.expect("opens");
    assert_eq!(duly.backup("/nowhere/at/all.db").await.expect_err("no such directory").code(), "invalid");
    assert_eq!(duly.backup("/").await.expect_err("no file").code(), "invalid");
    assert_eq!(duly.backup("").await.expect_err("no file").code(), "invalid");
}
