//! The slots beside the file: 64 bytes for each node, a lock that says its process lives, a socket to reach it by.
//!
//! The kernel frees a lock the moment its process ends, whatever ended it.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{Mode, OFlags};

use crate::clock::Micros;
use crate::node::NodeId;

/// Most nodes at a time on one file.
pub(crate) const NODES_MAX: usize = 1_024;

/// A slot: identity 16, beat 8, lease 8, idle 8, pid 4, hears 4, beat as a guest 8, lease as a guest 8 bytes; little endian.
///
/// A lease of zero means that the node is no worker, or no guest.
pub(crate) const SLOT_BYTES: usize = 64;
pub(crate) const BEAT_AT: usize = 16;
pub(crate) const IDLE_AT: usize = 32;
pub(crate) const PID_AT: usize = 40;
pub(crate) const HEARS_AT: usize = 44;
/// Bits of what a node hears: what is said to it, what is said to all.
pub(crate) const HEARS: u32 = 1;
pub(crate) const HEARS_ALL: u32 = 2;
/// In the same place: as a worker it claims nothing for now.
pub(crate) const QUIET: u32 = 4;
/// From this bit on: one for each queue of which it wants to hear what ends; queues may share one.
pub(crate) const WATCHES_SHIFT: u32 = 8;
pub(crate) const GUEST_BEAT_AT: usize = 48;

/// Where the slots are.
pub(crate) enum Slots {
    /// In a directory beside the file, for all processes to see.
    Shared { dir: PathBuf, board: File },
    /// In this process only, beside a store in memory.
    Own(Mutex<Vec<[u8; SLOT_BYTES]>>),
}

/// A node's slot, read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) no: usize,
    pub(crate) id: NodeId,
    pub(crate) pid: u32,
    pub(crate) idle: u64,
    /// Something can be said to it.
    pub(crate) hears: bool,
    /// Also what is said to all.
    pub(crate) hears_all: bool,
    /// As a worker it claims nothing for now.
    pub(crate) quiet: bool,
    /// Of which queues it wants to hear what ends.
    pub(crate) watches: u32,
    pub(crate) worker: Beat,
    pub(crate) guest: Beat,
}

/// A sign of life, and for how long it counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beat {
    pub(crate) last: Micros,
    pub(crate) lease: Micros,
}

