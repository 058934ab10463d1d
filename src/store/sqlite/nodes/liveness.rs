//! Who lives, as one step sees it: the board is read once, however many are asked after.

use std::cell::RefCell;
use std::collections::HashMap;

use crate::clock::Micros;
use crate::node::NodeId;
use crate::store::sqlite::nodes::registry::{Board, Life};
use crate::store::sqlite::nodes::slots::Slot;

/// The nodes on the board at the moment of a step.
pub(crate) struct Lives<'b> {
    board: &'b Board,
    /// The moment at which everybody is judged.
    pub(crate) now: Micros,
    /// Read when the first is asked after; `None` if it could not be.
    slots: RefCell<Option<Option<HashMap<NodeId, Slot>>>>,
    /// Whose locks have been looked at.
    unlocked: RefCell<HashMap<usize, bool>>,
}

impl<'b> Lives<'b> {
    pub(crate) fn on(board: &'b Board) -> Self {
        Lives { board, now: board.moment(), slots: RefCell::default(), unlocked: RefCell::default() }
    }

    /// Whether a node's process is there. In doubt it is: nobody loses a lock because a look has failed.
    pub(crate) fn is_there(&self, id: NodeId) -> bool {
        self.slot(id, |slot| slot.is_none_or(|slot| slot.is_some()))
    }

    /// How a guest lives.
    pub(crate) fn guest(&self, id: NodeId) -> Life {
        self.slot(id, |slot| match slot {
            None => Life::Beating,
            Some(None) => Life::Dead,
            Some(Some(slot)) => self.board.life_by(slot.guest),
        })
    }

    /// Whether a guest is there, and has attended within its lease.
    pub(crate) fn attends(&self, id: NodeId) -> bool {
        self.guest(id) == Life::Beating
    }

    /// Calls `judge` with the slot of a node whose process is there; with `None` if nobody knows.
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
