//! The board beside the file: who is there, as a worker, as a guest in the hall, or as both.
//!
//! Beats do not go through the database: they would cost a sync each, and stop behind any long transaction.
//! A node takes a slot by locking the slot's file, then writes its identity there, then registers in the database.
//! Lock free = dead. Lock held and beat old = paused: then the lease counts.
//!
//! A node that is worker and guest has one slot with two beats: one must not keep the other's hold alive.

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

/// Whether a node lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    Beating,
    /// Its process is there, but has not beaten for longer than its lease.
    Silent,
    /// Its process is gone.
    Dead,
}

/// A node of this process.
struct Local {
    id: NodeId,
    slot: usize,
    /// Its lease as a worker, if it is one.
    worker: Option<Duration>,
    /// As a worker it claims nothing for now, as its slot says.
    quiet: bool,
    /// It is in the hall.
    guest: bool,
    /// Held open for its lock.
    _lock: Option<File>,
    idle: HashSet<String>,
    /// What it hears of what is said in the hall.
    hears: u32,
    /// Queues of which it wants to hear what ends.
    watches: HashSet<String>,
    ears: Arc<Ears>,
}

/// The board, and this process's own nodes on it.
pub(crate) struct Board {
    slots: Slots,
    clock: Clock,
    locals: Mutex<Vec<Local>>,
    /// When this process last beat, and since when it has done so without a gap.
    contact: Mutex<Contact>,
}

#[derive(Clone, Copy)]
struct Contact {
    last: Micros,
    since: Micros,
}

impl Board {
    /// The board beside a file: `FILE-nodes/`.
    pub(crate) fn beside(file: &Path, clock: Clock) -> io::Result<Self> {
        Ok(Board::new(Slots::beside(file)?, clock))
    }

    /// A board that only this process sees.
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

    /// The moment by which beats and ends of locks are told: never steps, goes on while the machine sleeps.
    pub(crate) fn moment(&self) -> Micros {
        self.clock.since_boot()
    }

    /// Takes a slot for a worker of this process; its slot if it has one already.
    pub(crate) fn join(&self, id: NodeId, lease: Duration) -> io::Result<usize> {
        let mut locals = self.locals();
        let local = self.take_slot(&mut locals, id)?;
        if local.worker.is_none() {
            self.write_beat(local.slot, BEAT_AT, lease)?;
            local.worker = Some(lease);
        }
        Ok(local.slot)
    }

    /// A worker goes; its slot goes with it, unless it stays as a guest.
    pub(crate) fn leave(&self, id: NodeId) -> io::Result<()> {
        self.end_part(id, |local| {
            local.worker = None;
            local.idle.clear();
            local.ears.stop_waking();
            (BEAT_AT, PID_AT)
        })
    }

    /// A worker's sign of life, and whether it claims nothing for now. Answers false if it has not joined here.
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

    /// A guest's sign of life; the first one takes a slot, unless it has one as a worker. Answers whether it was the first.
    pub(crate) fn attend(&self, id: NodeId, lease: Duration) -> io::Result<bool> {
        let mut locals = self.locals();
        let local = self.take_slot(&mut locals, id)?;
        self.write_beat(local.slot, GUEST_BEAT_AT, lease)?;
        let first = !std::mem::replace(&mut local.guest, true);
        drop(locals);
        self.note_contact(lease);
        Ok(first)
    }

    /// Whoever has a lock must be seen on the board: makes a node a guest, if it is none.
    pub(crate) fn admit(&self, id: NodeId, lease: Duration) -> io::Result<()> {
        let known = self.locals().iter().any(|l| l.id == id && l.guest);
        if known { Ok(()) } else { self.attend(id, lease).map(drop) }
    }

    /// A guest goes; its slot goes with it, unless it stays as a worker.
    pub(crate) fn depart(&self, id: NodeId) -> io::Result<()> {
        self.end_part(id, |local| {
            local.guest = false;
            local.hears = 0;
            // Its next beat says again if it is.
            local.quiet = false;
            local.watches.clear();
            local.ears.stop_hearing();
            (HEARS_AT, SLOT_BYTES)
        })
    }

