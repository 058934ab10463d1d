//! Whom a transaction concerns, and how they are told after its commit:
//! through a channel within the process, by letter in another.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::job::JobId;
use crate::node::NodeId;
use crate::store::sqlite::nodes::datagram;
use crate::store::sqlite::nodes::datagram::{LETTER_IDS_MAX, Letter};
use crate::store::sqlite::nodes::registry::Board;
use crate::store::{Heard, Owner};

/// What is to be told once a transaction is committed.
#[derive(Debug, Default)]
pub(crate) struct News {
    /// Queues that somebody should look into.
    pub(crate) queues: BTreeSet<String>,
    /// Queues that all idle nodes should look into.
    pub(crate) all: BTreeSet<String>,
    /// Those in line whose turn it is.
    pub(crate) turns: Vec<Called>,
    /// Jobs that have ended, by queue.
    pub(crate) ended: Vec<(String, Vec<JobId>)>,
}

/// Somebody in line whose turn it is.
#[derive(Debug)]
pub(crate) struct Called {
    pub(crate) node: NodeId,
    pub(crate) name: String,
    pub(crate) owner: Owner,
}

/// Tells the news: after a push, after a claim that left ready jobs behind, after a lock has become free.
#[derive(Clone)]
pub(crate) struct Waker {
    board: Arc<Board>,
}

impl Waker {
    pub(crate) fn new(board: Arc<Board>) -> Self {
        Waker { board }
    }

    /// Wakes one idle node for each queue, one of this process before another's, or all; and tells everybody whose turn it is.
    pub(crate) fn tell(&self, news: News) {
        for queue in &news.all {
            self.board.wake_all_local(queue);
            self.idle_elsewhere(queue).into_iter().for_each(|slot| drop(self.write_to(slot, queue)));
        }
        for queue in news.queues {
            if !self.board.wake_local(&queue) {
                // The first that takes it is enough; a dead one's socket refuses.
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

    /// Tells those that wait for jobs of this queue. A letter that is lost is made up for by their next look.
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
            // Lost, it is found by the node's next sign of life.
            let _ = datagram::send(&Letter::Turn { name: name.clone(), owner }, &self.board.socket(slot));
        }
    }
}
