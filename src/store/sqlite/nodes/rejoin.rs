//! A process whose directory `FILE-nodes` or lock files were deleted joins again, with the same nodes.
//!
//! That is safe because no other process takes the jobs or locks of such a node in the meantime:
//! - A missing lock file does not mean that its node is dead: the lease decides. Its slot is not free while the lease
//!   is current.
//! - In a new directory, unknown nodes count as alive for a lease. Each living node has sent a heartbeat by then, and
//!   every heartbeat begins with this check.
//! - A new lock file appears at its path already locked.

use std::io;
use std::sync::atomic::Ordering;

use crate::clock::{Micros, micros};
use crate::store::sqlite::nodes::registry::{LocalNode, NodeRegistry};
use crate::store::sqlite::nodes::slots::{NodeSlot, SLOT_BYTES, SharedSlots};

/// How often the files of a process get a new time, so that programs that delete old files keep them.
const TOUCH_INTERVAL: Micros = 600_000_000;

impl NodeRegistry {
    /// If the directory, the registry or a lock file of this process was deleted or replaced, restores them with the
    /// nodes of this process.
    pub(crate) fn rejoin_if_deleted(&self) -> io::Result<()> {
        let Some(mut shared) = self.slots.shared() else {
            return Ok(());
        };
        let mut locals = self.local_nodes();
        let mut old = shared.clone();
        if !shared.is_current() {
            // The old registry still has the leases of its nodes.
            let leases = old.read_occupied().unwrap_or_default().into_iter();
            let longest = leases.map(|slot| slot.worker_heartbeat.lease.max(slot.peer_heartbeat.lease)).max();
            let grace = longest.unwrap_or(0).max(micros(self.lease_max));
            if let Some((before, after)) = self.slots.reopen(self.uptime(), grace)? {
                (old, shared) = (before, after);
            }
            tracing::error!(
                dir = %shared.dir().path().display(),
                "the directory or its registry was deleted while nodes use it; this process joined again; \
                 exclude it from programs that delete old files"
            );
        }
        for local in locals.iter_mut() {
            self.restore_slot(&old, &shared, local)?;
        }
        if self.uptime() - self.touched_at.load(Ordering::Relaxed) >= TOUCH_INTERVAL {
            self.touched_at.store(self.uptime(), Ordering::Relaxed);
            self.slots.touch(&locals.iter().map(|local| local.slot).collect::<Vec<_>>());
        }
        Ok(())
    }

    /// Clears the slots of nodes whose lock file is missing and whose leases have ended. The end of their process is not
    /// visible without the file, so they would keep their slot, their row and their locks.
    pub(super) fn clear_slots_without_lock(&self) {
        let is_dead = |slot: &NodeSlot| !slot.has_lease(self.uptime()) && self.was_awake_for(slot.longest_lease());
        self.slots.clear_without_lock(is_dead);
    }

    /// Takes the slot of a node again if its lock file or its contents are gone. If another node has the slot, takes a
    /// free one.
    fn restore_slot(&self, old: &SharedSlots, new: &SharedSlots, local: &mut LocalNode) -> io::Result<()> {
        let is_owner = |bytes: &[u8; SLOT_BYTES]| bytes[..16] == *local.id.as_bytes();
        let is_locked = local.lock.as_ref().is_some_and(|lock| new.is_lock_current(local.slot, lock));
        if is_locked && is_owner(&new.read_slot(local.slot)?) {
            return Ok(());
        }
        // Read before the lock file exists: from then on, a slot with other contents would make the node look dead.
        let mut contents = old.read_slot(local.slot)?;
        if !is_owner(&contents) {
            contents = local.slot_contents(self.uptime(), self.lease_max);
        }
        if !is_locked {
            let (slot, lock) = match new.create_locked(local.slot, local.id) {
                Ok(lock) => (local.slot, lock),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => new.lock_free_slot(self.uptime())?,
                Err(e) => return Err(e),
            };
            tracing::warn!(node = %local.id, slot, "the lock file of this node was deleted; created it again");
            (local.slot, local.lock) = (slot, Some(lock));
        }
        new.write(local.slot, 0, &contents)
    }
}
