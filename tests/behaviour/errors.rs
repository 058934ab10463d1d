//! Invalid input and failing environments: a clear error with a remedy, nothing lost, no panic.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use duly::{ConflictKind, Duly, Error, JobId, Push, State};

async fn open_error(url: impl Into<String>) -> String {
    let error = Duly::open(url).await.expect_err("refused");
    assert!(matches!(error, Error::Store { .. } | Error::Invalid { .. }), "{error:?}");
    error.to_string()
}

fn path(dir: &test_support::TempDir, name: &str) -> String {
    dir.path().join(name).display().to_string()
}

async fn memory() -> Duly {
    Duly::open(":memory:").await.expect("opens")
}

#[tokio::test]
async fn args_that_are_nested_too_deep_are_refused_on_every_way_in() {
    let duly = memory().await;
    let deep = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
    let is_refused = |result: Result<(), Error>| {
        assert!(matches!(&result, Err(error) if error.to_string().contains("nested 65 levels")), "{result:?}");
    };
    let id = duly.push(Push::new("kind", deep(64))).await.expect("as deep as allowed").id();
    is_refused(duly.push(Push::new("kind", deep(65))).await.map(drop));
    is_refused(duly.push_all([Push::new("kind", deep(65))]).await.map(drop));
    is_refused(duly.cron("rule", "0 3 * * *").push(Push::new("kind", deep(65))).await.map(drop));
    let edit = duly::admin::JobEdit::new().args(deep(65));
    is_refused(duly.jobs().edit(id, edit).await.map(drop));
    assert_eq!(duly.queues().counts().await.expect("counts")[0].ready, 1);
}

#[tokio::test]
async fn push_with_invalid_input_changes_nothing() {
    let duly = memory().await;
    let wrong = [
        (Push::new("a kind", "{}"), "kind", "only letters, digits"),
        (Push::new("kind", "{}").queue("a\tb"), "queue", "'\\t'"),
        (Push::new("kind", "{}").queue(""), "queue", "must not be empty"),
        (Push::new("kind", "{"), "args", "not JSON"),
        (Push::new("kind", format!("\"{}\"", "x".repeat(10_000_000))), "args", "store large data elsewhere"),
        (Push::new("kind", "[".repeat(65) + &"]".repeat(65)), "args", "nested 65 levels deep"),
        (Push::new("kind", "{}").unique("\u{1b}[2J"), "unique", "control character"),
        (Push::new("kind", "{}").max_attempts(0), "max_attempts", "at least 1"),
    ];
    for (push, field, message) in wrong {
        // One invalid job rejects the whole push, so that a caller can repeat all of it.
        let error = duly.push_all([Push::new("good", "{}"), push]).await.expect_err("refused");
        assert!(matches!(&error, Error::Invalid { field: found, .. } if *found == field), "{error:?}");
        assert!(error.to_string().contains(message), "{error}");
        assert_eq!(error.code(), "invalid");
    }
    assert!(duly.queues().counts().await.expect("counts").is_empty());
    let many = (0..10_001).map(|_| Push::new("kind", "{}"));
    assert!(duly.push_all(many).await.expect_err("refused").to_string().contains("at most 10000"));
    let large = format!("\"{}\"", "x".repeat(1_000_000));
    let heavy = (0..80).map(|_| Push::new("kind", large.as_str()));
    assert!(duly.push_all(heavy).await.expect_err("refused").to_string().contains("split them into several pushes"));
}

#[tokio::test]
async fn text_names_the_problem_once_and_ends_with_the_remedy() {
    let duly = memory().await;
    let _held = duly.lock("deploy").acquire().await.expect("is free");
    let wait = Duration::from_millis(20);
    let taken = duly.lock("deploy").wait(wait).acquire().await.expect_err("is held").to_string();
    assert_eq!(
        taken,
        "lock: timed out after 20ms waiting for lock \"deploy\"; `duly lock get deploy` shows its holder"
    );

    duly.queues().set_capacity("mail", duly::admin::Capacity::unlimited().jobs(1)).await.expect("sets");
    let id = duly.push(Push::new("kind", "7").queue("mail")).await.expect("fits").id();
    let full = duly.push(Push::new("kind", "7").queue("mail")).await.expect_err("is full").to_string();
    let reaction = "nothing was pushed into it; try again later or raise the capacity";
    assert_eq!(full, format!("queue mail is full (capacity: 1 job); {reaction}"));

    let job = duly.jobs().get(id).await.expect("reads").expect("is there").job;
    let mistyped = job.decode_args::<String>().expect_err("is a number").to_string();
    assert!(
        mistyped.starts_with(&format!("args: cannot decode the JSON of job {id} as alloc::string::String")),
        "{mistyped}"
    );
}

