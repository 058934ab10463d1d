//! A worker of ours in a process of its own, to be killed.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use duly::{Ctx, Duly};

const STORE: &str = "DULY_INTEROP_STORE";

/// Starts one that takes jobs and never ends them; comes back when it has begun so many.
pub fn start(store: &str, begun: usize) -> Killed {
    let me = std::env::current_exe().expect("a program");
    let mut command = Command::new(me);
    command.args(["--exact", "sidekiq::child::work", "--ignored", "--nocapture"]).env(STORE, store);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("starts");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let begins = lines.map_while(Result::ok).filter(|line| line.contains("begun"));
    assert_eq!(begins.take(begun).count(), begun);
    Killed(child)
}

/// Killed with its value, without a chance to say goodbye.
pub struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
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
