//! The dashboard in a real browser: pages, actions, keys, dark, narrow, without scripts, for screen readers.
//!
//! Needs Debian's chromium and, in `target/browser`, playwright-core and axe-core: `./check web` installs them.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::{fixture, servers};

/// The root of the repository.
fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Runs a script of `http/tests/web/browser` with these arguments; its output is the test's.
async fn run(script: &str, args: &[&str]) {
    let modules = root().join("target/browser/node_modules");
    assert!(modules.join("playwright-core").exists(), "no playwright-core: run `./check web`, which installs it");
    let script = Path::new("http/tests/web/browser").join(script);
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
    let full = fixture::full().await;
    fixture::work(&full);
    fixture::tick(&full);
    let empty = fixture::empty().await;
    run("pages.mjs", &[&full.url, &empty.url]).await;
    run("features.mjs", &[&full.url]).await;
}

/// The pages use only the store contract: the same pages on the other store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_page_and_action_works_on_redis() {
    let store = || format!("{}?prefix={}", servers::redis().url(), duly::JobId::fresh());
    let full = fixture::full_on(&store(), |server| server).await;
    fixture::work(&full);
    fixture::tick(&full);
    let empty = fixture::empty_on(&store()).await;
    run("pages.mjs", &[&full.url, &empty.url, "short"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_sign_in_see_their_role_and_sign_out() {
    let fixture = fixture::full_with(|server| server.require_token()).await;
    let token =
        async |name, role| fixture.duly.tokens().create(name, role, None).await.expect("made").as_str().to_owned();
    let (viewer, admin) = (token("eve", duly::admin::Role::Viewer).await, token("ada", duly::admin::Role::Admin).await);
    run("login.mjs", &[&fixture.url, &viewer, &admin]).await;
}

/// `docs/pictures/make` runs this one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "makes the pictures of the documents"]
async fn pictures() {
    let full = fixture::full().await;
    fixture::work(&full);
    let empty = fixture::empty().await;
    let to = std::env::var("DULY_PICTURES").unwrap_or_else(|_| "target/pictures".to_owned());
    run("pictures.mjs", &[&full.url, &empty.url, &to]).await;
}
