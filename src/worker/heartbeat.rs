//! The node's sign of life, on a thread of its own: no handler, however rude, can hold it up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, Micros, micros};
use crate::error::{Error, Result};
use crate::node::Node;
use crate::store::{HeartbeatReply, Store};

/// A worker whose loop has not turned for so long is stuck: it stops beating, so that others take its jobs.
const LOOP_STUCK_TIMEOUT: Duration = Duration::from_secs(30);

/// The beating of one node; ends when dropped.
pub(super) struct HeartbeatThread {
    /// What the store answered; `None` if it did not in time.
    pub(super) replies: mpsc::Receiver<Option<HeartbeatReply>>,
    loop_status: Arc<LoopStatus>,
    send_now: Arc<Notify>,
    stop: CancellationToken,
}

/// What the worker's loop tells of itself.
struct LoopStatus {
    /// When it last came round.
    last_turn: AtomicI64,
    /// Whether it claims nothing.
    quiet: AtomicBool,
}

impl HeartbeatThread {
    /// Starts to beat for a node that has joined.
    pub(super) fn start(store: Arc<dyn Store>, node: Node) -> Result<Self> {
        let (sender, answers) = mpsc::channel(1);
        let beating = HeartbeatThread {
            replies: answers,
            loop_status: Arc::new(LoopStatus {
                last_turn: AtomicI64::new(micros_since_boot()),
                quiet: AtomicBool::new(node.profile.quiet),
            }),
            send_now: Arc::new(Notify::new()),
            stop: CancellationToken::new(),
        };
        let failed = |e: std::io::Error| Error::store("beat", format!("cannot start a thread: {e}"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (turns, soon, stop) = (beating.loop_status.clone(), beating.send_now.clone(), beating.stop.clone());
        std::thread::Builder::new()
            .name("duly-beat".into())
            .spawn(move || runtime.block_on(run_heartbeats(store, node, sender, turns, soon, stop)))
            .map_err(failed)?;
        Ok(beating)
    }

    /// The worker's loop has turned; whether it claims nothing for now is told with the next beat.
    pub(super) fn record_loop_turn(&self, quiet: bool) {
        self.loop_status.last_turn.store(micros_since_boot(), Ordering::Relaxed);
        self.loop_status.quiet.store(quiet, Ordering::Relaxed);
    }

    /// Beats without waiting for the next time: somebody may have died.
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
    answers: mpsc::Sender<Option<HeartbeatReply>>,
    turns: Arc<LoopStatus>,
    soon: Arc<Notify>,
    stop: CancellationToken,
) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(node.heartbeat_interval()) => {}
            () = soon.notified() => {}
            () = stop.cancelled() => return,
        }
        if micros_since_boot() - turns.last_turn.load(Ordering::Relaxed) > micros(LOOP_STUCK_TIMEOUT) {
            tracing::error!(node = %node.id, "the worker's loop is stuck: no more beats");
            // It may only have slept, as the whole process has: then this turns it, and the next beat goes out.
            let _ = answers.try_send(None);
            continue;
        }
        node.profile.quiet = turns.quiet.load(Ordering::Relaxed);
        // The sign itself is given at once; only the answer may be slow, and must not hold up the next sign.
        let beaten = match tokio::time::timeout(node.heartbeat_interval(), store.heartbeat(&node)).await {
            Ok(Ok(beaten)) => Some(beaten),
            Ok(Err(error)) => {
                tracing::warn!(node = %node.id, %error, "beat failed");
                None
            }
            Err(_) => None,
        };
        // A worker that has not read the last answer does not need this one.
        let _ = answers.try_send(beaten);
    }
}

fn micros_since_boot() -> Micros {
    Clock::system().since_boot()
}
