//! The board beside the file: one slot per node, with its beat, its idle queues and an OS lock that says it lives.
//!
//! Beats do not go through the database: they would cost a sync each, and stop behind any long transaction.
//! A node takes a slot by locking the slot's file, then writes its identity there, then registers in the database.
//! The kernel frees the lock the moment its process ends: lock free = dead.
//! Lock held and beat old = paused: then the lease counts.

use std::collections::HashSet;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;

use crate::clock::{Clock, Micros, micros};
use crate::node::NodeId;
use crate::store::Wake;

/// Most nodes at a time on one file.
pub(super) const NODES_MAX: usize = 1_024;

/// A slot: identity 16, beat 8, lease 8, idle 8, pid 4, unused 20 bytes; little endian.
const SLOT_BYTES: usize = 64;
const BEAT_AT: usize = 16;
const LEASE_AT: usize = 24;
const IDLE_AT: usize = 32;
const PID_AT: usize = 40;

/// Whether a node lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Beating,
    /// Its process is there, but has not beaten for longer than its lease.
    Silent,
    /// Its process is gone.
    Dead,
}

/// Where the slots are.
enum Slots {
    /// In a directory beside the file, for all processes to see.
    Shared { dir: PathBuf, board: File },
    /// In this process only, beside a store in memory.
    Own(Mutex<Vec<[u8; SLOT_BYTES]>>),
}

/// A node of this process.
pub(super) struct Local {
    id: NodeId,
    slot: usize,
    lease: Duration,
    /// Held open for its lock.
    _lock: Option<File>,
    idle: HashSet<String>,
    pub(super) wakes: Option<mpsc::Sender<Wake>>,
}

/// The board, and this process's own nodes on it.
pub(super) struct Board {
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

/// A node's slot, read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) no: usize,
    pub(super) id: NodeId,
    pub(super) pid: u32,
    beat: Micros,
    lease: Micros,
    idle: u64,
}

impl Board {
    /// The board beside a file: `FILE-nodes/`.
    pub(super) fn beside(file: &Path, clock: Clock) -> io::Result<Self> {
        let mut name = file.as_os_str().to_owned();
        name.push("-nodes");
        let dir = PathBuf::from(name);
        match DirBuilder::new().mode(0o700).create(&dir) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
        let board = shared_file(&dir.join("board"))?;
        Ok(Board::new(Slots::Shared { dir, board }, clock))
    }

    /// A board that only this process sees.
    pub(super) fn in_memory(clock: Clock) -> Self {
        Board::new(Slots::Own(Mutex::default()), clock)
    }

    fn new(slots: Slots, clock: Clock) -> Self {
        Board {
            slots,
            clock,
            locals: Mutex::default(),
            contact: Mutex::new(Contact { last: Micros::MIN / 2, since: Micros::MAX / 2 }),
        }
    }

    /// Takes a slot for a node of this process; its slot if it has one already.
    pub(super) fn join(&self, id: NodeId, lease: Duration) -> io::Result<usize> {
        let mut locals = self.locals();
        if let Some(local) = locals.iter().find(|l| l.id == id) {
            return Ok(local.slot);
        }
        let (slot, lock) = self.free_slot()?;
        let mut bytes = [0; SLOT_BYTES];
        bytes[..16].copy_from_slice(id.as_bytes());
        bytes[BEAT_AT..LEASE_AT].copy_from_slice(&self.clock.since_boot().to_le_bytes());
        bytes[LEASE_AT..IDLE_AT].copy_from_slice(&micros(lease).to_le_bytes());
        bytes[PID_AT..PID_AT + 4].copy_from_slice(&std::process::id().to_le_bytes());
        self.write(slot, 0, &bytes)?;
        locals.push(Local { id, slot, lease, _lock: lock, idle: HashSet::new(), wakes: None });
        Ok(slot)
    }

    /// Gives a node's slot back.
    pub(super) fn leave(&self, id: NodeId) -> io::Result<()> {
        let mut locals = self.locals();
        let Some(at) = locals.iter().position(|l| l.id == id) else {
            return Ok(());
        };
        let local = locals.swap_remove(at);
        if let Slots::Shared { .. } = self.slots {
            let _ = std::fs::remove_file(self.socket(local.slot));
        }
        // Cleared while the lock is still held: the next owner starts on a clean slot.
        self.write(local.slot, 0, &[0; SLOT_BYTES])
    }

