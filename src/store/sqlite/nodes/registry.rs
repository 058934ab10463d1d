//! The node registry: the nodes that use the file, as workers, as peers, or as both.
//!
//! Heartbeats do not go through the database: each would cost a sync, and would wait for long transactions.
//! A node takes a slot by locking the slot's file. Then it writes its id into the slot and registers in the database.
//! If the lock is free, the node is dead. If the lock is held but the heartbeat is old, the process is paused and the
//! lease decides.
//!
//! A node that is worker and peer has one slot with two heartbeats, so that neither role keeps the holds of the other
//! alive.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::{Clock, Micros, micros};
use crate::job::JobId;
use crate::node::NodeId;
use crate::store::sqlite::nodes::slots::{
    BEAT_AT, Beat, GUEST_BEAT_AT, HEARS, HEARS_ALL, HEARS_AT, IDLE_AT, PID_AT, QUIET, SLOT_BYTES, Slot, Slots,
    WATCHES_SHIFT,
};
use crate::store::sqlite::nodes::subscriptions::Ears;
use crate::store::{Heard, Wake};

pub(crate) use crate::store::sqlite::nodes::slots::NODES_MAX;

/// The liveness of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    Beating,
    /// Its process exists, but its last heartbeat is older than its lease.
    Silent,
    /// Its process has ended.
    Dead,
}

/// A node of this process.
struct Local {
    id: NodeId,
    slot: usize,
    /// Its lease as a worker, if it is one.
    worker: Option<Duration>,
    /// The worker claims nothing for now. The slot has the same flag.
    quiet: bool,
    /// The node is a peer.
    guest: bool,
    /// Kept open for its lock.
    _lock: Option<File>,
    idle: HashSet<String>,
    /// Its subscriptions, as bits of the slot.
    hears: u32,
    /// Queues whose completions the node subscribes to.
    watches: HashSet<String>,
    ears: Arc<Ears>,
}

/// The node registry, and the nodes of this process in it.
pub(crate) struct Board {
    slots: Slots,
    clock: Clock,
    locals: Mutex<Vec<Local>>,
    /// The last heartbeat of this process, and the start of its heartbeats without a gap.
    contact: Mutex<Contact>,
}

#[derive(Clone, Copy)]
struct Contact {
    last: Micros,
    since: Micros,
}

impl Board {
    /// Opens the registry of a file in `FILE-nodes/`.
    pub(crate) fn beside(file: &Path, clock: Clock) -> io::Result<Self> {
        Ok(Board::new(Slots::beside(file)?, clock))
    }

    /// Creates a registry for this process only.
    pub(crate) fn in_memory(clock: Clock) -> Self {
        Board::new(Slots::in_memory(), clock)
    }

    fn new(slots: Slots, clock: Clock) -> Self {
        Board {
            slots,
            clock,
            locals: Mutex::default(),
            contact: Mutex::new(Contact { last: Micros::MIN / 2, since: Micros::MAX / 2 }),
        }
    }

    /// Returns the time for heartbeats and lock expiry. The clock never steps, and continues while the machine sleeps.
    pub(crate) fn moment(&self) -> Micros {
        self.clock.since_boot()
    }

    /// Takes a slot for a worker of this process, unless it has one. Returns the slot.
    pub(crate) fn join(&self, id: NodeId, lease: Duration) -> io::Result<usize> {
        let mut locals = self.locals();
        let local = self.take_slot(&mut locals, id)?;
        if local.worker.is_none() {
            self.write_beat(local.slot, BEAT_AT, lease)?;
            local.worker = Some(lease);
        }
        Ok(local.slot)
    }

    /// Removes a worker. Its slot is released, unless it is also a peer.
    pub(crate) fn leave(&self, id: NodeId) -> io::Result<()> {
        self.end_part(id, |local| {
            local.worker = None;
            local.idle.clear();
            local.ears.stop_waking();
            (BEAT_AT, PID_AT)
        })
    }

    /// Records a worker's heartbeat, and whether it claims nothing for now. Returns false if it has not joined here.
    pub(crate) fn beat(&self, id: NodeId, quiet: bool) -> io::Result<bool> {
        let mut locals = self.locals();
        let Some(local) = locals.iter_mut().find(|l| l.id == id) else {
            return Ok(false);
        };
        let Some(lease) = local.worker else {
            return Ok(false);
        };
        self.slots.write(local.slot, BEAT_AT, &self.moment().to_le_bytes())?;
        if local.quiet != quiet {
            local.quiet = quiet;
            self.write_hears(local)?;
        }
        drop(locals);
        self.note_contact(lease);
        Ok(true)
    }

