//! What reaches a node from elsewhere: wakes of the store, and orders of other nodes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::mpsc;

use super::hand::Hand;
use super::node::Remote;
use crate::clock;
use crate::peers::{Order, Running};
use crate::store::{Claim, Wake};

impl Remote {
    /// Another node wants something of this one.
    fn ordered(&self, order: Order) {
        let mut state = self.state();
        match order {
            // Whoever asked may have gone away.
            Order::Jobs(answer) => drop(answer.send(state.hands.values().map(running).collect())),
            Order::Quiet(quiet, answer) => {
                state.quiet = quiet;
                let _ = answer.send(());
            }
            Order::Stop => (state.quiet, state.stop) = (true, true),
            Order::Cancel(id, answer) => {
                let known = state.hands.get_mut(&id).map(|hand| hand.unwanted = true).is_some();
                let _ = answer.send(known);
            }
        }
        drop(state);
        self.woken.notify_waiters();
    }

    /// Woken for a queue. If nobody asks for a job, the wake is for somebody else.
    async fn woken_for(self: &Arc<Self>, queue: String) {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            return self.look(&queue);
        }
        let _one = self.claiming.lock().await;
        let step_back = Claim { queue, max: 0, redo: false, suspect: None, kinds: None };
        if let Err(error) = self.duly.store.claim(self.node.id, step_back).await {
            tracing::debug!(%error, "a wake could not be passed on");
        }
    }
}

fn running(hand: &Hand) -> Running {
    let held = &hand.held;
    let running_ms = (clock::tick() - hand.since).as_millis();
    Running {
        id: held.job.id,
        queue: held.job.queue.clone(),
        kind: held.job.kind.clone(),
        attempt: held.attempt(),
        fence: held.fence,
        running_ms: u64::try_from(running_ms).unwrap_or(u64::MAX),
        progress: None,
    }
}

/// Passes on what concerns a node, until it is gone.
pub(super) async fn listen(
    remote: std::sync::Weak<Remote>,
    mut wakes: mpsc::Receiver<Wake>,
    mut orders: mpsc::Receiver<Order>,
) {
    loop {
        tokio::select! {
            wake = wakes.recv() => match (wake, remote.upgrade()) {
                (Some(Wake::Queue(queue)), Some(remote)) => remote.woken_for(queue).await,
                (Some(Wake::Beat), Some(remote)) => remote.woken.notify_one(),
                // Nothing is put into the hands of a node that has not said that it accepts jobs so.
                (Some(Wake::Job(_) | Wake::Missed(_)), Some(_)) => {}
                _ => return,
            },
            order = orders.recv() => match (order, remote.upgrade()) {
                (Some(order), Some(remote)) => remote.ordered(order),
                _ => return,
            },
        }
    }
}
