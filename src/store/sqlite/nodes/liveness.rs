//! Liveness of nodes during one operation: the registry is read once, for any number of nodes.

use std::cell::RefCell;
use std::collections::HashMap;

use crate::clock::Micros;
use crate::node::NodeId;
use crate::store::sqlite::nodes::registry::{Liveness, NodeRegistry};
use crate::store::sqlite::nodes::slots::NodeSlot;

/// The nodes in the registry at the time of an operation.
pub(crate) struct LivenessSnapshot<'b> {
    registry: &'b NodeRegistry,
    /// The time at which liveness is judged.
    pub(crate) uptime: Micros,
    /// Read on first use; `None` if the read failed.
    slots: RefCell<Option<Option<HashMap<NodeId, NodeSlot>>>>,
    /// Slots whose lock was checked.
    unlocked_slots: RefCell<HashMap<usize, bool>>,
}

impl<'b> LivenessSnapshot<'b> {
    pub(crate) fn new(registry: &'b NodeRegistry) -> Self {
        LivenessSnapshot {
            registry,
            uptime: registry.uptime(),
            slots: RefCell::default(),
            unlocked_slots: RefCell::default(),
        }
    }

    /// Returns whether the process of a node exists. If the registry cannot be read, returns true, so that no node
    /// loses a lock.
    pub(crate) fn is_process_alive(&self, id: NodeId) -> bool {
        self.with_slot(id, |slot| slot.is_none_or(|slot| slot.is_some()))
    }

    /// Returns the liveness of a peer.
    pub(crate) fn peer_liveness(&self, id: NodeId) -> Liveness {
        self.with_slot(id, |slot| match slot {
            None => Liveness::Alive,
            Some(None) => Liveness::Dead,
            Some(Some(slot)) => self.registry.liveness_from(slot.peer_heartbeat),
        })
    }

    /// Returns whether a peer exists and has a current lease.
    pub(crate) fn is_peer_alive(&self, id: NodeId) -> bool {
        self.peer_liveness(id) == Liveness::Alive
    }

    /// Calls `judge` with the slot of a node if its process exists; with `None` if that cannot be known.
    fn with_slot<T>(&self, id: NodeId, judge: impl FnOnce(Option<Option<&NodeSlot>>) -> T) -> T {
        let mut slots = self.slots.borrow_mut();
        let slots = slots.get_or_insert_with(|| {
            let read = self.registry.slots().read_occupied().ok()?;
            Some(read.into_iter().map(|slot| (slot.id, slot)).collect())
        });
        let Some(slots) = slots else {
            return judge(None);
        };
        if !slots.contains_key(&id) && self.registry.slots().may_be_alive_without_slot(self.uptime) {
            return judge(None);
        }
        let there = slots.get(&id).filter(|slot| {
            let mut unlocked = self.unlocked_slots.borrow_mut();
            !*unlocked.entry(slot.index).or_insert_with(|| self.registry.slots().is_unlocked(slot.index))
        });
        judge(Some(there))
    }
}
