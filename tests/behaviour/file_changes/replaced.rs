//! The database file is deleted or replaced under a running process, or a backup is restored over it.

use duly::JobId;

use test_support::until;

use super::*;

/// A file with one job, and a backup of it.
async fn file_and_backup() -> (SharedFile, PathBuf, JobId) {
    let file = SharedFile::new();
    let duly = file.open().await;
    let id = duly.push(Push::new("kind", "{}")).await.expect("pushes").id();
    let backup = file.dir.path().join("backup.db");
    duly.backup(&backup).await.expect("backs up");
    (file, backup, id)
}

async fn count_jobs(duly: &Duly) -> u64 {
    duly.queues().counts().await.expect("counts").iter().map(|queue| queue.ready).sum()
}

async fn push_error(duly: &Duly) -> String {
    let error = duly.push(Push::new("kind", "{}")).await.expect_err("is refused");
    assert_eq!(error.code(), "store");
    error.to_string()
}

#[tokio::test]
async fn nothing_is_pushed_or_claimed_after_the_file_was_deleted() {
    let file = SharedFile::new();
    let process = file.start().await;
    process.duly.push(Push::new("kind", "{}")).await.expect("pushes");
    std::fs::remove_file(file.path()).expect("removes");
    let error = push_error(&process.duly).await;
    assert!(error.contains("was deleted or moved while it is open; stop all processes"), "{error}");
    process.store.claim(process.node.id, Claim::new("default", 1)).await.expect_err("claims nothing");
    let error = process.heartbeat().await.expect_err("reports it").to_string();
    assert!(error.contains("was deleted or moved"), "{error}");
    assert!(process.duly.health().await.expect("reads").warnings.iter().any(|text| text.contains("was deleted")));

    // The next file at the path does not find the WAL of this one.
    drop(process);
    until("its threads have closed the file", async || !file.with_suffix("-wal").exists()).await;
    assert_eq!(count_jobs(&file.open().await).await, 0);
}

/// An empty file at the old path would make SQLite delete the WAL, and with it the last commits of the moved file.
#[tokio::test]
async fn wal_of_a_moved_file_stays_until_the_file_is_back() {
    let file = SharedFile::new();
    let process = file.start().await;
    process.duly.push(Push::new("kind", "{}")).await.expect("pushes");
    let moved = file.dir.path().join("moved.db");
    std::fs::rename(file.path(), &moved).expect("moves");
    drop(process);
    let refused = file.try_open().await.map(drop).expect_err("the WAL is there").to_string();
    assert!(refused.contains("was deleted or moved") && refused.contains("move the file back"), "{refused}");
    std::fs::rename(&moved, file.path()).expect("moves back");
    assert_eq!(count_jobs(&file.open().await).await, 1);
}

#[tokio::test]
async fn file_moved_back_is_used_again() {
    let file = SharedFile::new();
    let process = file.start().await;
    let moved = file.dir.path().join("moved.db");
    std::fs::rename(file.path(), &moved).expect("moves");
    push_error(&process.duly).await;
    std::fs::rename(&moved, file.path()).expect("moves back");
    process.duly.push(Push::new("kind", "{}")).await.expect("pushes");
}

#[tokio::test]
async fn replaced_file_is_refused_while_a_worker_uses_the_old_one() {
    let (file, backup, id) = file_and_backup().await;
    let process = file.start().await;
    process.duly.push(Push::new("kind", "{}")).await.expect("pushes");
    std::fs::rename(&backup, file.path()).expect("restores");
    let error = push_error(&process.duly).await;
    assert!(error.contains("was replaced by another file while it is open"), "{error}");
    let refused = file.try_open().await.map(drop).expect_err("the old WAL is in use").to_string();
    assert!(refused.contains(&format!("process {}", std::process::id())), "{refused}");

    // The WAL of the old file stays, and is not applied to the new one.
    drop(process);
    let refused = file.try_open().await.map(drop).expect_err("the old WAL is there").to_string();
    assert!(refused.contains("belongs to the file that was there before"), "{refused}");
    file.remove_wal();
    let restored = file.open().await;
    assert!(restored.verify().await.expect("verifies").violations.is_empty());
    assert_eq!(count_jobs(&restored).await, 1);
    assert!(restored.jobs().get(id).await.expect("reads").is_some());
}

/// Its end would delete the WAL of the new file by its path.
#[tokio::test]
async fn process_on_a_replaced_file_leaves_the_new_wal_alone() {
    let (file, backup, _) = file_and_backup().await;
    let old = file.open().await;
    old.push(Push::new("kind", "{}")).await.expect("pushes");
    file.remove_wal();
    std::fs::rename(&backup, file.path()).expect("restores");
    let new = file.open().await;
    new.push(Push::new("kind", "{}")).await.expect("pushes");
    push_error(&old).await;
    drop(old);
    assert!(file.with_suffix("-wal").exists() && file.with_suffix("-shm").exists());
    new.push(Push::new("kind", "{}")).await.expect("pushes");
    let again = file.open().await;
    assert_eq!(count_jobs(&again).await, 3);
    assert!(again.verify().await.expect("verifies").violations.is_empty());
}

