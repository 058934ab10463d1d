//! A worker of ours in a process of its own, to be killed.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use duly::{Ctx, Duly};
use test_support::KillOnDrop;

const STORE: &str = "DULY_INTEROP_STORE";

/// Starts one that takes jobs and never ends them; comes back when it has begun so many.
pub fn start(store: &str, begun: usize) -> KillOnDrop {
    let mut command = test_support::child_test("sidekiq::child::work");
    let mut child = command.env(STORE, store).stdout(Stdio::piped()).spawn().expect("starts");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let begins = lines.map_while(Result::ok).filter(|line| line.contains("begun"));
    assert_eq!(begins.take(begun).count(), begun);
    KillOnDrop(child)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "no test: the child of one"]
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
