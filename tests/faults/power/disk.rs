//! A disk without guarantees: synced data stays; any part of the rest may be present after a cut, torn or whole.
//!
//! A torn write leaves each of its sectors old or new, and never changes a byte outside of itself. SQLite assumes this
//! of a disk ("power-safe overwrite"), and current disks guarantee it.

use std::collections::BTreeMap;

use crate::power::trace::{Event, Part};

/// The unit in which writes tear.
pub const SECTOR: usize = 512;

/// The content of all files after a cut.
pub type Image = BTreeMap<Part, Vec<u8>>;

/// The result of a cut for unsynced writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnsyncedWrites {
    /// All of them are lost.
    Dropped,
    /// All of them are present.
    Kept,
    /// Some of them are present, in any order.
    Some,
    /// The first ones are present, and the last of these only in some of its sectors.
    Torn,
}

#[derive(Clone, Debug)]
enum Change {
    Write(usize, Vec<u8>),
    Truncate(usize),
}

#[derive(Default)]
struct File {
    durable: Vec<u8>,
    unsynced: Vec<Change>,
}

#[derive(Default)]
pub struct Disk {
    /// Files exist without a name: an unlinked file may reappear.
    files: Vec<File>,
    names: BTreeMap<Part, usize>,
    durable_names: BTreeMap<Part, usize>,
    /// Names created (for a file) and removed since the last directory sync. They reach the disk in order.
    unsynced_names: Vec<(Part, Option<usize>)>,
    /// Syncs have no effect: the seeded bug that the checkers have to find.
    ignores_syncs: bool,
}

impl Disk {
    /// Returns a disk that reports success for syncs but ignores them.
    pub fn lying() -> Self {
        Disk { ignores_syncs: true, ..Disk::default() }
    }

    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::Created(part) if !self.names.contains_key(part) => {
                self.files.push(File::default());
                self.rename(*part, Some(self.files.len() - 1));
            }
            Event::Write { part, offset, bytes } => {
                self.file(*part).unsynced.push(Change::Write(*offset, bytes.clone()))
            }
            Event::Truncate { part, len } => self.file(*part).unsynced.push(Change::Truncate(*len)),
            Event::Unlink(part) => self.rename(*part, None),
            Event::Sync(part) if !self.ignores_syncs => self.file(*part).sync(),
            Event::SyncDir if !self.ignores_syncs => {
                self.durable_names = self.names.clone();
                self.unsynced_names.clear();
            }
            _ => {}
        }
    }

    fn file(&mut self, part: Part) -> &mut File {
        &mut self.files[self.names[&part]]
    }

    fn rename(&mut self, part: Part, file: Option<usize>) {
        set_name(&mut self.names, part, file);
        self.unsynced_names.push((part, file));
    }

    /// Returns whether a cut now has only one possible result.
    pub fn is_synced(&self) -> bool {
        self.unsynced_names.is_empty() && self.names.values().all(|file| self.files[*file].unsynced.is_empty())
    }

    /// Returns the content after a cut at this moment.
    pub fn cut(&self, unsynced: UnsyncedWrites, random: &mut fastrand::Rng) -> Image {
        let names_kept = match unsynced {
            UnsyncedWrites::Dropped => 0,
            UnsyncedWrites::Kept => self.unsynced_names.len(),
            UnsyncedWrites::Some | UnsyncedWrites::Torn => random.usize(..=self.unsynced_names.len()),
        };
        let mut names = self.durable_names.clone();
        for (part, file) in &self.unsynced_names[..names_kept] {
            set_name(&mut names, *part, *file);
        }
        names.into_iter().map(|(part, file)| (part, self.files[file].cut(unsynced, random))).collect()
    }
}

fn set_name(names: &mut BTreeMap<Part, usize>, part: Part, file: Option<usize>) {
    match file {
        Some(file) => names.insert(part, file),
        None => names.remove(&part),
    };
}

impl File {
    fn sync(&mut self) {
        for change in self.unsynced.drain(..) {
            change.apply(&mut self.durable);
        }
    }

    fn cut(&self, unsynced: UnsyncedWrites, random: &mut fastrand::Rng) -> Vec<u8> {
        let mut content = self.durable.clone();
        match unsynced {
            UnsyncedWrites::Dropped => {}
            UnsyncedWrites::Kept => self.unsynced.iter().for_each(|change| change.apply(&mut content)),
            UnsyncedWrites::Some => self.keep_some(&mut content, random),
            UnsyncedWrites::Torn => self.tear(&mut content, random),
        }
        content
    }

    fn keep_some(&self, content: &mut Vec<u8>, random: &mut fastrand::Rng) {
        // Few, about half, or most of them; and the file may have grown without its content.
        let share = [0.05, 0.5, 0.95][random.usize(..3)];
        let grows = random.bool();
        for change in &self.unsynced {
            match change {
                _ if random.f64() < share => change.apply(content),
                Change::Write(offset, bytes) if grows && content.len() < offset + bytes.len() => {
                    content.resize(offset + bytes.len(), 0);
                }
                _ => {}
            }
        }
    }

    fn tear(&self, content: &mut Vec<u8>, random: &mut fastrand::Rng) {
        let Some(last) = self.unsynced.len().checked_sub(1) else { return };
        let torn = random.usize(..=last);
        self.unsynced[..torn].iter().for_each(|change| change.apply(content));
        let Change::Write(offset, bytes) = &self.unsynced[torn] else { return };
        for (start, sector) in sectors(*offset, bytes) {
            if random.bool() {
                Change::Write(start, sector.to_vec()).apply(content);
            }
        }
    }
}

impl Change {
    fn apply(&self, content: &mut Vec<u8>) {
        match self {
            Change::Write(offset, bytes) => {
                let end = offset + bytes.len();
                content.resize(content.len().max(end), 0);
                content[*offset..end].copy_from_slice(bytes);
            }
            Change::Truncate(len) => content.resize(*len, 0),
        }
    }
}

/// Splits a write at the sector boundaries of the disk.
pub fn sectors(offset: usize, bytes: &[u8]) -> Vec<(usize, &[u8])> {
    let mut parts = Vec::new();
    let (mut start, mut rest) = (offset, bytes);
    while !rest.is_empty() {
        let (part, after) = rest.split_at(rest.len().min(SECTOR - start % SECTOR));
        parts.push((start, part));
        start += part.len();
        rest = after;
    }
    parts
}
