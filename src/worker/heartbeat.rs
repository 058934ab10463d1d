//! Heartbeats of a node, sent from a separate thread so that no handler can block them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, Micros, micros};
use crate::error::{Error, Result};
use crate::node::Node;
use crate::store::{HeartbeatReply, Store};

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
    pub(super) fn start(store: Arc<dyn Store>, node: Node) -> Result<Self> {
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
        let failed = |e: std::io::Error| Error::store("heartbeat", format!("cannot start a thread: {e}"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (status, send_now, stop) =
            (heartbeats.loop_status.clone(), heartbeats.send_now.clone(), heartbeats.stop.clone());
        std::thread::Builder::new()
            .name("duly-heartbeat".into())
            .spawn(move || runtime.block_on(run_heartbeats(store, node, sender, status, send_now, stop)))
            .map_err(failed)?;
        Ok(heartbeats)
    }

    /// Records that the loop has turned, and whether it claims jobs; the next heartbeat publishes the latter.
    pub(super) fn record_loop_turn(&self, quiet: bool) {
        self.loop_status.last_turn.store(micros_since_boot(), Ordering::Relaxed);
        self.loop_status.quiet.store(quiet, Ordering::Relaxed);
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

async fn run_heartbeats(
    store: Arc<dyn Store>,
    mut node: Node,
    replies: mpsc::Sender<Option<HeartbeatReply>>,
    status: Arc<LoopStatus>,
    send_now: Arc<Notify>,
    stop: CancellationToken,
) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(node.heartbeat_interval()) => {}
            () = send_now.notified() => {}
            () = stop.cancelled() => return,
        }
        if micros_since_boot() - status.last_turn.load(Ordering::Relaxed) > micros(LOOP_STUCK_TIMEOUT) {
            tracing::error!(node = %node.id, "the worker's loop is stuck: heartbeats are suspended");
            // The whole process may have been suspended: then this wakes the loop, and the next heartbeat is sent.
            let _ = replies.try_send(None);
            continue;
        }
        node.profile.quiet = status.quiet.load(Ordering::Relaxed);
        // The store renews the lease on arrival. A slow reply must not delay the next heartbeat.
        let reply = match tokio::time::timeout(node.heartbeat_interval(), store.heartbeat(&node)).await {
            Ok(Ok(reply)) => Some(reply),
            Ok(Err(error)) => {
                tracing::warn!(node = %node.id, %error, "heartbeat failed");
                None
            }
            Err(_) => None,
        };
        // If the loop has not read the previous reply, this one is dropped.
        let _ = replies.try_send(reply);
    }
}

fn micros_since_boot() -> Micros {
    Clock::system().since_boot()
}