#[tokio::test]
async fn far_future_and_distant_past_due_times_are_accepted() {
    const DAY: Duration = Duration::from_secs(86_400);
    let duly = memory().await;
    let far = duly.push(Push::new("far", "1").after(46_296 * DAY)).await.expect("pushes").id();
    let too_far = duly.push(Push::new("far", "1").after(46_297 * DAY)).await.expect_err("refused").to_string();
    assert!(too_far.contains("46296 days"), "{too_far}");
    let year_9999 = std::time::UNIX_EPOCH + 8_000 * 365 * DAY;
    let refused = duly.push(Push::new("far", "1").at(year_9999)).await.expect_err("refused").to_string();
    assert!(refused.contains("2223"), "{refused}");
    assert_eq!(
        duly.jobs().reschedule(far, duly::job::Due::At(year_9999)).await.expect_err("refused").code(),
        "invalid"
    );
    let past = duly.push(Push::new("past", "1").at(std::time::UNIX_EPOCH - Duration::from_secs(1 << 33))).await;
    assert_eq!(duly.jobs().get(far).await.expect("reads").expect("is there").state, State::Scheduled);
    assert_eq!(
        duly.jobs().get(past.expect("pushes").id()).await.expect("reads").expect("is there").state,
        State::Ready
    );
}

#[tokio::test]
async fn missing_jobs_are_not_found() {
    let duly = memory().await;
    let id = JobId::from_name("never");
    assert_eq!(duly.jobs().get(id).await.expect("reads"), None);
    assert_eq!(duly.jobs().remove(id).await.expect_err("refused").code(), "not_found");
    assert_eq!(duly.jobs().reschedule(id, duly::job::Due::Now).await.expect_err("refused").code(), "not_found");
    assert_eq!(duly.queues().pause("a b").await.expect_err("refused").code(), "invalid");
}

/// Returns the kind of a conflict.
fn conflict<T: std::fmt::Debug>(result: Result<T, Error>) -> ConflictKind {
    match result {
        Err(Error::Conflict { kind, .. }) => kind,
        other => panic!("no conflict: {other:?}"),
    }
}

#[tokio::test]
async fn conflicts_are_told_apart_by_their_kind() {
    let duly = memory().await;
    let keyed = || Push::new("kind", "{}").unique("key");
    let ended = duly.push(keyed()).await.expect("pushes").id();
    duly.jobs().cancel(ended).await.expect("cancels");
    duly.push(keyed()).await.expect("pushes");
    let restarted = duly.jobs().reschedule(ended, duly::job::Due::Now).await;
    assert_eq!(conflict(restarted), ConflictKind::UniqueKeyTaken);

    let (jobs, (send, mut removed)) = (duly.clone(), tokio::sync::mpsc::unbounded_channel());
    let handler = move |ctx: duly::Ctx| {
        let (jobs, send) = (jobs.clone(), send.clone());
        async move { send.send(jobs.jobs().remove(ctx.job().id).await).expect("the test waits") }
    };
    duly.worker().on_kind("kind", handler).drain().await.expect("works");
    assert_eq!(conflict(removed.recv().await.expect("ran")), ConflictKind::Running);

    let guard = duly.lock("report").acquire().await.expect("is free");
    guard.release().await.expect("is held");
    assert_eq!(conflict(guard.extend().await), ConflictKind::LockLost);
    assert_eq!(conflict(guard.release().await), ConflictKind::LockLost);

    duly.tokens().create("ci", duly::admin::Role::Viewer, None).await.expect("creates");
    assert_eq!(conflict(duly.tokens().create("ci", duly::admin::Role::Viewer, None).await), ConflictKind::Exists);
}

