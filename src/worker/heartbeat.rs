//! Heartbeats of a node, sent from a separate thread so that no handler can block them. The thread also drives the run
//! loop while a handler blocks it; see [`LoopHost`].

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::clock::{self, Clock, Micros, micros};
use crate::error::Result;
use crate::node::Node;
use crate::store::{HeartbeatReply, JobStore, Store};
use crate::sync::{build_thread_runtime, start_thread};
use crate::worker::loop_host::LoopHost;

/// A loop that has not turned for this long is stuck. Its heartbeats stop, so that other nodes take the jobs back.
const LOOP_STUCK_TIMEOUT: Duration = Duration::from_secs(30);

/// Sends the heartbeats of one node until it is dropped.
pub(super) struct HeartbeatThread {
    /// Heartbeat replies; `None` if no reply arrived in time.
    pub(super) replies: mpsc::Receiver<Option<HeartbeatReply>>,
    loop_status: Arc<LoopStatus>,
    send_now: Arc<Notify>,
    stop: CancellationToken,
}

/// The state of the run loop, as seen by the heartbeat thread.
struct LoopStatus {
    /// When the loop last turned.
    last_turn: AtomicI64,
    /// Whether the node claims no jobs.
    quiet: AtomicBool,
}

impl HeartbeatThread {
    /// Starts the heartbeats of a node that has joined.
    pub(super) fn start(store: Arc<dyn Store>, node: Node, host: Weak<LoopHost>) -> Result<Self> {
        let (sender, replies) = mpsc::channel(1);
        let heartbeats = HeartbeatThread {
            replies,
            loop_status: Arc::new(LoopStatus {
                last_turn: AtomicI64::new(micros_since_boot()),
                quiet: AtomicBool::new(node.profile.quiet),
            }),
            send_now: Arc::new(Notify::new()),
            stop: CancellationToken::new(),
        };
        let runtime = build_thread_runtime("heartbeat")?;
        let run = Heartbeats {
            store,
            node,
            replies: sender,
            status: heartbeats.loop_status.clone(),
            send_now: heartbeats.send_now.clone(),
            stop: heartbeats.stop.clone(),
            host,
        };
        start_thread("heartbeat", "duly-heartbeat", move || runtime.block_on(run.run()))?;
        Ok(heartbeats)
    }

    /// Records that the loop has turned, and whether it claims jobs; the next heartbeat publishes the latter.
    pub(super) fn record_loop_turn(&self, quiet: bool) {
        self.loop_status.last_turn.store(micros_since_boot(), Ordering::Relaxed);
        self.loop_status.quiet.store(quiet, Ordering::Relaxed);
    }

    /// Ends the heartbeats: none is sent after this returns.
    pub(super) async fn shut_down(mut self) {
        self.stop.cancel();
        while self.replies.recv().await.is_some() {}
    }

    /// Sends a heartbeat now, because a node may have died.
    pub(super) fn send_now(&self) {
        self.send_now.notify_one();
    }
}

impl Drop for HeartbeatThread {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// The work of the thread.
struct Heartbeats {
    store: Arc<dyn Store>,
    node: Node,
    replies: mpsc::Sender<Option<HeartbeatReply>>,
    status: Arc<LoopStatus>,
    send_now: Arc<Notify>,
    stop: CancellationToken,
    host: Weak<LoopHost>,
}

impl Heartbeats {
    async fn run(mut self) {
        let mut rescue = None;
        // When the last reply woke the loop, and the last turn of the loop before that.
        let mut last_reply: Option<(Instant, Micros)> = None;
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                () = self.send_now.notified() => {}
                () = tokio::time::sleep(self.node.heartbeat_interval()) => {}
            }
            let last_turn = self.status.last_turn.load(Ordering::Relaxed);
            let has_waited = |at: Instant| clock::monotonic_now() - at >= self.node.heartbeat_interval() / 2;
            if last_reply.is_some_and(|(at, turn)| turn == last_turn && has_waited(at)) {
                self.drive_loop(&mut rescue);
            }
            // The replies wake the loop, so a long lease makes for few turns.
            let stuck_after = LOOP_STUCK_TIMEOUT.max(self.node.heartbeat_interval() * 2);
            if micros_since_boot() - last_turn > micros(stuck_after) {
                tracing::error!(node = %self.node.id, "the worker's loop is stuck: heartbeats are suspended");
                // The whole process may have been suspended: then this wakes the loop, and the next heartbeat is sent.
                let _ = self.replies.try_send(None);
                continue;
            }
            let stop = self.stop.clone();
            let reply = tokio::select! {
                biased;
                // A heartbeat after the node has left would register it again.
                () = stop.cancelled() => return,
                reply = self.send() => reply,
            };
            last_reply = Some((clock::monotonic_now(), self.status.last_turn.load(Ordering::Relaxed)));
            // If the loop has not read the previous reply, this one is dropped.
            let _ = self.replies.try_send(reply);
        }
    }

    async fn send(&mut self) -> Option<HeartbeatReply> {
        self.node.profile.quiet = self.status.quiet.load(Ordering::Relaxed);
        // The store renews the lease on arrival. A slow reply must not delay the next heartbeat.
        match tokio::time::timeout(self.node.heartbeat_interval(), self.store.heartbeat(&self.node)).await {
            Ok(Ok(reply)) => Some(reply),
            Ok(Err(error)) => {
                tracing::warn!(node = %self.node.id, %error, "heartbeat failed");
                None
            }
            Err(_) => None,
        }
    }

    /// Drives the loop from this thread until the runtime does it again.
    fn drive_loop(&self, rescue: &mut Option<JoinHandle<()>>) {
        let is_running = rescue.as_ref().is_some_and(|rescue| !rescue.is_finished());
        if let (false, Some(host)) = (is_running, self.host.upgrade()) {
            tracing::warn!(
                node = %self.node.id,
                "a handler blocks the threads of the runtime; run blocking code with tokio::task::spawn_blocking"
            );
            *rescue = Some(tokio::spawn(async move { host.rescue().await }));
        }
    }
}

fn micros_since_boot() -> Micros {
    Clock::system().since_boot()
}
