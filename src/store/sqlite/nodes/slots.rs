//! The slots of the node registry: 64 bytes for each node, a lock that is held while its process lives, and a socket.
//!
//! The kernel frees the lock when the process ends, for any reason.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rustix::fs::{Mode, OFlags};

use crate::clock::Micros;
use crate::node::NodeId;
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

/// The storage of the slots.
pub(crate) enum SlotTable {
    /// In the directory of a file, shared by all processes.
    Shared { dir: PathBuf, file: File },
    /// In this process, for a store in memory.
    InMemory(Mutex<Vec<[u8; SLOT_BYTES]>>),
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

impl SlotTable {
    /// Opens the directory of a file, `FILE-nodes/`, and creates it if needed.
    pub(crate) fn open(file: &Path) -> io::Result<Self> {
        let mut name = file.as_os_str().to_owned();
        name.push("-nodes");
        let dir = PathBuf::from(name);
        match DirBuilder::new().mode(0o700).create(&dir) {
            Ok(()) => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                give_to_owner_of(rustix::fs::open(&dir, flags, Mode::empty())?, file)?;
            }
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            Err(_) => {}
        }
        let file = open_shared_file(&dir.join("registry"))?;
        Ok(SlotTable::Shared { dir, file })
    }

    /// Creates slots for this process only.
    pub(crate) fn in_memory() -> Self {
        SlotTable::InMemory(Mutex::default())
    }

    /// Returns the directory that the processes share, if there is one.
    pub(crate) fn dir(&self) -> Option<&Path> {
        match self {
            SlotTable::Shared { dir, .. } => Some(dir),
            SlotTable::InMemory(_) => None,
        }
    }

    /// Returns the socket of the node in this slot.
    pub(crate) fn socket_path(&self, slot: usize) -> PathBuf {
        self.dir().map(|dir| dir.join(format!("{slot}.sock"))).unwrap_or_default()
    }

    /// Returns all slots that have an owner, dead or alive.
    pub(crate) fn read_occupied(&self) -> io::Result<Vec<NodeSlot>> {
        let bytes = match self {
            SlotTable::InMemory(slots) => slots.lock_unpoisoned().concat(),
            SlotTable::Shared { file, .. } => {
                let len = usize::try_from(file.metadata()?.len()).unwrap_or(0);
                let mut bytes = vec![0; len.min(NODES_MAX * SLOT_BYTES)];
                let read = file.read_at(&mut bytes, 0)?;
                bytes.truncate(read);
                bytes
            }
        };
        Ok(bytes.chunks_exact(SLOT_BYTES).enumerate().filter_map(|(index, slot)| parse_slot(index, slot)).collect())
    }

    pub(crate) fn write(&self, slot: usize, offset: usize, bytes: &[u8]) -> io::Result<()> {
        match self {
            SlotTable::Shared { file, .. } => file.write_all_at(bytes, (slot * SLOT_BYTES + offset) as u64),
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
    pub(crate) fn lock_free_slot(&self) -> io::Result<(usize, Option<File>)> {
        match self {
            SlotTable::InMemory(slots) => {
                let slots = slots.lock_unpoisoned();
                let free = slots.iter().position(|s| s[..16] == [0; 16]);
                Ok((free.unwrap_or(slots.len()), None))
            }
            SlotTable::Shared { dir, .. } => {
                let mut denied = None;
                for slot in 0..NODES_MAX {
                    let lock = match open_shared_file(&dir.join(format!("{slot}.lock"))) {
                        // The file belongs to another user, so the slot counts as taken.
                        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                            denied = Some(e);
                            continue;
                        }
                        lock => lock?,
                    };
                    match lock.try_lock() {
                        Ok(()) => return Ok((slot, Some(lock))),
                        Err(TryLockError::WouldBlock) => {}
                        Err(TryLockError::Error(e)) => return Err(e),
                    }
                }
                Err(denied.unwrap_or_else(|| {
                    io::Error::other(format!("the maximum of {NODES_MAX} nodes already share this file"))
                }))
            }
        }
    }

    /// Returns whether the lock of a slot is free, and its owner so dead.
    pub(crate) fn is_unlocked(&self, slot: usize) -> bool {
        let SlotTable::Shared { dir, .. } = self else {
            return false;
        };
        match File::open(dir.join(format!("{slot}.lock"))) {
            // A shared lock does not disturb other readers. It is released when the file closes.
            Ok(lock) => lock.try_lock_shared().is_ok(),
            Err(_) => false,
        }
    }

    /// Clears the slots of dead nodes.
    pub(crate) fn clear_dead(&self) {
        let SlotTable::Shared { dir, .. } = self else {
            return;
        };
        for slot in self.read_occupied().unwrap_or_default().into_iter().map(|slot| slot.index) {
            let lock = open_shared_file(&dir.join(format!("{slot}.lock")));
            // With the lock held, no other node can own the slot.
            if let Ok(lock) = lock.and_then(|lock| lock.try_lock().map(|()| lock).map_err(io::Error::from)) {
                let _ = self.write(slot, 0, &[0; SLOT_BYTES]);
                let _ = std::fs::remove_file(self.socket_path(slot));
                drop(lock);
            }
        }
    }
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

/// Opens or creates a file that processes of one user share.
pub(crate) fn open_shared_file(path: &Path) -> io::Result<File> {
    match create_shared_file(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => OpenOptions::new().read(true).write(true).open(path),
        made => made,
    }
}

/// Creates a file. It belongs to the owner of its directory, even if root creates it: otherwise one command of root
/// would lock out the usual user of the store.
pub(crate) fn create_shared_file(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
    give_to_owner_of(&file, path.parent().unwrap_or(Path::new(".")))?;
    Ok(file)
}

/// If root created the file, gives it to the owner of `belongs_to`, as SQLite does with a WAL.
///
/// Uses the handle of a new file, never a path: the owner of the directory could make a path lead to a file of root.
fn give_to_owner_of(made: impl AsFd, belongs_to: &Path) -> io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let owner = std::fs::metadata(belongs_to)?;
    // Root may lack the right to do this, for example in a container. The file then stays with root.
    let _ = fchown(made, Some(owner.uid()), Some(owner.gid()));
    Ok(())
}
