//! The slots of the node registry: 64 bytes for each node, a lock that is held while its process lives, and a socket.
//!
//! The kernel frees the lock when the process ends, for any reason.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crate::clock::Micros;
use crate::node::NodeId;
use crate::store::sqlite::file;
use crate::store::sqlite::nodes::datagram;
use crate::store::sqlite::nodes::datagram::Datagram;
use crate::store::sqlite::nodes::directory::{FileId, NodesDir, touch_path};
use crate::store::sqlite::nodes::identity::{IDENTITY_FILE, Identity, boot_id};
use crate::store::sqlite::nodes::slot_lock::SlotLock;
use crate::sync::LockExt;

/// Most nodes on one file at a time.
pub(crate) const NODES_MAX: usize = 1_024;

/// The layout of a slot, little endian: id 16, worker heartbeat 8, worker lease 8, idle queues 8, pid 4, flags 4, peer
/// heartbeat 8, peer lease 8 bytes.
///
/// A lease of zero means that the node does not have this role.
pub(crate) const SLOT_BYTES: usize = 64;
pub(crate) const WORKER_HEARTBEAT_OFFSET: usize = 16;
pub(crate) const IDLE_OFFSET: usize = 32;
pub(crate) const PID_OFFSET: usize = 40;
pub(crate) const FLAGS_OFFSET: usize = 44;
/// Flags: the node receives messages; it receives broadcasts.
pub(crate) const FLAG_SUBSCRIBED: u32 = 1;
pub(crate) const FLAG_BROADCASTS: u32 = 2;
/// Flag: the worker claims nothing for now.
pub(crate) const FLAG_QUIET: u32 = 4;
/// From this bit on, one flag for each queue whose completions the node subscribes to. Queues may share a bit.
pub(crate) const WATCH_BITS_SHIFT: u32 = 8;
pub(crate) const PEER_HEARTBEAT_OFFSET: usize = 48;

/// The longest time for which an unknown node may be alive: the longest lease.
const GRACE_MAX: Micros = 3_600_000_000;
const REGISTRY_FILE: &str = "registry";

/// The storage of the slots.
pub(crate) enum SlotTable {
    /// In the directory of a file, shared by all processes.
    Shared { file: PathBuf, current: CurrentSlots },
    /// In this process, for a store in memory.
    InMemory(Mutex<Vec<[u8; SLOT_BYTES]>>),
}

/// The slots in the directory that the process uses now.
pub(crate) type CurrentSlots = Arc<Mutex<Arc<SharedSlots>>>;

/// The slots in one directory. If the directory is deleted, the process opens another.
#[derive(Debug)]
pub(crate) struct SharedSlots {
    dir: NodesDir,
    registry: File,
    registry_id: FileId,
    /// Until then, a node without a slot may be alive.
    unknown_alive_until: Micros,
}

/// The contents of a slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeSlot {
    pub(crate) index: usize,
    pub(crate) id: NodeId,
    pub(crate) pid: u32,
    pub(crate) idle_bits: u64,
    /// The node receives messages.
    pub(crate) subscribed: bool,
    /// The node receives broadcasts.
    pub(crate) broadcasts: bool,
    /// The worker claims nothing for now.
    pub(crate) quiet: bool,
    /// The queues whose completions the node subscribes to, as bits.
    pub(crate) watch_bits: u32,
    pub(crate) worker_heartbeat: SlotHeartbeat,
    pub(crate) peer_heartbeat: SlotHeartbeat,
}

/// A heartbeat, and the lease that it renews.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotHeartbeat {
    pub(crate) last_uptime: Micros,
    pub(crate) lease: Micros,
}

impl SharedSlots {
    /// Opens the directory of a file, and creates missing parts. `grace` is how long nodes that are not in a new
    /// registry may be alive: they used a directory that was deleted.
    pub(crate) fn open(file: &Path, now: Micros, grace: Micros) -> io::Result<Self> {
        datagram::check_dir(&NodesDir::path_of(file))?;
        let dir = NodesDir::open(file)?;
        let _turn = dir.lock()?;
        let stored = dir.read_text(IDENTITY_FILE).and_then(|text| Identity::parse(&text));
        let is_complete = stored.is_some() && dir.file_id(REGISTRY_FILE).is_some();
        let registry = dir.open_or_create(REGISTRY_FILE)?;
        let mut identity = stored.unwrap_or_default();
        let is_from_this_boot = identity.boot_id == boot_id();
        if !is_complete || !is_from_this_boot {
            identity.boot_id = boot_id();
            let was_deleted = !is_complete && grace > 0;
            identity.unknown_alive_until = if was_deleted { now.saturating_add(grace) } else { Micros::MIN };
            dir.write_text(IDENTITY_FILE, &identity.to_text())?;
        }
        let (registry_id, unknown_alive_until) = (FileId::of(&registry)?, identity.unknown_alive_until(now, GRACE_MAX));
        let slots = SharedSlots { dir, registry, registry_id, unknown_alive_until };
        if !is_from_this_boot {
            slots.clear_earlier_boot();
        }
        Ok(slots)
    }