    /// Records a peer's heartbeat. The first one takes a slot, unless the node has one. Returns whether it was the
    /// first.
    pub(crate) fn attend(&self, id: NodeId, lease: Duration) -> io::Result<bool> {
        let mut locals = self.locals();
        let local = self.take_slot(&mut locals, id)?;
        self.write_beat(local.slot, GUEST_BEAT_AT, lease)?;
        let first = !std::mem::replace(&mut local.guest, true);
        drop(locals);
        self.note_contact(lease);
        Ok(first)
    }

    /// Makes a node a peer if it is none: a lock holder must be in the registry.
    pub(crate) fn admit(&self, id: NodeId, lease: Duration) -> io::Result<()> {
        let known = self.locals().iter().any(|l| l.id == id && l.guest);
        if known { Ok(()) } else { self.attend(id, lease).map(drop) }
    }

    /// Removes a peer. Its slot is released, unless it is also a worker.
    pub(crate) fn depart(&self, id: NodeId) -> io::Result<()> {
        self.end_part(id, |local| {
            local.guest = false;
            local.hears = 0;
            // The next heartbeat of the worker sets it again.
            local.quiet = false;
            local.watches.clear();
            local.ears.stop_hearing();
            (HEARS_AT, SLOT_BYTES)
        })
    }

    /// Ends one role of a node and clears its bytes in the slot. Releases the slot once no role is left.
    fn end_part(&self, id: NodeId, end: impl FnOnce(&mut Local) -> (usize, usize)) -> io::Result<()> {
        let mut locals = self.locals();
        let Some(at) = locals.iter().position(|l| l.id == id) else {
            return Ok(());
        };
        let (from, to) = end(&mut locals[at]);
        if locals[at].worker.is_some() || locals[at].guest {
            return self.slots.write(locals[at].slot, from, &[0; SLOT_BYTES][from..to]);
        }
        let local = locals.swap_remove(at);
        if self.is_shared() {
            let _ = std::fs::remove_file(self.socket(local.slot));
        }
        // Cleared while the lock is held: the next owner starts with an empty slot.
        self.slots.write(local.slot, 0, &[0; SLOT_BYTES])
    }