#[tokio::test]
async fn invalid_store_path_is_named_in_the_error() {
    let dir = test_support::temp_dir();
    let missing = open_error(path(&dir, "no/such/duly.db")).await;
    assert!(missing.contains("does not exist; create it first"), "{missing}");
    let directory = open_error(dir.path().display().to_string()).await;
    assert!(directory.contains("is a directory"), "{directory}");
    assert!(open_error("redis-of-some-kind://host").await.contains("not a store this build supports"));
    assert!(open_error("duly.db?lease=soon").await.contains("not a duration"));
}

#[tokio::test]
async fn file_that_is_not_sqlite_is_left_unchanged() {
    let dir = test_support::temp_dir();
    let file = path(&dir, "notes.txt");
    let text = "these are my notes\n".repeat(500);
    std::fs::write(&file, &text).expect("writes");
    let error = open_error(&file).await;
    assert!(error.contains("not a SQLite file"), "{error}");
    assert_eq!(std::fs::read_to_string(&file).expect("reads"), text);
}

#[tokio::test]
async fn newer_format_is_rejected() {
    let dir = test_support::temp_dir();
    let file = path(&dir, "duly.db");
    let id = Duly::open(&file).await.expect("opens").push(Push::new("kind", "{}")).await.expect("pushes").id();
    let set = |format: &str| {
        let conn = duly::rusqlite::Connection::open(&file).expect("opens");
        conn.execute("UPDATE duly_meta SET value = ?1 WHERE name = 'format'", [format]).expect("writes");
    };
    set("99");
    let error = open_error(&file).await;
    assert!(error.contains("format 99") && error.contains("use a newer duly"), "{error}");
    set("1");
    let duly = Duly::open(&file).await.expect("opens again");
    assert!(duly.jobs().get(id).await.expect("reads").is_some());
}