    /// Opens the directory of a file for a process without nodes; `None` if no process of this start of the machine uses
    /// it. Creates nothing: only the lease in the file tells how long unknown nodes may be alive.
    pub(crate) fn open_existing(file: &Path, now: Micros) -> io::Result<Option<Self>> {
        if !NodesDir::path_of(file).is_dir() {
            return Ok(None);
        }
        let dir = NodesDir::open(file)?;
        let identity = dir.read_text(IDENTITY_FILE).and_then(|text| Identity::parse(&text));
        let Some(identity) = identity.filter(|identity| identity.boot_id == boot_id()) else {
            return Ok(None);
        };
        let registry = match dir.open_file(REGISTRY_FILE) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let (registry_id, unknown_alive_until) = (FileId::of(&registry)?, identity.unknown_alive_until(now, GRACE_MAX));
        Ok(Some(SharedSlots { dir, registry, registry_id, unknown_alive_until }))
    }

    /// Clears the slots of an earlier start of the machine: their heartbeats are times of another clock.
    fn clear_earlier_boot(&self) {
        for slot in self.read_occupied().unwrap_or_default().into_iter().map(|slot| slot.index) {
            if self.dir.file_id(&lock_name(slot)).is_none() || self.is_unlocked(slot) {
                let _ = self.write(slot, 0, &[0; SLOT_BYTES]);
            }
        }
    }

    pub(crate) fn dir(&self) -> &NodesDir {
        &self.dir
    }

    /// Returns whether the directory and its registry are still at their paths.
    pub(crate) fn is_current(&self) -> bool {
        self.dir.is_current() && self.dir.file_id(REGISTRY_FILE) == Some(self.registry_id)
    }

    /// Returns whether this lock file is the one at the path of the slot, so that other processes see its lock.
    pub(crate) fn is_lock_current(&self, slot: usize, lock: &SlotLock) -> bool {
        FileId::of(lock).is_ok_and(|id| self.dir.file_id(&lock_name(slot)) == Some(id))
    }

    /// Creates the lock file of a slot, already locked, so that no process ever sees it free.
    pub(crate) fn create_locked(&self, slot: usize, node: NodeId) -> io::Result<SlotLock> {
        let (name, new) = (lock_name(slot), format!("{slot}.{node}.new"));
        let _ = self.dir.remove(&new);
        let locked = SlotLock::try_new(self.dir.create_file(&new)?).map_err(io::Error::from);
        let linked = locked.and_then(|lock| self.dir.link(&new, &name).map(|()| lock));
        let _ = self.dir.remove(&new);
        linked
    }

    /// Returns the bytes of a slot.
    pub(crate) fn read_slot(&self, slot: usize) -> io::Result<[u8; SLOT_BYTES]> {
        let mut bytes = [0; SLOT_BYTES];
        // A registry that ends before the slot has no node in it.
        let _ = self.registry.read_at(&mut bytes, (slot * SLOT_BYTES) as u64)?;
        Ok(bytes)
    }

    pub(crate) fn write(&self, slot: usize, offset: usize, bytes: &[u8]) -> io::Result<()> {
        self.registry.write_all_at(bytes, (slot * SLOT_BYTES + offset) as u64)
    }

    /// Returns all slots that have an owner, dead or alive.
    pub(crate) fn read_occupied(&self) -> io::Result<Vec<NodeSlot>> {
        let len = usize::try_from(self.registry.metadata()?.len()).unwrap_or(0);
        let mut bytes = vec![0; len.min(NODES_MAX * SLOT_BYTES)];
        let read = self.registry.read_at(&mut bytes, 0)?;
        bytes.truncate(read);
        Ok(parse_slots(&bytes))
    }

