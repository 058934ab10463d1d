//! Notifications that a transaction causes, delivered after its commit: by channel within the process, by datagram to
//! others.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::job::JobId;
use crate::node::NodeId;
use crate::store::sqlite::nodes::datagram;
use crate::store::sqlite::nodes::datagram::{LETTER_IDS_MAX, Letter};
use crate::store::sqlite::nodes::registry::Board;
use crate::store::{Heard, Owner};

/// The notifications to deliver after a commit.
#[derive(Debug, Default)]
pub(crate) struct News {
    /// Queues to wake one idle node for.
    pub(crate) queues: BTreeSet<String>,
    /// Queues to wake all idle nodes for.
    pub(crate) all: BTreeSet<String>,
    /// Lock waiters that have their turn.
    pub(crate) turns: Vec<Called>,
    /// Jobs that have ended, by queue.
    pub(crate) ended: Vec<(String, Vec<JobId>)>,
}

/// A lock waiter that has its turn.
#[derive(Debug)]
pub(crate) struct Called {
    pub(crate) node: NodeId,
    pub(crate) name: String,
    pub(crate) owner: Owner,
}

/// Delivers notifications: after a push, after a claim that left ready jobs, after a lock became free.
#[derive(Clone)]
pub(crate) struct Waker {
    board: Arc<Board>,
}

impl Waker {
    pub(crate) fn new(board: Arc<Board>) -> Self {
        Waker { board }
    }

    /// Wakes an idle node for each queue, preferably a local one, or all idle nodes. Also notifies lock waiters and
    /// completions.
    pub(crate) fn tell(&self, news: News) {
        for queue in &news.all {
            self.board.wake_all_local(queue);
            self.idle_elsewhere(queue).into_iter().for_each(|slot| drop(self.write_to(slot, queue)));
        }
        for queue in news.queues {
            if !self.board.wake_local(&queue) {
                // The first node that receives it is enough. The socket of a dead node refuses.
                let _ = self.idle_elsewhere(&queue).into_iter().any(|slot| self.write_to(slot, &queue).is_ok());
            }
        }
        for called in news.turns {
            self.call(called);
        }
        for (queue, ids) in news.ended {
            self.tell_ended(&queue, &ids);
        }
    }

    /// Notifies the nodes that wait for jobs of this queue. If a datagram is lost, their next check finds the
    /// completion.
    fn tell_ended(&self, queue: &str, ids: &[JobId]) {
        self.board.tell_ended(queue, ids);
        for slot in self.board.watching_elsewhere(queue) {
            for some in ids.chunks(LETTER_IDS_MAX) {
                let _ = datagram::send(&Letter::Ended(some.to_vec()), &self.board.socket(slot));
            }
        }
    }

    fn idle_elsewhere(&self, queue: &str) -> Vec<usize> {
        if self.board.is_shared() { self.board.idle_elsewhere(queue) } else { Vec::new() }
    }

    fn write_to(&self, slot: usize, queue: &str) -> std::io::Result<()> {
        datagram::send(&Letter::Queue(queue.to_owned()), &self.board.socket(slot))
    }

    fn call(&self, Called { node, name, owner }: Called) {
        let turn = Heard::Turn { name: name.clone(), owner };
        if self.board.tell(node, turn).is_some() || !self.board.is_shared() {
            return;
        }
        for slot in self.board.hearing_elsewhere(Some(node)) {
            // If the datagram is lost, the next heartbeat of the node finds its turn.
            let _ = datagram::send(&Letter::Turn { name: name.clone(), owner }, &self.board.socket(slot));
        }
    }
}