    fn take_slot<'l>(&self, locals: &'l mut Vec<Local>, id: NodeId) -> io::Result<&'l mut Local> {
        let at = match locals.iter().position(|l| l.id == id) {
            Some(at) => at,
            None => {
                let (slot, lock) = self.slots.free()?;
                let mut bytes = [0; SLOT_BYTES];
                bytes[..16].copy_from_slice(id.as_bytes());
                bytes[PID_AT..PID_AT + 4].copy_from_slice(&std::process::id().to_le_bytes());
                self.slots.write(slot, 0, &bytes)?;
                let (idle, watches, ears) = (HashSet::new(), HashSet::new(), Arc::default());
                locals.push(Local {
                    id,
                    slot,
                    worker: None,
                    quiet: false,
                    guest: false,
                    _lock: lock,
                    idle,
                    hears: 0,
                    watches,
                    ears,
                });
                locals.len() - 1
            }
        };
        Ok(&mut locals[at])
    }

    fn write_beat(&self, slot: usize, at: usize, lease: Duration) -> io::Result<()> {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.moment().to_le_bytes());
        bytes[8..].copy_from_slice(&micros(lease).to_le_bytes());
        self.slots.write(slot, at, &bytes)
    }

    fn note_contact(&self, lease: Duration) {
        let now = self.moment();
        let mut contact = self.contact.lock().unwrap_or_else(PoisonError::into_inner);
        if now - contact.last > micros(lease) {
            contact.since = now;
        }
        contact.last = now;
    }

    /// Returns the slot of a local node.
    pub(crate) fn slot_of(&self, id: NodeId) -> Option<usize> {
        self.locals().iter().find(|l| l.id == id).map(|l| l.slot)
    }

    /// Returns the subscriptions of a local node.
    pub(crate) fn ears(&self, id: NodeId) -> Option<Arc<Ears>> {
        self.locals().iter().find(|l| l.id == id).map(|l| l.ears.clone())
    }

    /// Returns the liveness of a worker by its slot. If the registry cannot be read, the worker counts as alive, so
    /// that it loses no jobs.
    pub(crate) fn life(&self, id: NodeId, slot: usize) -> Life {
        let Ok(slots) = self.slots.read() else {
            return Life::Beating;
        };
        match slots.into_iter().find(|s| s.no == slot && s.id == id) {
            Some(read) if !self.slots.is_unlocked(slot) => self.life_by(read.worker),
            _ => Life::Dead,
        }
    }

    /// Returns whether a worker claims nothing for now.
    pub(crate) fn is_quiet(&self, id: NodeId, slot: usize) -> bool {
        self.all().into_iter().any(|s| s.no == slot && s.id == id && s.quiet)
    }

    /// Returns the liveness of a node that holds its lock, by one of its heartbeats.
    pub(crate) fn life_by(&self, beat: Beat) -> Life {
        match self.moment() - beat.last > beat.lease {
            // The node has left this role, or never had it.
            _ if beat.lease == 0 => Life::Dead,
            true => Life::Silent,
            false => Life::Beating,
        }
    }

    /// Returns whether the jobs of a worker may be taken back now.
    ///
    /// A silent worker loses its jobs only to a process that was itself awake for a whole lease. After a sleep of the
    /// machine all heartbeats are old, and the first process to wake up must not take the jobs of the others.
    pub(crate) fn may_take_back(&self, id: NodeId, slot: usize) -> bool {
        match self.life(id, slot) {
            Life::Beating => false,
            Life::Dead => true,
            Life::Silent => {
                let Some(silent) = self.all().into_iter().find(|s| s.no == slot) else {
                    return true;
                };
                let contact = *self.contact.lock().unwrap_or_else(PoisonError::into_inner);
                let (now, lease) = (self.moment(), silent.worker.lease);
                now - contact.last <= lease && now - contact.since >= lease
            }
        }
    }

    /// Records whether a local node is idle on a queue. Returns how many idle nodes come before it.
    pub(crate) fn set_idle(&self, id: NodeId, queue: &str, idle: bool) -> u32 {
        let mut locals = self.locals();
        let Some(local) = locals.iter_mut().find(|l| l.id == id) else {
            return 0;
        };
        let changed = match idle {
            true => local.idle.insert(queue.to_owned()),
            false => local.idle.remove(queue),
        };
        let slot = local.slot;
        if changed {
            let bits = local.idle.iter().fold(0, |bits, queue| bits | bit(queue));
            // If the slot cannot be written, a wake is lost; the check once a second finds the job.
            let _ = self.slots.write(slot, IDLE_AT, &bits.to_le_bytes());
        }
        drop(locals);
        if !idle {
            return 0;
        }
        let before = self.all().into_iter().filter(|s| s.no < slot && s.idle & bit(queue) != 0);
        u32::try_from(before.count()).unwrap_or(u32::MAX)
    }

    /// Wakes one local node that is idle on this queue. Returns whether there was one.
    pub(crate) fn wake_local(&self, queue: &str) -> bool {
        let locals = self.locals();
        let mut waiting = locals.iter().filter(|l| l.idle.contains(queue));
        waiting.any(|local| local.ears.wake(Wake::Queue(queue.to_owned())))
    }

    /// Wakes all local nodes that are idle on this queue.
    pub(crate) fn wake_all_local(&self, queue: &str) {
        let locals = self.locals();
        let waiting = locals.iter().filter(|l| l.idle.contains(queue));
        waiting.for_each(|local| _ = local.ears.wake(Wake::Queue(queue.to_owned())));
    }

    /// Returns slots of other processes' nodes that are probably idle on this queue.
    pub(crate) fn idle_elsewhere(&self, queue: &str) -> Vec<usize> {
        let own: Vec<usize> = self.locals().iter().map(|l| l.slot).collect();
        let slots = self.all().into_iter();
        slots.filter(|s| s.idle & bit(queue) != 0 && !own.contains(&s.no)).map(|s| s.no).collect()
    }

    /// Subscribes a local node to messages and, if `all`, to broadcasts.
    pub(crate) fn set_hears(&self, slot: usize, all: bool) -> io::Result<()> {
        let mut locals = self.locals();
        let Some(local) = locals.iter_mut().find(|l| l.slot == slot) else {
            return Ok(());
        };
        local.hears = if all { HEARS | HEARS_ALL } else { HEARS };
        self.write_hears(local)
    }

    /// Subscribes a local node to completions in these queues, and in no others.
    pub(crate) fn watch_ends(&self, id: NodeId, queues: &[String]) -> io::Result<()> {
        let mut locals = self.locals();
        let Some(local) = locals.iter_mut().find(|l| l.id == id) else {
            return Err(io::Error::other("the node has not announced itself"));
        };
        local.watches = queues.iter().cloned().collect();
        self.write_hears(local)
    }

    fn write_hears(&self, local: &Local) -> io::Result<()> {
        let watches = local.watches.iter().fold(0, |bits, queue| bits | watch_bit(queue));
        let quiet = if local.quiet { QUIET } else { 0 };
        self.slots.write(local.slot, HEARS_AT, &(local.hears | quiet | watches << WATCHES_SHIFT).to_le_bytes())
    }

    /// Notifies the subscribed local nodes of completions in this queue.
    pub(crate) fn tell_ended(&self, queue: &str, ids: &[JobId]) {
        for local in self.locals().iter().filter(|l| l.watches.contains(queue)) {
            local.ears.tell(Heard::Ended(ids.to_vec()));
        }
    }

    /// Returns slots of other processes' nodes that are probably subscribed to completions in this queue.
    pub(crate) fn watching_elsewhere(&self, queue: &str) -> Vec<usize> {
        if !self.is_shared() {
            return Vec::new();
        }
        let own: Vec<usize> = self.locals().iter().map(|l| l.slot).collect();
        let slots = self.all().into_iter().filter(|s| s.watches & watch_bit(queue) != 0 && !own.contains(&s.no));
        slots.map(|s| s.no).collect()
    }

    /// Notifies a local node. Returns whether it is subscribed; `None` if it is not local.
    pub(crate) fn tell(&self, id: NodeId, heard: Heard) -> Option<bool> {
        self.locals().iter().find(|l| l.id == id).map(|local| local.ears.tell(heard))
    }

    /// Broadcasts to the subscribed local nodes. Returns how many there are.
    pub(crate) fn tell_all(&self, heard: &Heard) -> u64 {
        let locals = self.locals();
        locals.iter().filter(|local| local.ears.hears_all() && local.ears.tell(heard.clone())).count() as u64
    }

    /// Returns slots of living nodes of other processes: of this node if it is subscribed, or of all that receive
    /// broadcasts.
    pub(crate) fn hearing_elsewhere(&self, only: Option<NodeId>) -> Vec<usize> {
        let own: Vec<usize> = self.locals().iter().map(|l| l.slot).collect();
        let slots = self.all().into_iter().filter(|s| match only {
            Some(id) => s.hears && s.id == id,
            None => s.hears_all,
        });
        slots.map(|s| s.no).filter(|no| !own.contains(no) && !self.slots.is_unlocked(*no)).collect()
    }

    /// Returns the directory that the processes share, if there is one.
    pub(crate) fn dir(&self) -> Option<&Path> {
        self.slots.dir()
    }

    /// Returns the socket of the node in this slot.
    pub(crate) fn socket(&self, slot: usize) -> PathBuf {
        self.slots.socket(slot)
    }

    /// Returns whether other processes share this registry.
    pub(crate) fn is_shared(&self) -> bool {
        self.slots.dir().is_some()
    }

    /// Returns all slots that have an owner, dead or alive. Returns none if they cannot be read.
    pub(crate) fn all(&self) -> Vec<Slot> {
        self.slots.read().unwrap_or_default()
    }

    pub(crate) fn slots(&self) -> &Slots {
        &self.slots
    }

    fn locals(&self) -> MutexGuard<'_, Vec<Local>> {
        self.locals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns one of 64 bits for a queue. Two queues may share a bit, which costs a needless claim.
fn bit(queue: &str) -> u64 {
    1 << (hash(queue) % 64)
}

/// Returns one of 24 bits for a queue. Two queues may share a bit, which costs a needless datagram.
fn watch_bit(queue: &str) -> u32 {
    1 << (hash(queue) % u64::from(u32::BITS - WATCHES_SHIFT))
}

fn hash(queue: &str) -> u64 {
    // FNV-1a: processes of different builds must compute the same bit.
    queue.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}