    /// Returns a free slot, locked for the caller.
    pub(crate) fn lock_free_slot(&self, now: Micros) -> io::Result<(usize, SlotLock)> {
        let mut denied = None;
        // A node that lost its lock file creates it again with its next heartbeat. Until its lease ends, its slot is
        // not free.
        let mut owned = [false; NODES_MAX];
        for slot in self.read_occupied()?.into_iter().filter(|slot| slot.has_lease(now)) {
            owned[slot.index] = true;
        }
        for (slot, is_owned) in owned.into_iter().enumerate() {
            let opened = match is_owned {
                true => self.dir.open_file(&lock_name(slot)),
                false => self.dir.open_or_create(&lock_name(slot)),
            };
            let lock = match opened {
                Err(e) if is_owned && e.kind() == io::ErrorKind::NotFound => continue,
                // The file belongs to another user, or is no plain file, so the slot counts as taken.
                Err(e) => {
                    denied = Some(e);
                    continue;
                }
                Ok(lock) => lock,
            };
            match SlotLock::try_new(lock) {
                Ok(lock) if self.is_lock_current(slot, &lock) => return Ok((slot, lock)),
                Ok(_) | Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(e)) => return Err(e),
            }
        }
        let full =
            || io::Error::other(format!("the maximum of {NODES_MAX} nodes already share this file; stop some of them"));
        Err(denied.unwrap_or_else(full))
    }

    /// Returns whether the lock of a slot is free, which means that its owner is dead. If the file is missing, this is
    /// unknown, and the lease decides.
    pub(crate) fn is_unlocked(&self, slot: usize) -> bool {
        // A shared lock does not disturb other readers. It is released explicitly, as in `SlotLock`: otherwise a child
        // that is just being started makes the free slot look taken.
        self.dir.open_for_reading(&lock_name(slot)).is_ok_and(|lock| {
            let is_free = lock.try_lock_shared().is_ok();
            let _ = lock.unlock();
            is_free
        })
    }

    /// Returns the ids of the processes that hold the lock of a slot.
    pub(crate) fn living_pids(&self) -> Vec<u32> {
        let has_lock = |slot: &NodeSlot| self.dir.file_id(&lock_name(slot.index)).is_some();
        let occupied = self.read_occupied().unwrap_or_default().into_iter();
        let living = occupied.filter(|slot| has_lock(slot) && !self.is_unlocked(slot.index));
        let mut pids: Vec<u32> = living.map(|slot| slot.pid).collect();
        pids.dedup();
        pids
    }

    /// Clears the slots of dead nodes.
    fn clear_dead(&self) {
        for slot in self.read_occupied().unwrap_or_default().into_iter().map(|slot| slot.index) {
            let lock = self.dir.open_file(&lock_name(slot));
            // With the lock held, no other node can own the slot.
            if let Ok(lock) = lock.and_then(|lock| SlotLock::try_new(lock).map_err(io::Error::from)) {
                if self.is_lock_current(slot, &lock) {
                    let _ = self.write(slot, 0, &[0; SLOT_BYTES]);
                    let _ = self.dir.remove(&socket_name(slot));
                }
                drop(lock);
            }
        }
    }

    /// Clears the slots of nodes that have no lock file, if `is_dead` returns true for them.
    fn clear_without_lock(&self, is_dead: impl Fn(&NodeSlot) -> bool) {
        let occupied = self.read_occupied().unwrap_or_default().into_iter();
        for slot in occupied.filter(is_dead).map(|slot| slot.index) {
            // If the node is alive, it creates the file too, and only one of the two can.
            let is_missing = self.dir.file_id(&lock_name(slot)).is_none();
            if let Some(Ok(lock)) = is_missing.then(|| self.create_locked(slot, NodeId::fresh())) {
                let _ = self.write(slot, 0, &[0; SLOT_BYTES]);
                let _ = self.dir.remove(&socket_name(slot));
                drop(lock);
            }
        }
    }

    fn touch(&self, slots: &[usize]) {
        for name in [REGISTRY_FILE, IDENTITY_FILE, "bus.db", "bus.db-wal", "bus.db-shm", "bus.lock"] {
            self.dir.touch(name);
        }
        for slot in slots {
            self.dir.touch(&lock_name(*slot));
            self.dir.touch(&socket_name(*slot));
        }
    }
}

fn lock_name(slot: usize) -> String {
    format!("{slot}.lock")
}

fn socket_name(slot: usize) -> String {
    format!("{slot}.sock")
}