impl Slots {
    /// The directory beside a file: `FILE-nodes/`.
    pub(crate) fn beside(file: &Path) -> io::Result<Self> {
        let mut name = file.as_os_str().to_owned();
        name.push("-nodes");
        let dir = PathBuf::from(name);
        match DirBuilder::new().mode(0o700).create(&dir) {
            Ok(()) => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                give(rustix::fs::open(&dir, flags, Mode::empty())?, file)?;
            }
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            Err(_) => {}
        }
        let board = shared_file(&dir.join("registry"))?;
        Ok(Slots::Shared { dir, board })
    }

    /// Slots that only this process sees.
    pub(crate) fn in_memory() -> Self {
        Slots::Own(Mutex::default())
    }

    /// The directory that other processes see too, if there is one.
    pub(crate) fn dir(&self) -> Option<&Path> {
        match self {
            Slots::Shared { dir, .. } => Some(dir),
            Slots::Own(_) => None,
        }
    }

    /// The socket of the node in this slot.
    pub(crate) fn socket(&self, slot: usize) -> PathBuf {
        self.dir().map(|dir| dir.join(format!("{slot}.sock"))).unwrap_or_default()
    }

    /// All slots that have an owner, dead or alive.
    pub(crate) fn read(&self) -> io::Result<Vec<Slot>> {
        let bytes = match self {
            Slots::Own(slots) => slots.lock().unwrap_or_else(PoisonError::into_inner).concat(),
            Slots::Shared { board, .. } => {
                let len = usize::try_from(board.metadata()?.len()).unwrap_or(0);
                let mut bytes = vec![0; len.min(NODES_MAX * SLOT_BYTES)];
                let read = board.read_at(&mut bytes, 0)?;
                bytes.truncate(read);
                bytes
            }
        };
        Ok(bytes.chunks_exact(SLOT_BYTES).enumerate().filter_map(|(no, slot)| parse(no, slot)).collect())
    }

    pub(crate) fn write(&self, slot: usize, at: usize, bytes: &[u8]) -> io::Result<()> {
        match self {
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

    /// A slot that nobody has, and its lock in our hands.
    pub(crate) fn free(&self) -> io::Result<(usize, Option<File>)> {
        match self {
            Slots::Own(slots) => {
                let slots = slots.lock().unwrap_or_else(PoisonError::into_inner);
                let free = slots.iter().position(|s| s[..16] == [0; 16]);
                Ok((free.unwrap_or(slots.len()), None))
            }
            Slots::Shared { dir, .. } => {
                let mut denied = None;
                for slot in 0..NODES_MAX {
                    let lock = match shared_file(&dir.join(format!("{slot}.lock"))) {
                        // Another user's, and so as good as taken.
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
                Err(denied.unwrap_or_else(|| io::Error::other(format!("{NODES_MAX} nodes share this file already"))))
            }
        }
    }

    /// The owner's lock is gone, and with it the owner.
    pub(crate) fn is_unlocked(&self, slot: usize) -> bool {
        let Slots::Shared { dir, .. } = self else {
            return false;
        };
        match File::open(dir.join(format!("{slot}.lock"))) {
            // A shared lock does not disturb others that look at the same time; it goes with the file.
            Ok(lock) => lock.try_lock_shared().is_ok(),
            Err(_) => false,
        }
    }

    /// Clears the slots of nodes that are gone, so that nobody counts on them.
    pub(crate) fn sweep(&self) {
        let Slots::Shared { dir, .. } = self else {
            return;
        };
        for slot in self.read().unwrap_or_default().into_iter().map(|slot| slot.no) {
            let lock = shared_file(&dir.join(format!("{slot}.lock")));
            // With the lock in hand nobody else can be its owner.
            if let Ok(lock) = lock.and_then(|lock| lock.try_lock().map(|()| lock).map_err(io::Error::from)) {
                let _ = self.write(slot, 0, &[0; SLOT_BYTES]);
                let _ = std::fs::remove_file(self.socket(slot));
                drop(lock);
            }
        }
    }
}

fn parse(no: usize, bytes: &[u8]) -> Option<Slot> {
    let long = |at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
    let short = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
    let beat = |at: usize| Some(Beat { last: long(at)?.cast_signed(), lease: long(at + 8)?.cast_signed() });
    let id: [u8; 16] = bytes.get(..16)?.try_into().ok()?;
    (id != [0; 16]).then_some(Slot {
        no,
        id: NodeId::from_bytes(id),
        pid: short(PID_AT)?,
        idle: long(IDLE_AT)?,
        hears: short(HEARS_AT)? & HEARS != 0,
        hears_all: short(HEARS_AT)? & HEARS_ALL != 0,
        quiet: short(HEARS_AT)? & QUIET != 0,
        watches: short(HEARS_AT)? >> WATCHES_SHIFT,
        worker: beat(BEAT_AT)?,
        guest: beat(GUEST_BEAT_AT)?,
    })
}

/// A file that several processes use, and only their user.
pub(crate) fn shared_file(path: &Path) -> io::Result<File> {
    match new_file(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => OpenOptions::new().read(true).write(true).open(path),
        made => made,
    }
}

/// A new one. It belongs to the owner of its directory, also if root makes it: else one command of root's would lock out
/// whoever uses the store day by day.
pub(crate) fn new_file(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
    give(&file, path.parent().unwrap_or(Path::new(".")))?;
    Ok(file)
}

/// Root gives what it has made just now to the owner of what it belongs to, as SQLite does with a WAL.
///
/// By its handle, and never what was there before: the owner of the directory could let a name lead to a file of root's own.
fn give(made: impl AsFd, belongs_to: &Path) -> io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let owner = std::fs::metadata(belongs_to)?;
    // Some who are root may not do that (in a container, say): then it stays theirs.
    let _ = fchown(made, Some(owner.uid()), Some(owner.gid()));
    Ok(())
}
