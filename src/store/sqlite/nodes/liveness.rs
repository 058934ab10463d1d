//! Liveness of nodes during one operation: the registry is read once, for any number of nodes.

use std::cell::RefCell;
use std::collections::HashMap;

use crate::clock::Micros;
use crate::node::NodeId;
use crate::store::sqlite::nodes::registry::{Board, Life};
use crate::store::sqlite::nodes::slots::Slot;

/// The nodes in the registry at the time of an operation.
pub(crate) struct Lives<'b> {
    board: &'b Board,
    /// The time at which liveness is judged.
    pub(crate) now: Micros,
    /// Read on first use; `None` if the read failed.
    slots: RefCell<Option<Option<HashMap<NodeId, Slot>>>>,
    /// Slots whose lock was checked.
    unlocked: RefCell<HashMap<usize, bool>>,
}

impl<'b> Lives<'b> {
    pub(crate) fn on(board: &'b Board) -> Self {
        Lives { board, now: board.moment(), slots: RefCell::default(), unlocked: RefCell::default() }
    }

    /// Returns whether the process of a node exists. If the registry cannot be read, returns true, so that no node
    /// loses a lock.
    pub(crate) fn is_there(&self, id: NodeId) -> bool {
        self.slot(id, |slot| slot.is_none_or(|slot| slot.is_some()))
    }

    /// Returns the liveness of a peer.
    pub(crate) fn guest(&self, id: NodeId) -> Life {
        self.slot(id, |slot| match slot {
            None => Life::Beating,
            Some(None) => Life::Dead,
            Some(Some(slot)) => self.board.life_by(slot.guest),
        })
    }

    /// Returns whether a peer exists and has a current lease.
    pub(crate) fn attends(&self, id: NodeId) -> bool {
        self.guest(id) == Life::Beating
    }

    /// Calls `judge` with the slot of a node if its process exists; with `None` if the registry cannot be read.
    fn slot<T>(&self, id: NodeId, judge: impl FnOnce(Option<Option<&Slot>>) -> T) -> T {
        let mut slots = self.slots.borrow_mut();
        let slots = slots.get_or_insert_with(|| {
            let read = self.board.slots().read().ok()?;
            Some(read.into_iter().map(|slot| (slot.id, slot)).collect())
        });
        let Some(slots) = slots else {
            return judge(None);
        };
        let there = slots.get(&id).filter(|slot| {
            let mut unlocked = self.unlocked.borrow_mut();
            !*unlocked.entry(slot.no).or_insert_with(|| self.board.slots().is_unlocked(slot.no))
        });
        judge(Some(there))
    }
}
