//! The events that the run loop waits for.

use std::sync::Arc;

use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use crate::peers::{NodeCommand, WorkerRegistration};
use crate::store::{HeartbeatReply, Wake};
use crate::worker::attempts::Attempts;
use crate::worker::heartbeat::HeartbeatThread;
use crate::worker::outcomes::UnsettledEnd;
use crate::worker::phase::Phase;
use crate::worker::progress_sender::ProgressSender;
use crate::worker::queues::WorkerQueues;
use crate::worker::requests::StoreReply;
use crate::worker::timer::Timer;

/// The sources of events, apart from the store's replies and the attempts.
pub(super) struct LoopInputs {
    pub(super) wakes: mpsc::Receiver<Wake>,
    pub(super) heartbeats: HeartbeatThread,
    pub(super) commands: mpsc::Receiver<NodeCommand>,
    pub(super) timer: Timer,
    /// Notified when another worker of the process has reserved it, or has ended that.
    pub(super) process_changes: Arc<Notify>,
    /// A simulated crash.
    pub(super) crashed: CancellationToken,
    pub(super) stop: CancellationToken,
    /// Ends the grace period at once.
    pub(super) stop_now: CancellationToken,
    pub(super) _progress_sender: ProgressSender,
    pub(super) _registration: WorkerRegistration,
}

/// Ends the wait of the loop.
pub(super) enum LoopEvent {
    Replied(StoreReply),
    Finished(usize, UnsettledEnd),
    Woken(Wake),
    /// A heartbeat reply; `None` if none arrived in time.
    Heartbeat(Option<HeartbeatReply>),
    Command(NodeCommand),
    DeadlinePassed,
    /// Another worker of the process has reserved it for a crash suspect, or has ended that.
    ProcessChanged,
    StopRequested,
    StopNowRequested,
    Crashed,
}

impl LoopInputs {
    /// Ends the heartbeats and everything else that the loop listens to.
    pub(super) async fn shut_down(self) {
        self.heartbeats.shut_down().await;
    }

    /// Waits for the next event.
    pub(super) async fn next_event(
        &mut self,
        queues: &mut WorkerQueues,
        attempts: &mut Attempts,
        phase: Phase,
    ) -> LoopEvent {
        tokio::select! {
            reply = queues.next_reply() => LoopEvent::Replied(reply),
            (queue_index, finished) = attempts.next_finished() => LoopEvent::Finished(queue_index, finished),
            Some(wake) = self.wakes.recv() => LoopEvent::Woken(wake),
            Some(reply) = self.heartbeats.replies.recv() => LoopEvent::Heartbeat(reply),
            Some(command) = self.commands.recv() => LoopEvent::Command(command),
            () = self.timer.expired() => LoopEvent::DeadlinePassed,
            () = self.process_changes.notified() => LoopEvent::ProcessChanged,
            () = self.crashed.cancelled() => LoopEvent::Crashed,
            () = self.stop.cancelled(), if !phase.is_stopping() => LoopEvent::StopRequested,
            () = self.stop_now.cancelled(), if !phase.is_leaving() => LoopEvent::StopNowRequested,
        }
    }
}