#[tokio::test]
async fn file_with_other_tables_is_accepted() {
    let dir = test_support::temp_dir();
    let file = path(&dir, "app.db");
    let conn = duly::rusqlite::Connection::open(&file).expect("opens");
    conn.execute_batch("CREATE TABLE job (id); INSERT INTO job VALUES (1);").expect("writes");
    let duly = Duly::open(&file).await.expect("opens");
    duly.push(Push::new("kind", "{}")).await.expect("pushes");
    let rows: i64 = conn.query_row("SELECT count(*) FROM job", [], |row| row.get(0)).expect("reads");
    assert_eq!(rows, 1);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn unwritable_file_is_named_in_the_error() {
    let dir = test_support::temp_dir();
    let file = path(&dir, "duly.db");
    drop(Duly::open(&file).await.expect("opens"));
    let output = in_read_only_mount(dir.path(), &file);
    assert!(output.contains("cannot be opened for writing") && output.contains("change its permissions"), "{output}");
}

#[tokio::test]
async fn database_locked_too_long_fails_all_waiting_requests() {
    let dir = test_support::temp_dir();
    let file = path(&dir, "duly.db");
    let duly = Duly::open(&file).await.expect("opens");
    let conn = duly::rusqlite::Connection::open(&file).expect("opens");
    conn.execute_batch("BEGIN IMMEDIATE").expect("takes the lock");
    let since = std::time::Instant::now();
    let pushes = (0..20).map(|_| {
        let duly = duly.clone();
        tokio::spawn(async move { duly.push(Push::new("kind", "{}")).await })
    });
    for push in pushes.collect::<Vec<_>>() {
        assert_eq!(push.await.expect("no panic").expect_err("the lock is held").code(), "timeout");
    }
    // Two waits of about five seconds: for the first request, then for all others together.
    assert!(since.elapsed() < Duration::from_secs(50), "{:?}", since.elapsed());
    conn.execute_batch("ROLLBACK").expect("rolls back");
    duly.push(Push::new("kind", "{}")).await.expect("goes on");
}

/// Not a test: opens the store named in the environment and prints the result.
#[tokio::test]
async fn child_process() {
    let Ok(file) = std::env::var("DULY_ERRORS_STORE") else { return };
    if std::env::var_os("DULY_ERRORS_FULL").is_some() {
        return fill(&file).await;
    }
    match Duly::open(file).await {
        Ok(_) => println!("opened"),
        Err(error) => println!("{error}"),
    }
}

/// Fills the disk to the last byte and frees it. Then pushes until only the reserve is free, and works and empties the
/// queue out of the reserve. Every acknowledged job must exist.
async fn fill(file: &str) {
    let duly = Duly::open(format!("{file}?keep=0&remember_ids=0")).await.expect("opens");
    let ballast = format!("{file}.ballast");
    let filled = std::fs::write(&ballast, vec![1; 64 << 20]);
    println!("the rest: {filled:?}");
    let mut full = None;
    for n in 0..1_000 {
        if let Err(error) = duly.queues().pause(&format!("q{n}")).await {
            full = Some(error);
            break;
        }
    }
    println!("{}", full.expect("the disk never fills"));
    std::fs::remove_file(&ballast).expect("removes");
    let push = async || duly.push(Push::new("kind", format!("\"{}\"", "x".repeat(50_000)))).await;
    let mut pushed = Vec::new();
    let error = loop {
        match push().await {
            Ok(result) => pushed.push(result.id()),
            Err(error) => break error,
        }
        assert!(pushed.len() < 10_000, "the disk never fills");
    };
    println!("after {} pushes: {error}", pushed.len());
    assert_eq!(error.code(), "store");
    let warnings = duly.health().await.expect("reads").warnings;
    assert!(warnings.iter().any(|warning| warning.contains("KiB are rejected")), "{warnings:?}");
    for id in &pushed {
        assert!(duly.jobs().get(*id).await.expect("reads").is_some(), "an acknowledged push is gone");
    }
    let removed = pushed.split_off(pushed.len() / 2);
    for id in &removed {
        duly.jobs().remove(*id).await.expect("removes out of the reserve");
    }
    let summary = duly.worker().on_kind("kind", |_| async {}).drain().await.expect("works out of the reserve");
    assert_eq!(summary.acked, pushed.len() as u64);
    push().await.expect("there is room in the file again");
    println!("no job is lost");
}

/// Runs a child test in its own mount namespace. Returns its output.
#[cfg(target_os = "linux")]
pub(crate) fn in_namespace(mounts: &str, child_test: &str, variables: &[(&str, &str)]) -> String {
    let binary = std::env::current_exe().expect("has a path");
    let args = test_support::child_test_args(child_test).join(" ");
    let script = format!("{mounts} && exec {} {args}", binary.display());
    let mut command = Command::new("unshare");
    command.args(["-rm", "sh", "-c", &script]).envs(variables.iter().copied());
    let out = command.output().expect("unshare is part of util-linux");
    let output = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(
        out.status.success(),
        "needs user namespaces (sysctl kernel.unprivileged_userns_clone=1) or root: {output}"
    );
    output
}

#[cfg(target_os = "linux")]
fn open_in_namespace(mounts: &str, store: &str) -> String {
    in_namespace(mounts, "errors::child_process", &[("DULY_ERRORS_STORE", store)])
}

#[cfg(target_os = "linux")]
fn in_read_only_mount(dir: &Path, store: &str) -> String {
    let dir = dir.display();
    open_in_namespace(&format!("mount --bind {dir} {dir} && mount -o remount,bind,ro {dir}"), store)
}

#[cfg(target_os = "linux")]
#[test]
fn full_disk_loses_nothing_and_recovers() {
    let dir = test_support::temp_dir();
    let mount = format!("mount -t tmpfs -o size=48m none {}", dir.path().display());
    let variables = [("DULY_ERRORS_STORE", &*path(&dir, "duly.db")), ("DULY_ERRORS_FULL", "1")];
    let output = in_namespace(&mount, "errors::child_process", &variables);
    assert!(output.contains("the disk is almost full"), "{output}");
    assert!(output.contains("the disk is full; nothing was changed"), "{output}");
    assert!(output.contains("no job is lost"), "{output}");
}

/// The other side of the mount would have another WAL and another `FILE-nodes`.
#[cfg(target_os = "linux")]
#[test]
fn file_mounted_by_itself_is_refused() {
    let dir = test_support::temp_dir();
    let (file, target) = (path(&dir, "duly.db"), path(&dir, "mounted.db"));
    let output = open_in_namespace(&format!("touch {file} {target} && mount --bind {file} {target}"), &target);
    assert!(output.contains("mounted.db is mounted by itself") && output.contains("mount its directory"), "{output}");
    let output = open_in_namespace(&format!("mount --bind {0} {0}", dir.path().display()), &file);
    assert!(output.contains("opened"), "{output}");
}