impl NodeSlot {
    /// Returns whether one of the node's leases is current.
    pub(crate) fn has_lease(&self, now: Micros) -> bool {
        self.worker_heartbeat.has_lease(now) || self.peer_heartbeat.has_lease(now)
    }

    /// Returns the longer one of its leases.
    pub(crate) fn longest_lease(&self) -> Micros {
        self.worker_heartbeat.lease.max(self.peer_heartbeat.lease)
    }
}

impl SlotHeartbeat {
    /// Returns whether the lease is current. A heartbeat far in the future is from an earlier start of the machine.
    pub(crate) fn has_lease(&self, now: Micros) -> bool {
        now.saturating_sub(self.last_uptime).saturating_abs() <= self.lease
    }
}

impl SlotTable {
    /// Opens the directory of a file, `FILE-nodes/`, and creates it if needed.
    pub(crate) fn open(file: &Path, now: Micros, grace: Micros) -> io::Result<Self> {
        SharedSlots::open(file, now, grace).map(|slots| SlotTable::of(file, slots))
    }

    /// As [`SharedSlots::open_existing`].
    pub(crate) fn open_existing(file: &Path, now: Micros) -> io::Result<Option<Self>> {
        Ok(SharedSlots::open_existing(file, now)?.map(|slots| SlotTable::of(file, slots)))
    }

    fn of(file: &Path, slots: SharedSlots) -> Self {
        SlotTable::Shared { file: file.to_owned(), current: Arc::new(Mutex::new(Arc::new(slots))) }
    }

    /// Creates slots for this process only.
    pub(crate) fn in_memory() -> Self {
        SlotTable::InMemory(Mutex::default())
    }

    /// Returns the slots that the processes share, if there are any. They change if the directory is deleted.
    pub(crate) fn current(&self) -> Option<&CurrentSlots> {
        match self {
            SlotTable::Shared { current, .. } => Some(current),
            SlotTable::InMemory(_) => None,
        }
    }

    /// Returns the slots that the processes share now, if there are any.
    pub(crate) fn shared(&self) -> Option<Arc<SharedSlots>> {
        self.current().map(|current| current.lock_unpoisoned().clone())
    }

    /// Opens the directory again, because it was deleted or replaced. Returns the slots before and after.
    pub(crate) fn reopen(
        &self,
        now: Micros,
        grace: Micros,
    ) -> io::Result<Option<(Arc<SharedSlots>, Arc<SharedSlots>)>> {
        let SlotTable::Shared { file, current } = self else {
            return Ok(None);
        };
        let mut current = current.lock_unpoisoned();
        let new = Arc::new(SharedSlots::open(file, now, grace)?);
        let old = std::mem::replace(&mut *current, new.clone());
        Ok(Some((old, new)))
    }

    /// Sets the times of all files that this process uses to now: programs that delete old files keep them.
    pub(crate) fn touch(&self, slots: &[usize]) {
        if let SlotTable::Shared { file, current } = self {
            current.lock_unpoisoned().touch(slots);
            [file.clone(), file::wal_path(file), file::shm_path(file)].iter().for_each(|path| touch_path(path));
        }
    }

    /// Returns whether a node without a slot may be alive.
    pub(crate) fn may_be_alive_without_slot(&self, now: Micros) -> bool {
        self.shared().is_some_and(|shared| now < shared.unknown_alive_until)
    }

    /// Creates the socket of a slot and replaces an old one. Returns it with its identity.
    pub(crate) fn bind_socket(&self, slot: usize) -> io::Result<(UnixDatagram, Option<FileId>)> {
        let (shared, name) = (self.shared().ok_or(io::ErrorKind::NotFound)?, socket_name(slot));
        let socket = datagram::bind(&shared.dir, &name)?;
        Ok((socket, shared.dir.file_id(&name)))
    }

    /// Sends a datagram to the socket of a slot.
    pub(crate) fn send(&self, slot: usize, datagram: &Datagram) -> io::Result<()> {
        let SlotTable::Shared { file, current } = self else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let current = current.lock_unpoisoned().clone();
        let send = |slots: &SharedSlots| datagram::send(datagram, &slots.dir, &socket_name(slot));
        match send(&current) {
            // This process has not joined the new directory yet.
            Err(_) if !current.is_current() => {
                SharedSlots::open_existing(file, 0)?.map_or(Err(io::ErrorKind::NotFound.into()), |new| send(&new))
            }
            sent => sent,
        }
    }

