//! `FILE-nodes` or parts of it are deleted, as programs do that delete old files.

use std::time::SystemTime;

use duly::store::{AttemptEnd, LockOwner, LockRequest, LockStore, PeerInfo, PeerStore};
use duly::{Outcome, State};

use super::*;

/// After the deletion, no process takes the job of a living node, whether it was there before or comes later.
async fn assert_living_node_keeps_its_job(delete: impl Fn(&SharedFile)) {
    let file = SharedFile::new();
    let (holder, before) = (file.start().await, file.start().await);
    let held = holder.push_and_claim().await;
    delete(&file);
    let after = file.start().await;
    for other in [&before, &after] {
        assert_eq!(other.heartbeat().await.expect("sends a heartbeat"), [], "no node is a suspect");
        assert_eq!(other.claim_from(&holder).await.taken_back, 0);
    }
    file.live(past_the_lease(), &[&holder, &before, &after]).await;
    for other in [&before, &after, &file.start().await] {
        assert_eq!(other.heartbeat().await.expect("sends a heartbeat"), [], "no node is a suspect");
        assert_eq!(other.claim_from(&holder).await.taken_back, 0);
    }
    let nodes = after.duly.nodes().list().await.expect("lists");
    assert!(nodes.iter().filter(|node| node.alive).count() >= 3, "all know each other: {nodes:?}");
    let end = AttemptEnd::from_held(&held, Outcome::Ack, Duration::from_secs(60));
    assert!(
        holder.store.settle(holder.node.id, vec![end]).await.expect("settles").is_empty(),
        "it still holds the job"
    );
    let record = holder.duly.jobs().get(held.job.id).await.expect("reads").expect("is kept");
    assert_eq!((record.state, record.crashes), (State::Done, 0));
}

#[tokio::test]
async fn living_node_keeps_its_job_after_the_directory_is_deleted() {
    assert_living_node_keeps_its_job(|file| std::fs::remove_dir_all(file.nodes("")).expect("removes")).await;
}

#[tokio::test]
async fn living_node_keeps_its_job_after_the_registry_is_deleted() {
    assert_living_node_keeps_its_job(|file| std::fs::remove_file(file.nodes("registry")).expect("removes")).await;
}

#[tokio::test]
async fn living_node_keeps_its_job_after_lock_files_are_deleted() {
    assert_living_node_keeps_its_job(|file| {
        for name in ["0.lock", "1.lock"] {
            std::fs::remove_file(file.nodes(name)).expect("removes");
        }
    })
    .await;
}

#[tokio::test]
async fn living_node_keeps_its_job_after_lock_files_are_replaced() {
    assert_living_node_keeps_its_job(|file| {
        for name in ["0.lock", "1.lock"] {
            std::fs::rename(file.nodes(name), file.dir.path().join(name)).expect("moves");
        }
    })
    .await;
}

/// The job of a node that died after the deletion is not lost: its lease ends.
#[tokio::test]
async fn dead_node_loses_its_job_after_the_directory_is_deleted() {
    let file = SharedFile::new();
    let (holder, other) = (file.start().await, file.start().await);
    holder.push_and_claim().await;
    std::fs::remove_dir_all(file.nodes("")).expect("removes");
    file.live(2 * past_the_lease(), &[&other]).await;
    assert_eq!(other.heartbeat().await.expect("sends a heartbeat"), [holder.node.id]);
    assert_eq!(other.claim_from(&holder).await.taken_back, 1);
}

/// Without its lock file, the end of a process is not visible, so its lease decides.
#[tokio::test]
async fn dead_node_without_lock_file_loses_slot_and_row() {
    let file = SharedFile::new();
    let (dead, other) = (file.start().await, file.start().await);
    let dead_id = dead.node.id;
    let occupied = || std::fs::read(file.nodes("registry")).expect("reads")[..16] == *dead_id.as_bytes();
    // The process ends without leaving.
    drop(dead);
    std::fs::remove_file(file.nodes("0.lock")).expect("removes");
    file.live(SECOND, &[&other]).await;
    assert!(occupied(), "its lease is current");
    file.live(2 * past_the_lease(), &[&other]).await;
    assert!(!occupied(), "its slot is free");
    let after = file.start().await;
    let nodes = after.duly.nodes().list().await.expect("lists");
    assert!(nodes.iter().all(|node| node.id != dead_id) && nodes.len() == 2, "its row is deleted: {nodes:?}");
}

/// Only a process that knows the longest lease creates the registry again.
#[tokio::test]
async fn paused_node_with_long_lease_keeps_its_job_after_the_registry_is_deleted_and_a_push() {
    let file = SharedFile { lease: 60 * SECOND, ..SharedFile::new() };
    let (holder, pusher) = (file.start().await, file.open().await);
    holder.push_and_claim().await;
    std::fs::remove_file(file.nodes("registry")).expect("removes");
    let mut conn = duly::rusqlite::Connection::open(file.path()).expect("opens");
    let tx = conn.transaction().expect("begins");
    let pushed = pusher.push_in(&tx, [Push::new("kind", "{}")]).expect("pushes");
    tx.commit().expect("commits");
    pushed.wake();
    let after = file.start().await;
    file.live(past_the_lease(), &[&after]).await;
    assert_eq!(after.heartbeat().await.expect("sends a heartbeat"), [], "no node is a suspect");
    assert_eq!(after.claim_from(&holder).await.taken_back, 0);
}

