//! The files of a store are deleted, replaced, linked or mounted while processes use them.

mod deleted;
mod refused;
mod replaced;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use duly::bounds::DEFAULT_LEASE;
use duly::job::HeldJob;
use duly::store::{Claim, ClaimReply, JobStore, Node, Store};
use duly::{Clock, Duly, NodeId, Push};

const SECOND: Duration = Duration::from_secs(1);

/// A file whose stores share one manual clock, as several processes share that of their machine.
struct SharedFile {
    dir: test_support::TempDir,
    clock: Clock,
    /// The lease of its nodes.
    lease: Duration,
}

/// One process on the file, with one node.
struct Process {
    duly: Duly,
    store: Arc<dyn Store>,
    node: Node,
}

impl SharedFile {
    fn new() -> Self {
        SharedFile { dir: test_support::temp_dir(), clock: Clock::manual(), lease: DEFAULT_LEASE }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("duly.db")
    }

    fn with_suffix(&self, suffix: &str) -> PathBuf {
        PathBuf::from(format!("{}{suffix}", self.path().display()))
    }

    fn nodes(&self, name: &str) -> PathBuf {
        self.with_suffix("-nodes").join(name)
    }

    fn remove_wal(&self) {
        for suffix in ["-wal", "-shm"] {
            std::fs::remove_file(self.with_suffix(suffix)).expect("removes");
        }
    }

    async fn try_open(&self) -> duly::Result<Duly> {
        let url = format!("{}?lease={}s", self.path().display(), self.lease.as_secs());
        Duly::builder(url).clock(self.clock.clone()).open().await
    }

    async fn open(&self) -> Duly {
        self.try_open().await.expect("opens")
    }

    async fn start(&self) -> Process {
        let duly = self.open().await;
        let mut node = Node::fresh(vec!["default".into()]);
        node.lease = self.lease;
        let process = Process { store: duly.store(), node, duly };
        process.heartbeat().await.expect("joins");
        process
    }

    /// Lets all processes live on for this long.
    async fn live(&self, time: Duration, processes: &[&Process]) {
        for _ in 0..time.as_secs() {
            self.clock.advance(SECOND);
            for process in processes {
                process.heartbeat().await.expect("sends a heartbeat");
            }
        }
    }
}

impl Process {
    async fn heartbeat(&self) -> duly::Result<Vec<NodeId>> {
        let reply = self.store.heartbeat(&self.node).await?;
        Ok(reply.suspects.into_iter().map(|(id, _)| id).collect())
    }

    async fn push_and_claim(&self) -> HeldJob {
        self.duly.push(Push::new("kind", "{}")).await.expect("pushes");
        let mut held = self.store.claim(self.node.id, Claim::new("default", 1)).await.expect("claims").jobs;
        held.pop().expect("a job")
    }

    /// Claims the jobs of another node, as if that were dead.
    async fn claim_from(&self, other: &Process) -> ClaimReply {
        let claim = Claim { suspect: Some(other.node.id), ..Claim::new("default", 9) };
        self.store.claim(self.node.id, claim).await.expect("claims")
    }
}

/// Copies contents over a file in a process of its own: this process must not close a handle of the file.
fn copy_over(from: &Path, to: &Path) {
    let copied = std::process::Command::new("cp").args([from, to]).status().expect("cp is there");
    assert!(copied.success());
}

fn past_the_lease() -> Duration {
    DEFAULT_LEASE + 2 * SECOND
}
