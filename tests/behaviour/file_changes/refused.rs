//! Files that cannot be used safely are refused, and files of other users are not touched.

use std::os::unix::fs::{PermissionsExt, symlink};

use duly::store::PeerStore;

use super::*;

async fn open_error(file: &SharedFile) -> String {
    file.try_open().await.map(drop).expect_err("is refused").to_string()
}

#[tokio::test]
async fn file_with_a_hard_link_is_refused() {
    let file = SharedFile::new();
    let duly = file.open().await;
    let other = file.dir.path().join("other.db");
    std::fs::hard_link(file.path(), &other).expect("links");
    let error = duly.push(Push::new("kind", "{}")).await.expect_err("is refused").to_string();
    assert!(error.contains("has 2 names (hard links)"), "{error}");
    assert!(open_error(&file).await.contains("has 2 names (hard links)"));
    std::fs::remove_file(&other).expect("removes");
    duly.push(Push::new("kind", "{}")).await.expect("has one name again");
    file.open().await;
}

#[tokio::test]
async fn symbolic_links_in_the_directory_are_not_followed() {
    for name in ["registry", "0.lock", "bus.lock"] {
        let file = SharedFile::new();
        drop(file.start().await);
        let victim = file.dir.path().join("victim");
        std::fs::write(&victim, "precious").expect("writes");
        let _ = std::fs::remove_file(file.nodes(name));
        symlink(&victim, file.nodes(name)).expect("links");
        let used = async {
            let duly = file.try_open().await?;
            let node = Node::fresh(vec!["default".into()]);
            duly.store().heartbeat(&node).await?;
            duly.store().peers_with_method("m").await
        };
        let used = used.await;
        assert_eq!(used.is_err(), name != "0.lock", "{name}: without a lock file, it takes the next slot");
        assert_eq!(std::fs::read_to_string(&victim).expect("reads"), "precious", "{name}");
    }
}

#[tokio::test]
async fn directory_that_is_a_symbolic_link_is_refused() {
    let file = SharedFile::new();
    let elsewhere = file.dir.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).expect("creates");
    symlink(&elsewhere, file.with_suffix("-nodes")).expect("links");
    let error = open_error(&file).await;
    assert!(error.contains("duly.db-nodes: is a symbolic link"), "{error}");
    assert_eq!(std::fs::read_dir(&elsewhere).expect("lists").count(), 0);
}

#[tokio::test]
async fn directory_that_others_can_write_is_refused() {
    let file = SharedFile::new();
    std::fs::create_dir(file.with_suffix("-nodes")).expect("creates");
    let all = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(file.with_suffix("-nodes"), all).expect("changes");
    let error = open_error(&file).await;
    assert!(error.contains("can be changed by other users than the store; run chmod 700"), "{error}");
}

#[tokio::test]
async fn directory_of_another_user_is_refused() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can change owners");
        return;
    }
    let file = SharedFile::new();
    drop(file.open().await);
    std::os::unix::fs::chown(file.with_suffix("-nodes"), Some(65_534), Some(65_534)).expect("changes the owner");
    let error = open_error(&file).await;
    assert!(error.contains("belongs to user 65534, but the store belongs to user 0"), "{error}");
}
