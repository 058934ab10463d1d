//! Messages that reach a remote node from elsewhere: wakes from the store, and commands from other nodes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::mpsc;

use super::held_jobs::RemoteJob;
use super::node::RemoteNode;
use crate::clock;
use crate::peers::{NodeCommand, RunningJob};
use crate::store::{Claim, JobStore, Wake};

impl RemoteNode {
    /// Carries out a command from another node.
    fn run_command(&self, command: NodeCommand) {
        let mut state = self.state();
        match command {
            // The caller may have gone away; its reply is dropped then.
            NodeCommand::ListJobs(reply) => drop(reply.send(state.jobs.values().map(running).collect())),
            NodeCommand::SetQuiet(quiet, reply) => {
                state.quiet = quiet;
                let _ = reply.send(());
            }
            NodeCommand::Stop => (state.quiet, state.stop) = (true, true),
            NodeCommand::Cancel(id, reply) => {
                let found = state.jobs.get_mut(&id).map(|job| job.cancelled = true).is_some();
                let _ = reply.send(found);
            }
        }
        drop(state);
        self.woken.notify_waiters();
    }

    /// Handles a wake for a queue. If the worker does not wait for a job, the wake goes to another node.
    async fn handle_wake(self: &Arc<Self>, queue: String) {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            return self.check_queue(&queue);
        }
        let _one = self.claiming.lock().await;
        let step_back = Claim::new(queue, 0);
        if let Err(error) = self.duly.store.claim(self.node.id, step_back).await {
            tracing::debug!(%error, "a wake could not be passed on");
        }
    }
}

fn running(job: &RemoteJob) -> RunningJob {
    let held = &job.held;
    let running_ms = (clock::monotonic_now() - job.since).as_millis();
    RunningJob {
        id: held.job.id,
        queue: held.job.queue.clone(),
        kind: held.job.kind.clone(),
        attempt: held.attempt(),
        fence: held.fence,
        running_ms: u64::try_from(running_ms).unwrap_or(u64::MAX),
        progress: None,
    }
}

/// Passes wakes and commands to the node until it is dropped.
pub(super) async fn listen(
    node: std::sync::Weak<RemoteNode>,
    mut wakes: mpsc::Receiver<Wake>,
    mut commands: mpsc::Receiver<NodeCommand>,
) {
    loop {
        tokio::select! {
            wake = wakes.recv() => match (wake, node.upgrade()) {
                (Some(Wake::Queue(queue)), Some(node)) => node.handle_wake(queue).await,
                (Some(Wake::Heartbeat), Some(node)) => node.woken.notify_one(),
                // The store delivers jobs only to nodes that accept them this way; remote nodes do not.
                (Some(Wake::Job(_) | Wake::Resync(_)), Some(_)) => {}
                _ => return,
            },
            command = commands.recv() => match (command, node.upgrade()) {
                (Some(command), Some(node)) => node.run_command(command),
                _ => return,
            },
        }
    }
}