#[tokio::test]
async fn lock_keeps_its_holder_after_the_directory_is_deleted() {
    let file = SharedFile::new();
    let (holder, other) = (file.start().await, file.start().await);
    let request = |process: &Process| LockRequest {
        name: "l".into(),
        owner: LockOwner::fresh(),
        node: process.node.id,
        lease: DEFAULT_LEASE,
        slots: 1,
        ttl: Duration::from_secs(600),
        wait: false,
        note: String::new(),
    };
    assert!(holder.store.lock(&request(&holder)).await.expect("replies").hold.is_some());
    std::fs::remove_dir_all(file.nodes("")).expect("removes");
    let after = file.start().await;
    for process in [&after, &other] {
        assert!(process.store.lock(&request(process)).await.expect("replies").hold.is_none(), "it is held");
    }
    holder.store.announce(&PeerInfo::new(holder.node.id, DEFAULT_LEASE)).await.expect("announces");
    file.live(past_the_lease(), &[&holder, &other, &after]).await;
    for process in [&after, &other] {
        assert!(process.store.lock(&request(process)).await.expect("replies").hold.is_none(), "it is still held");
    }
}

/// A node's socket is bound again, so that wakes arrive.
#[tokio::test]
async fn deleted_socket_is_created_again() {
    use std::os::unix::fs::PermissionsExt;
    let file = SharedFile::new();
    let process = file.start().await;
    let _wakes = process.store.subscribe_wakes(process.node.id).await.expect("subscribes");
    let mode = || std::fs::metadata(file.nodes("0.sock")).ok().map(|found| found.permissions().mode() & 0o777);
    assert_eq!(mode(), Some(0o600));
    // The listener binds its socket again as soon as it is gone, also while the directory is being removed.
    test_support::until("the directory is removed", async || std::fs::remove_dir_all(file.nodes("")).is_ok()).await;
    process.heartbeat().await.expect("joins again");
    test_support::until("the socket is there again", async || mode() == Some(0o600)).await;
}

/// A link that the owner of the directory puts in place of a socket or of the directory does not lead root elsewhere.
#[tokio::test]
#[cfg(target_os = "linux")]
async fn links_in_place_of_sockets_and_directory_are_not_followed() {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
    let file = SharedFile::new();
    let (process, elsewhere) = (file.start().await, file.dir.path().join("elsewhere"));
    std::fs::create_dir(&elsewhere).expect("creates");
    let target = elsewhere.join("0.sock");
    std::fs::write(&target, "kept").expect("writes");
    std::fs::set_permissions(&target, std::fs::Permissions::from_mode(0o644)).expect("changes");
    let mode = || std::fs::metadata(&target).expect("is there").permissions().mode() & 0o777;
    symlink(&target, file.nodes("0.sock")).expect("links");
    let wakes = process.store.subscribe_wakes(process.node.id).await.expect("subscribes");
    assert!(std::fs::symlink_metadata(file.nodes("0.sock")).expect("is there").file_type().is_socket());
    assert_eq!((std::fs::read_to_string(&target).expect("reads"), mode()), ("kept".into(), 0o644));
    drop(wakes);

    std::fs::rename(file.nodes(""), file.dir.path().join("moved")).expect("moves");
    symlink(&elsewhere, file.with_suffix("-nodes")).expect("links");
    process.store.leave(process.node.id).await.expect("leaves");
    assert!(!file.dir.path().join("moved/0.sock").exists(), "its own socket is removed");
    assert_eq!((std::fs::read_to_string(&target).expect("reads"), mode()), ("kept".into(), 0o644));
}

#[tokio::test]
async fn files_of_a_living_process_do_not_look_old() {
    let file = SharedFile::new();
    let process = file.start().await;
    process.push_and_claim().await;
    let files = ["", "-wal", "-shm", "-nodes/0.lock", "-nodes/registry", "-nodes/identity"];
    let old = SystemTime::now() - Duration::from_secs(100 * 86_400);
    for name in files {
        let set = std::process::Command::new("touch").args(["-d", "2001-01-01"]).arg(file.with_suffix(name)).status();
        assert!(set.expect("touch is there").success());
        assert!(std::fs::metadata(file.with_suffix(name)).expect("is there").modified().expect("a time") < old);
    }
    file.clock.advance(Duration::from_secs(601));
    process.heartbeat().await.expect("sends a heartbeat");
    for name in files {
        assert!(
            std::fs::metadata(file.with_suffix(name)).expect("is there").modified().expect("a time") > old,
            "{name}"
        );
    }
}
