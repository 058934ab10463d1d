//! A duly worker in a child process, to be killed.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use duly::{Ctx, Duly};
use test_support::KillOnDrop;

const STORE: &str = "DULY_INTEROP_STORE";

/// Starts a worker that never finishes a job. Returns when it has started this many.
pub fn start(store: &str, jobs: usize) -> KillOnDrop {
    let mut command = test_support::child_test("sidekiq::child::work");
    let mut child = command.env(STORE, store).stdout(Stdio::piped()).spawn().expect("starts");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let started = lines.map_while(Result::ok).filter(|line| line.contains("begun"));
    assert_eq!(started.take(jobs).count(), jobs);
    KillOnDrop(child)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the child process of a test"]
async fn work() {
    let Ok(store) = std::env::var(STORE) else {
        return;
    };
    let duly = Duly::open(store).await.expect("opens");
    let worker = duly.worker().queue("default", 20).on_kind("Echo", |_: Ctx| async {
        println!("begun");
        std::future::pending::<()>().await;
    });
    worker.run().await.expect("runs");
}
