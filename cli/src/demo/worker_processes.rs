//! The demo's worker processes: started, listened to, killed. None outlives the demo.

use std::process::Stdio;
use std::time::Duration;

use anyhow::Context as _;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

use crate::child::own_program_command;
use crate::events::EventRecord;

/// Events that may wait to be shown.
const QUEUED_EVENTS_MAX: usize = 10_000;
/// How long a worker may take to leave at the end.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

/// One worker process.
struct WorkerProcess {
    child: Child,
    pid: Option<u32>,
}

pub(super) struct WorkerProcesses {
    workers: Vec<WorkerProcess>,
    /// What happens, and in which worker.
    pub(super) events: mpsc::Receiver<(usize, EventRecord)>,
}

/// The name of a worker: A, B, C.
pub(super) fn worker_letter(worker: usize) -> char {
    ('A'..='Z').nth(worker).unwrap_or('?')
}

impl WorkerProcesses {
    /// Starts so many workers on a store.
    pub(super) fn start(url: &str, workers: usize) -> anyhow::Result<WorkerProcesses> {
        let (tell, events) = mpsc::channel(QUEUED_EVENTS_MAX);
        let mut members = Vec::with_capacity(workers);
        for worker in 0..workers {
            let mut command = Command::from(own_program_command().context("cannot find this program")?);
            command.args(["--store", url, "demo-worker", "--parent", &std::process::id().to_string()]);
            // In a group of its own: a Ctrl-C at the terminal is for the demo, which ends its workers.
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0).kill_on_drop(true);
            let mut child = command.spawn().context("cannot start a worker process")?;
            let mut lines = BufReader::new(child.stdout.take().context("a worker without stdout")?).lines();
            let tell = tell.clone();
            tokio::spawn(async move {
                // Ends with the worker.
                while let Ok(Some(line)) = lines.next_line().await {
                    let Ok(told) = serde_json::from_str(&line) else { continue };
                    if tell.send((worker, told)).await.is_err() {
                        break;
                    }
                }
            });
            members.push(WorkerProcess { pid: child.id(), child });
        }
        Ok(WorkerProcesses { workers: members, events })
    }

    pub(super) fn pid(&self, worker: usize) -> u32 {
        self.workers.get(worker).and_then(|member| member.pid).unwrap_or_default()
    }

    /// `kill -9`: the worker can do nothing any more, not even say so.
    pub(super) async fn kill(&mut self, worker: usize) -> anyhow::Result<()> {
        let member = self.workers.get_mut(worker).context("there is no such worker")?;
        // Also waits for its end: a process that nobody waits for stays in the list of processes.
        member.child.kill().await.context("cannot kill the worker")
    }

    /// Lets the workers leave in good order; whoever takes too long is killed with the crew.
    pub(super) async fn shut_down(mut self) {
        for member in &mut self.workers {
            drop(member.child.stdin.take());
        }
        for member in &mut self.workers {
            let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, member.child.wait()).await;
        }
    }
}