    /// A node's sign of life. Answers false if the node has no slot here.
    pub(super) fn beat(&self, id: NodeId) -> io::Result<bool> {
        let Some((slot, lease)) = self.locals().iter().find(|l| l.id == id).map(|l| (l.slot, l.lease)) else {
            return Ok(false);
        };
        let now = self.clock.since_boot();
        self.write(slot, BEAT_AT, &now.to_le_bytes())?;
        let mut contact = self.contact.lock().unwrap_or_else(PoisonError::into_inner);
        if now - contact.last > micros(lease) {
            contact.since = now;
        }
        contact.last = now;
        Ok(true)
    }

    /// Whether a node lives, by its slot.
    pub(super) fn life(&self, id: NodeId, slot: usize) -> Life {
        let Some(read) = self.all().into_iter().find(|s| s.no == slot && s.id == id) else {
            return Life::Dead;
        };
        if self.is_unlocked(slot) {
            return Life::Dead;
        }
        match self.clock.since_boot() - read.beat > read.lease {
            true => Life::Silent,
            false => Life::Beating,
        }
    }

    /// Whether what a node holds may be taken from it now.
    ///
    /// A silent node loses its hold only to a process that has itself been awake for one whole lease:
    /// after a machine's sleep all beats are old, and the first to wake must not rob the others.
    pub(super) fn may_take_back(&self, id: NodeId, slot: usize) -> bool {
        match self.life(id, slot) {
            Life::Beating => false,
            Life::Dead => true,
            Life::Silent => {
                let Some(silent) = self.all().into_iter().find(|s| s.no == slot) else {
                    return true;
                };
                let contact = *self.contact.lock().unwrap_or_else(PoisonError::into_inner);
                let now = self.clock.since_boot();
                now - contact.last <= silent.lease && now - contact.since >= silent.lease
            }
        }
    }

