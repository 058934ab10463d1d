//! The node's sign of life, on a thread of its own: no handler, however rude, can hold it up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, Micros, micros};
use crate::error::{Error, Result};
use crate::node::Node;
use crate::store::{Beaten, Store};

/// A worker whose loop has not turned for so long is stuck: it stops beating, so that others take its jobs.
const STUCK: Duration = Duration::from_secs(30);

/// The beating of one node; ends when dropped.
pub(super) struct Beating {
    /// What the store answered; `None` if it did not in time.
    pub(super) answers: mpsc::Receiver<Option<Beaten>>,
    turns: Arc<Turns>,
    soon: Arc<Notify>,
    stop: CancellationToken,
}

/// What the worker's loop tells of itself.
struct Turns {
    /// When it last came round.
    ticked: AtomicI64,
    /// Whether it claims nothing.
    quiet: AtomicBool,
}

impl Beating {
    /// Starts to beat for a node that has joined.
    pub(super) fn start(store: Arc<dyn Store>, node: Node) -> Result<Self> {
        let (sender, answers) = mpsc::channel(1);
        let beating = Beating {
            answers,
            turns: Arc::new(Turns { ticked: AtomicI64::new(now()), quiet: AtomicBool::new(node.takes.quiet) }),
            soon: Arc::new(Notify::new()),
            stop: CancellationToken::new(),
        };
        let failed = |e: std::io::Error| Error::store("beat", format!("cannot start a thread: {e}"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (turns, soon, stop) = (beating.turns.clone(), beating.soon.clone(), beating.stop.clone());
        std::thread::Builder::new()
            .name("duly-beat".into())
            .spawn(move || runtime.block_on(beat(store, node, sender, turns, soon, stop)))
            .map_err(failed)?;
        Ok(beating)
    }

    /// The worker's loop has turned; whether it claims nothing for now is told with the next beat.
    pub(super) fn tick(&self, quiet: bool) {
        self.turns.ticked.store(now(), Ordering::Relaxed);
        self.turns.quiet.store(quiet, Ordering::Relaxed);
    }

    /// Beats without waiting for the next time: somebody may have died.
    pub(super) fn soon(&self) {
        self.soon.notify_one();
    }
}

impl Drop for Beating {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn beat(
    store: Arc<dyn Store>,
    mut node: Node,
    answers: mpsc::Sender<Option<Beaten>>,
    turns: Arc<Turns>,
    soon: Arc<Notify>,
    stop: CancellationToken,
) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(node.beat()) => {}
            () = soon.notified() => {}
            () = stop.cancelled() => return,
        }
        if now() - turns.ticked.load(Ordering::Relaxed) > micros(STUCK) {
            tracing::error!(node = %node.id, "the worker's loop is stuck: no more beats");
            // It may only have slept, as the whole process has: then this turns it, and the next beat goes out.
            let _ = answers.try_send(None);
            continue;
        }
        node.takes.quiet = turns.quiet.load(Ordering::Relaxed);
        // The sign itself is given at once; only the answer may be slow, and must not hold up the next sign.
        let beaten = match tokio::time::timeout(node.beat(), store.beat(&node)).await {
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

fn now() -> Micros {
    Clock::system().since_boot()
}