    /// Removes the socket of a slot.
    pub(crate) fn remove_socket(&self, slot: usize) {
        if let Some(shared) = self.shared() {
            let _ = shared.dir.remove(&socket_name(slot));
        }
    }

    /// Returns the identity of the socket of a slot; `None` if there is none.
    pub(crate) fn socket_id(&self, slot: usize) -> Option<FileId> {
        self.shared()?.dir.file_id(&socket_name(slot))
    }

    /// Returns all slots that have an owner, dead or alive.
    pub(crate) fn read_occupied(&self) -> io::Result<Vec<NodeSlot>> {
        match self {
            SlotTable::InMemory(slots) => Ok(parse_slots(&slots.lock_unpoisoned().concat())),
            SlotTable::Shared { current, .. } => current.lock_unpoisoned().clone().read_occupied(),
        }
    }

    pub(crate) fn write(&self, slot: usize, offset: usize, bytes: &[u8]) -> io::Result<()> {
        match self {
            SlotTable::Shared { current, .. } => current.lock_unpoisoned().clone().write(slot, offset, bytes),
            SlotTable::InMemory(slots) => {
                let mut slots = slots.lock_unpoisoned();
                if slots.len() <= slot {
                    slots.resize(slot + 1, [0; SLOT_BYTES]);
                }
                slots[slot][offset..offset + bytes.len()].copy_from_slice(bytes);
                Ok(())
            }
        }
    }

    /// Returns a free slot, locked for the caller.
    pub(crate) fn lock_free_slot(&self, now: Micros) -> io::Result<(usize, Option<SlotLock>)> {
        match self {
            SlotTable::InMemory(slots) => {
                let slots = slots.lock_unpoisoned();
                let free = slots.iter().position(|s| s[..16] == [0; 16]);
                Ok((free.unwrap_or(slots.len()), None))
            }
            SlotTable::Shared { current, .. } => {
                let (slot, lock) = current.lock_unpoisoned().clone().lock_free_slot(now)?;
                Ok((slot, Some(lock)))
            }
        }
    }

    /// Returns whether the lock of a slot is free, and its owner so dead.
    pub(crate) fn is_unlocked(&self, slot: usize) -> bool {
        self.shared().is_some_and(|shared| shared.is_unlocked(slot))
    }

    /// Clears the slots of dead nodes.
    pub(crate) fn clear_dead(&self) {
        if let Some(shared) = self.shared() {
            shared.clear_dead();
        }
    }

    /// Clears the slots of nodes that have no lock file, if `is_dead` returns true for them.
    pub(crate) fn clear_without_lock(&self, is_dead: impl Fn(&NodeSlot) -> bool) {
        if let Some(shared) = self.shared() {
            shared.clear_without_lock(is_dead);
        }
    }
}

fn parse_slots(bytes: &[u8]) -> Vec<NodeSlot> {
    bytes.chunks_exact(SLOT_BYTES).enumerate().filter_map(|(index, slot)| parse_slot(index, slot)).collect()
}

fn parse_slot(index: usize, bytes: &[u8]) -> Option<NodeSlot> {
    let long = |offset: usize| bytes.get(offset..offset + 8)?.try_into().ok().map(u64::from_le_bytes);
    let short = |offset: usize| bytes.get(offset..offset + 4)?.try_into().ok().map(u32::from_le_bytes);
    let heartbeat = |offset: usize| {
        Some(SlotHeartbeat { last_uptime: long(offset)?.cast_signed(), lease: long(offset + 8)?.cast_signed() })
    };
    let id: [u8; 16] = bytes.get(..16)?.try_into().ok()?;
    (id != [0; 16]).then_some(NodeSlot {
        index,
        id: NodeId::from_bytes(id),
        pid: short(PID_OFFSET)?,
        idle_bits: long(IDLE_OFFSET)?,
        subscribed: short(FLAGS_OFFSET)? & FLAG_SUBSCRIBED != 0,
        broadcasts: short(FLAGS_OFFSET)? & FLAG_BROADCASTS != 0,
        quiet: short(FLAGS_OFFSET)? & FLAG_QUIET != 0,
        watch_bits: short(FLAGS_OFFSET)? >> WATCH_BITS_SHIFT,
        worker_heartbeat: heartbeat(WORKER_HEARTBEAT_OFFSET)?,
        peer_heartbeat: heartbeat(PEER_HEARTBEAT_OFFSET)?,
    })
}