    /// Ends what `end` says of a node, clears those bytes of its slot, and gives the slot back once nothing is left.
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
        // Cleared while the lock is still held: the next owner starts on a clean slot.
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

    /// The slot of a node of this process.
    pub(crate) fn slot_of(&self, id: NodeId) -> Option<usize> {
        self.locals().iter().find(|l| l.id == id).map(|l| l.slot)
    }

    /// The ears of a node of this process.
    pub(crate) fn ears(&self, id: NodeId) -> Option<Arc<Ears>> {
        self.locals().iter().find(|l| l.id == id).map(|l| l.ears.clone())
    }

    /// Whether a worker lives, by its slot. In doubt it does: nobody is robbed because a look has failed.
    pub(crate) fn life(&self, id: NodeId, slot: usize) -> Life {
        let Ok(slots) = self.slots.read() else {
            return Life::Beating;
        };
        match slots.into_iter().find(|s| s.no == slot && s.id == id) {
            Some(read) if !self.slots.is_unlocked(slot) => self.life_by(read.worker),
            _ => Life::Dead,
        }
    }

    /// Whether a worker claims nothing for now.
    pub(crate) fn is_quiet(&self, id: NodeId, slot: usize) -> bool {
        self.all().into_iter().any(|s| s.no == slot && s.id == id && s.quiet)
    }

    /// Whether a node whose lock is held lives by this beat of its.
    pub(crate) fn life_by(&self, beat: Beat) -> Life {
        match self.moment() - beat.last > beat.lease {
            // It has left, or never joined: only its other part is there.
            _ if beat.lease == 0 => Life::Dead,
            true => Life::Silent,
            false => Life::Beating,
        }
    }

    /// Whether what a worker holds may be taken from it now.
    ///
    /// A silent node loses its hold only to a process that has itself been awake for one whole lease:
    /// after a machine's sleep all beats are old, and the first to wake must not rob the others.
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

