//! Messages that reach a remote node from elsewhere: wakes from the store, and commands from other nodes.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::node::RemoteNode;
use crate::peers::NodeCommand;
use crate::store::Wake;

impl RemoteNode {
    /// Carries out a command from another node.
    fn run_command(&self, command: NodeCommand) {
        let mut state = self.state();
        match command {
            // The caller may have gone away; its reply is dropped then.
            NodeCommand::ListJobs(reply) => drop(reply.send(state.describe_jobs())),
            NodeCommand::SetQuiet(quiet, reply) => {
                state.set_quiet(quiet);
                let _ = reply.send(());
            }
            NodeCommand::Stop => state.stop(),
            NodeCommand::Cancel(id, reply) => {
                let _ = reply.send(state.cancel(id));
            }
        }
        drop(state);
        self.wake_all_claims();
    }

    /// Handles a wake for a queue. If the worker does not wait for a job, or may hold no more, the wake goes to another
    /// node.
    async fn handle_wake(self: &Arc<Self>, queue: String) {
        if self.has_waiting_claim() {
            if self.state().has_room() {
                return self.check_queue(&queue);
            }
            // The waiting claim looks here once a settle has made room.
            self.state().request_claims(|name| name == queue);
        }
        self.step_back(queue).await;
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
                (Some(Wake::Heartbeat), Some(node)) => node.wake_claim(),
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
