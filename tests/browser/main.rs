//! The dashboard in a real browser: each page, each action, keys, dark, narrow, without scripts, for screen readers.
//!
//! Needs Debian's chromium and, in `target/browser`, playwright-core and axe-core: `./check web` installs them.

#![cfg(feature = "http")]

mod bed;

use std::path::{Path, PathBuf};
use std::process::Stdio;

#[cfg(feature = "redis")]
use test_support::servers;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Runs a script of `tests/browser` with these arguments; its output is the test's.
async fn run(script: &str, args: &[&str]) {
    let modules = root().join("target/browser/node_modules");
    assert!(modules.join("playwright-core").exists(), "no playwright-core: run `./check web`, which installs it");
    let script = Path::new("tests/browser").join(script);
    let (args, root): (Vec<String>, _) = (args.iter().map(|arg| (*arg).to_owned()).collect(), root());
    let node = move || {
        let mut node = std::process::Command::new("node");
        node.arg(script).args(args).env("DULY_BROWSER_MODULES", modules).current_dir(root);
        node.stdin(Stdio::null()).status()
    };
    let status = tokio::task::spawn_blocking(node).await.expect("no panic").expect("node is installed");
    assert!(status.success(), "see above");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_page_and_action_works_in_a_browser() {
    let full = bed::full().await;
    bed::work(&full);
    bed::tick(&full);
    let empty = bed::empty().await;
    run("pages.mjs", &[&full.url, &empty.url]).await;
}

/// What is shown, and what is done, is asked of the contract: the same pages on the other store.
#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_page_and_action_works_on_redis() {
    let store = || format!("{}?prefix={}", servers::redis().url(), duly::JobId::fresh());
    let full = bed::full_on(&store(), |server| server).await;
    bed::work(&full);
    bed::tick(&full);
    let empty = bed::empty_on(&store()).await;
    run("pages.mjs", &[&full.url, &empty.url, "short"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn people_sign_in_see_what_their_role_sees_and_sign_out() {
    let bed = bed::full_with(|server| server.require_token()).await;
    let token = async |name, role| bed.duly.create_token(name, role, None).await.expect("made").as_str().to_owned();
    let (viewer, admin) = (token("eve", duly::Role::Viewer).await, token("ada", duly::Role::Admin).await);
    run("login.mjs", &[&bed.url, &viewer, &admin]).await;
}

/// `docs/pictures/make` runs this one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "makes the pictures of the documents"]
async fn pictures() {
    let full = bed::full().await;
    bed::work(&full);
    let empty = bed::empty().await;
    let to = std::env::var("DULY_PICTURES").unwrap_or_else(|_| "target/pictures".to_owned());
    run("pictures.mjs", &[&full.url, &empty.url, &to]).await;
}