    /// Notes whether a node of this process waits for a queue, and answers how many others wait before it.
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
            // A slot that cannot be written costs a wake, and the check once a second makes up for it.
            let _ = self.slots.write(slot, IDLE_AT, &bits.to_le_bytes());
        }
        drop(locals);
        if !idle {
            return 0;
        }
        let before = self.all().into_iter().filter(|s| s.no < slot && s.idle & bit(queue) != 0);
        u32::try_from(before.count()).unwrap_or(u32::MAX)
    }

    /// Tells one node of this process that waits for this queue. Answers whether there was one.
    pub(crate) fn wake_local(&self, queue: &str) -> bool {
        let locals = self.locals();
        let mut waiting = locals.iter().filter(|l| l.idle.contains(queue));
        waiting.any(|local| local.ears.wake(Wake::Queue(queue.to_owned())))
    }

    /// Tells all nodes of this process that wait for this queue.
    pub(crate) fn wake_all_local(&self, queue: &str) {
        let locals = self.locals();
        let waiting = locals.iter().filter(|l| l.idle.contains(queue));
        waiting.for_each(|local| _ = local.ears.wake(Wake::Queue(queue.to_owned())));
    }

    /// Slots of other processes' nodes that seem to wait for this queue.
    pub(crate) fn idle_elsewhere(&self, queue: &str) -> Vec<usize> {
        let own: Vec<usize> = self.locals().iter().map(|l| l.slot).collect();
        let slots = self.all().into_iter();
        slots.filter(|s| s.idle & bit(queue) != 0 && !own.contains(&s.no)).map(|s| s.no).collect()
    }

    /// From now on something can be said to this node, and as one of all.
    pub(crate) fn set_hears(&self, slot: usize, all: bool) -> io::Result<()> {
        let mut locals = self.locals();
        let Some(local) = locals.iter_mut().find(|l| l.slot == slot) else {
            return Ok(());
        };
        local.hears = if all { HEARS | HEARS_ALL } else { HEARS };
        self.write_hears(local)
    }

    /// From now on this node is told of what ends in these queues, and in no others.
    pub(crate) fn watch_ends(&self, id: NodeId, queues: &[String]) -> io::Result<()> {
        let mut locals = self.locals();
        let Some(local) = locals.iter_mut().find(|l| l.id == id) else {
            return Err(io::Error::other("the node is not in the hall"));
        };
        local.watches = queues.iter().cloned().collect();
        self.write_hears(local)
    }

    fn write_hears(&self, local: &Local) -> io::Result<()> {
        let watches = local.watches.iter().fold(0, |bits, queue| bits | watch_bit(queue));
        let quiet = if local.quiet { QUIET } else { 0 };
        self.slots.write(local.slot, HEARS_AT, &(local.hears | quiet | watches << WATCHES_SHIFT).to_le_bytes())
    }

    /// Tells nodes of this process that jobs of this queue have ended, those that want to hear it.
    pub(crate) fn tell_ended(&self, queue: &str, ids: &[JobId]) {
        for local in self.locals().iter().filter(|l| l.watches.contains(queue)) {
            local.ears.tell(Heard::Ended(ids.to_vec()));
        }
    }

    /// Slots of other processes' nodes that seem to want to hear what ends in this queue.
    pub(crate) fn watching_elsewhere(&self, queue: &str) -> Vec<usize> {
        if !self.is_shared() {
            return Vec::new();
        }
        let own: Vec<usize> = self.locals().iter().map(|l| l.slot).collect();
        let slots = self.all().into_iter().filter(|s| s.watches & watch_bit(queue) != 0 && !own.contains(&s.no));
        slots.map(|s| s.no).collect()
    }

    /// Says something to a node of this process. Answers whether it listens; `None` if it is not one of ours.
    pub(crate) fn tell(&self, id: NodeId, heard: Heard) -> Option<bool> {
        self.locals().iter().find(|l| l.id == id).map(|local| local.ears.tell(heard))
    }

    /// Says something to those nodes of this process that hear what is for all. Answers how many do.
    pub(crate) fn tell_all(&self, heard: &Heard) -> u64 {
        let locals = self.locals();
        locals.iter().filter(|local| local.ears.hears_all() && local.ears.tell(heard.clone())).count() as u64
    }

    /// Slots of other processes' nodes whose process is there: of this node if it listens, or of those that hear what is for all.
    pub(crate) fn hearing_elsewhere(&self, only: Option<NodeId>) -> Vec<usize> {
        let own: Vec<usize> = self.locals().iter().map(|l| l.slot).collect();
        let slots = self.all().into_iter().filter(|s| match only {
            Some(id) => s.hears && s.id == id,
            None => s.hears_all,
        });
        slots.map(|s| s.no).filter(|no| !own.contains(no) && !self.slots.is_unlocked(*no)).collect()
    }

    /// The directory that other processes see too, if there is one.
    pub(crate) fn dir(&self) -> Option<&Path> {
        self.slots.dir()
    }

    /// The socket on which the node in this slot can be reached.
    pub(crate) fn socket(&self, slot: usize) -> PathBuf {
        self.slots.socket(slot)
    }

    /// Whether other processes can see this board.
    pub(crate) fn is_shared(&self) -> bool {
        self.slots.dir().is_some()
    }

    /// All slots that have an owner, dead or alive; none if they cannot be read.
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

/// One of 64 bits for a queue's name. Two queues may share one: that costs a needless look.
fn bit(queue: &str) -> u64 {
    1 << (hash(queue) % 64)
}

/// One of 24 bits, in the same way: there a needless letter is the price.
fn watch_bit(queue: &str) -> u32 {
    1 << (hash(queue) % u64::from(u32::BITS - WATCHES_SHIFT))
}

fn hash(queue: &str) -> u64 {
    // FNV-1a: processes of different builds must agree on it.
    queue.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}