#[tokio::test]
async fn backup_copied_over_an_open_file_is_not_damaged() {
    let (file, backup, id) = file_and_backup().await;
    let process = file.start().await;
    for _ in 0..50 {
        process.duly.push(Push::new("kind", "{}")).await.expect("pushes");
    }
    copy_over(&backup, &file.path());
    let error = process.heartbeat().await.expect_err("notices it").to_string();
    assert!(error.contains("other contents were copied into"), "{error}");
    push_error(&process.duly).await;
    drop(process);
    assert_eq!(std::fs::read(&backup).expect("reads"), std::fs::read(file.path()).expect("reads"), "unchanged");

    let refused = file.try_open().await.map(drop).expect_err("the old WAL is there").to_string();
    assert!(refused.contains("belongs to the file that was there before"), "{refused}");
    file.remove_wal();
    let restored = file.open().await;
    assert_eq!(count_jobs(&restored).await, 1);
    assert!(restored.jobs().get(id).await.expect("reads").is_some());
}

/// A process that only pushes sends no heartbeats, and enough pushes lead to a checkpoint.
#[tokio::test]
async fn backup_copied_over_a_file_is_not_damaged_by_pushes() {
    let (file, backup, _) = file_and_backup().await;
    let pusher = file.open().await;
    pusher.push(Push::new("kind", "{}")).await.expect("pushes");
    copy_over(&backup, &file.path());
    let args = format!("\"{}\"", "x".repeat(400_000));
    let mut accepted = 0;
    let error = loop {
        match pusher.push(Push::new("kind", args.as_str())).await {
            Err(error) => break error.to_string(),
            Ok(_) => accepted += 1,
        }
        assert!(accepted < 1_000, "it was never noticed");
    };
    assert!(error.contains("other contents were copied into"), "{error}");
    drop(pusher);
    assert_eq!(std::fs::read(&backup).expect("reads"), std::fs::read(file.path()).expect("reads"), "unchanged");
}

/// While `cp` runs, the file has neither the old contents nor the new ones. SQLite itself refuses to write only if the
/// file is much too short.
#[tokio::test]
async fn half_copied_file_is_not_damaged_by_a_checkpoint() {
    let (file, backup, _) = file_and_backup().await;
    let pusher = file.open().await;
    let args = format!("\"{}\"", "x".repeat(400_000));
    let push = async || pusher.push(Push::new("kind", args.as_str())).await;
    let size = || std::fs::metadata(file.path()).expect("is there").len();
    let before = size();
    while size() == before {
        push().await.expect("pushes until the first checkpoint");
    }
    // A push returns before its checkpoint ends. The next task of the writing thread runs after it.
    pusher.health().await.expect("the checkpoint is complete");
    let mut contents = std::fs::read(&backup).expect("reads");
    contents.truncate(4_096);
    contents.resize(usize::try_from(size()).expect("small"), 0);
    let half = file.dir.path().join("half");
    std::fs::write(&half, &contents).expect("writes");
    copy_over(&half, &file.path());
    for _ in 0..30 {
        // A file that stays unchanged for 2 s is no copy in progress, and a busy machine may take that long.
        let touched = std::process::Command::new("touch").arg(file.path()).status();
        assert!(touched.expect("touch is there").success());
        // The page cache decides whether a commit fails.
        let _ = push().await;
    }
    assert!(std::fs::read(file.path()).expect("reads") == contents, "unchanged");
    copy_over(&backup, &file.path());
    let error = pusher.health().await.expect("reads").warnings.join(" ");
    assert!(error.contains("other contents were copied into"), "{error}");
    drop(pusher);
    assert_eq!(std::fs::read(&backup).expect("reads"), std::fs::read(file.path()).expect("reads"), "unchanged");
}

/// A store that is closed can be restored in any way.
#[tokio::test]
async fn closed_file_is_restored_without_a_question() {
    for by_copy in [true, false] {
        let (file, backup, id) = file_and_backup().await;
        file.start().await.duly.push(Push::new("kind", "{}")).await.expect("pushes");
        match by_copy {
            true => copy_over(&backup, &file.path()),
            false => std::fs::rename(&backup, file.path()).expect("moves"),
        }
        let restored = file.open().await;
        assert_eq!(count_jobs(&restored).await, 1);
        assert!(restored.jobs().get(id).await.expect("reads").is_some());
    }
}
