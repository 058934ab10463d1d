//! Starts, monitors and kills the worker processes of the demo. None outlives the demo.

use std::process::Stdio;
use std::time::Duration;

use anyhow::Context as _;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

use crate::child::own_program_command;
use crate::events::EventRecord;

/// Events that may be queued.
const QUEUED_EVENTS_MAX: usize = 10_000;
/// How long a worker may take to shut down.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

/// One worker process.
struct WorkerProcess {
    child: Child,
    pid: Option<u32>,
}

pub(super) struct WorkerProcesses {
    workers: Vec<WorkerProcess>,
    /// Events with the index of their worker.
    pub(super) events: mpsc::Receiver<(usize, EventRecord)>,
}

/// Returns the name of a worker: A, B, C.
pub(super) fn worker_letter(worker: usize) -> char {
    ('A'..='Z').nth(worker).unwrap_or('?')
}

impl WorkerProcesses {
    /// Starts this many workers on a store.
    pub(super) fn start(url: &str, workers: usize) -> anyhow::Result<WorkerProcesses> {
        let (sender, events) = mpsc::channel(QUEUED_EVENTS_MAX);
        let mut processes = Vec::with_capacity(workers);
        for worker in 0..workers {
            let mut command = Command::from(own_program_command().context("cannot find this program")?);
            command.args(["--store", url, "demo-worker", "--parent", &std::process::id().to_string()]);
            // A separate group: a Ctrl-C at the terminal reaches only the demo, which stops its workers.
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0).kill_on_drop(true);
            let mut child = command.spawn().context("cannot start a worker process")?;
            let mut lines = BufReader::new(child.stdout.take().context("a worker without stdout")?).lines();
            let sender = sender.clone();
            tokio::spawn(async move {
                while let Ok(Some(line)) = lines.next_line().await {
                    let Ok(record) = serde_json::from_str(&line) else { continue };
                    if sender.send((worker, record)).await.is_err() {
                        break;
                    }
                }
            });
            processes.push(WorkerProcess { pid: child.id(), child });
        }
        Ok(WorkerProcesses { workers: processes, events })
    }

    pub(super) fn pid(&self, worker: usize) -> u32 {
        self.workers.get(worker).and_then(|process| process.pid).unwrap_or_default()
    }

    /// Kills a worker with SIGKILL.
    pub(super) async fn kill(&mut self, worker: usize) -> anyhow::Result<()> {
        let process = self.workers.get_mut(worker).context("there is no such worker")?;
        // `kill` also waits for the process, so that it does not stay a zombie.
        process.child.kill().await.context("cannot kill the worker")
    }

    /// Shuts the workers down; a worker that takes too long is killed on drop.
    pub(super) async fn shut_down(mut self) {
        for process in &mut self.workers {
            drop(process.child.stdin.take());
        }
        for process in &mut self.workers {
            let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, process.child.wait()).await;
        }
    }
}