    /// Notes whether a node of this process waits for a queue, and answers how many others wait before it.
    pub(super) fn set_idle(&self, id: NodeId, queue: &str, idle: bool) -> u32 {
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
            let _ = self.write(slot, IDLE_AT, &bits.to_le_bytes());
        }
        drop(locals);
        if !idle {
            return 0;
        }
        let before = self.all().into_iter().filter(|s| s.no < slot && s.idle & bit(queue) != 0);
        u32::try_from(before.count()).unwrap_or(u32::MAX)
    }

    /// Gives a node of this process the sender of its wakes.
    pub(super) fn subscribe(&self, id: NodeId, wakes: mpsc::Sender<Wake>) {
        if let Some(local) = self.locals().iter_mut().find(|l| l.id == id) {
            local.wakes = Some(wakes);
        }
    }

    /// Tells one node of this process that waits for this queue. Answers whether there was one.
    pub(super) fn wake_local(&self, queue: &str) -> bool {
        let locals = self.locals();
        let mut waiting = locals.iter().filter(|l| l.idle.contains(queue));
        waiting.any(|local| match &local.wakes {
            // A full channel holds wakes enough.
            Some(wakes) => {
                !wakes.is_closed() && {
                    let _ = wakes.try_send(Wake::Queue(queue.to_owned()));
                    true
                }
            }
            None => false,
        })
    }

    /// Slots of other processes' nodes that seem to wait for this queue.
    pub(super) fn idle_elsewhere(&self, queue: &str) -> Vec<usize> {
        let own: Vec<usize> = self.locals().iter().map(|l| l.slot).collect();
        let slots = self.all().into_iter();
        slots.filter(|s| s.idle & bit(queue) != 0 && !own.contains(&s.no)).map(|s| s.no).collect()
    }

    /// The socket on which the node in this slot can be woken.
    pub(super) fn socket(&self, slot: usize) -> PathBuf {
        match &self.slots {
            Slots::Shared { dir, .. } => dir.join(format!("{slot}.sock")),
            Slots::Own(_) => PathBuf::new(),
        }
    }

    /// Whether other processes can see this board.
    pub(super) fn is_shared(&self) -> bool {
        matches!(self.slots, Slots::Shared { .. })
    }

    /// All slots that have an owner, dead or alive.
    pub(super) fn all(&self) -> Vec<Slot> {
        let bytes = match &self.slots {
            Slots::Own(slots) => slots.lock().unwrap_or_else(PoisonError::into_inner).concat(),
            Slots::Shared { board, .. } => {
                let len = board.metadata().map_or(0, |m| m.len());
                let mut bytes = vec![0; usize::try_from(len).unwrap_or(0).min(NODES_MAX * SLOT_BYTES)];
                let read = board.read_at(&mut bytes, 0).unwrap_or(0);
                bytes.truncate(read);
                bytes
            }
        };
        bytes.chunks_exact(SLOT_BYTES).enumerate().filter_map(|(no, slot)| parse(no, slot)).collect()
    }

    /// Clears the slots of nodes that are gone, so that nobody counts on them.
    pub(super) fn sweep(&self) {
        let Slots::Shared { dir, .. } = &self.slots else {
            return;
        };
        for slot in self.all().into_iter().map(|slot| slot.no) {
            let lock = shared_file(&dir.join(format!("{slot}.lock")));
            // With the lock in hand nobody else can be its owner.
            if let Ok(lock) = lock.and_then(|lock| lock.try_lock().map(|()| lock).map_err(io::Error::from)) {
                let _ = self.write(slot, 0, &[0; SLOT_BYTES]);
                let _ = std::fs::remove_file(self.socket(slot));
                drop(lock);
            }
        }
    }

    fn write(&self, slot: usize, at: usize, bytes: &[u8]) -> io::Result<()> {
        match &self.slots {
            Slots::Shared { board, .. } => board.write_all_at(bytes, (slot * SLOT_BYTES + at) as u64),
            Slots::Own(slots) => {
                let mut slots = slots.lock().unwrap_or_else(PoisonError::into_inner);
                if slots.len() <= slot {
                    slots.resize(slot + 1, [0; SLOT_BYTES]);
                }
                slots[slot][at..at + bytes.len()].copy_from_slice(bytes);
                Ok(())
            }
        }
    }

    fn free_slot(&self) -> io::Result<(usize, Option<File>)> {
        match &self.slots {
            Slots::Own(slots) => {
                let slots = slots.lock().unwrap_or_else(PoisonError::into_inner);
                let free = slots.iter().position(|s| s[..16] == [0; 16]);
                Ok((free.unwrap_or(slots.len()), None))
            }
            Slots::Shared { dir, .. } => {
                for slot in 0..NODES_MAX {
                    let lock = shared_file(&dir.join(format!("{slot}.lock")))?;
                    match lock.try_lock() {
                        Ok(()) => return Ok((slot, Some(lock))),
                        Err(TryLockError::WouldBlock) => {}
                        Err(TryLockError::Error(e)) => return Err(e),
                    }
                }
                Err(io::Error::other(format!("{NODES_MAX} nodes share this file already")))
            }
        }
    }

    /// The owner's lock is gone, and with it the owner.
    fn is_unlocked(&self, slot: usize) -> bool {
        let Slots::Shared { dir, .. } = &self.slots else {
            return false;
        };
        match File::open(dir.join(format!("{slot}.lock"))) {
            // A shared lock does not disturb others that look at the same time; it goes with the file.
            Ok(lock) => lock.try_lock_shared().is_ok(),
            Err(e) => e.kind() == io::ErrorKind::NotFound,
        }
    }

    fn locals(&self) -> MutexGuard<'_, Vec<Local>> {
        self.locals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn parse(no: usize, bytes: &[u8]) -> Option<Slot> {
    let number = |at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
    let id: [u8; 16] = bytes.get(..16)?.try_into().ok()?;
    (id != [0; 16]).then_some(Slot {
        no,
        id: NodeId::from_bytes(id),
        pid: u32::from_le_bytes(bytes.get(PID_AT..PID_AT + 4)?.try_into().ok()?),
        beat: number(BEAT_AT)?.cast_signed(),
        lease: number(LEASE_AT)?.cast_signed(),
        idle: number(IDLE_AT)?,
    })
}

/// One of 64 bits for a queue's name. Two queues may share one: that costs a needless look.
fn bit(queue: &str) -> u64 {
    // FNV-1a: processes of different builds must agree on it.
    let hash = queue
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    1 << (hash % 64)
}

fn shared_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}
