//! A disk that forgets: what was synced stays, of the rest anything may be there after a cut, torn or whole.
//!
//! A torn write leaves each of its sectors old or new, and never touches a byte outside of itself:
//! that is what SQLite assumes of a disk ("power-safe overwrite"), and what disks of today do.

use std::collections::BTreeMap;

use crate::power::trace::{Event, Part};

/// The unit in which writes tear.
pub const SECTOR: usize = 512;

/// The content of all files after a cut.
pub type Image = BTreeMap<Part, Vec<u8>>;

/// What becomes of that which was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// All of it is gone.
    Dropped,
    /// All of it is there.
    Kept,
    /// Some writes are there, whatever their order was.
    Some,
    /// The first ones are there; the last of these in some of its sectors only.
    Torn,
}

#[derive(Clone, Debug)]
enum Change {
    Write(usize, Vec<u8>),
    Cut(usize),
}

#[derive(Default)]
struct File {
    durable: Vec<u8>,
    unsynced: Vec<Change>,
}

#[derive(Default)]
pub struct Disk {
    /// Files live on without a name: one that is unlinked may come back.
    files: Vec<File>,
    names: BTreeMap<Part, usize>,
    durable_names: BTreeMap<Part, usize>,
    /// Names given (to a file) and taken since the directory was synced. They reach the disk in order.
    unsynced_names: Vec<(Part, Option<usize>)>,
    /// Syncs change nothing: the seeded bug that the checkers have to find.
    lies: bool,
}

impl Disk {
    /// A disk that says "synced" and has done nothing.
    pub fn lying() -> Self {
        Disk { lies: true, ..Disk::default() }
    }

    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::Made(part) if !self.names.contains_key(part) => {
                self.files.push(File::default());
                self.rename(*part, Some(self.files.len() - 1));
            }
            Event::Write { part, at, bytes } => self.file(*part).unsynced.push(Change::Write(*at, bytes.clone())),
            Event::Cut { part, len } => self.file(*part).unsynced.push(Change::Cut(*len)),
            Event::Unlink(part) => self.rename(*part, None),
            Event::Sync(part) if !self.lies => self.file(*part).sync(),
            Event::SyncDir if !self.lies => {
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
        name(&mut self.names, part, file);
        self.unsynced_names.push((part, file));
    }

    /// Whether a cut now has only one possible image.
    pub fn is_synced(&self) -> bool {
        self.unsynced_names.is_empty() && self.names.values().all(|file| self.files[*file].unsynced.is_empty())
    }

    /// What is there after a cut now.
    pub fn cut(&self, fate: Fate, random: &mut fastrand::Rng) -> Image {
        let names_kept = match fate {
            Fate::Dropped => 0,
            Fate::Kept => self.unsynced_names.len(),
            Fate::Some | Fate::Torn => random.usize(..=self.unsynced_names.len()),
        };
        let mut names = self.durable_names.clone();
        for (part, file) in &self.unsynced_names[..names_kept] {
            name(&mut names, *part, *file);
        }
        names.into_iter().map(|(part, file)| (part, self.files[file].cut(fate, random))).collect()
    }
}

fn name(names: &mut BTreeMap<Part, usize>, part: Part, file: Option<usize>) {
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

    fn cut(&self, fate: Fate, random: &mut fastrand::Rng) -> Vec<u8> {
        let mut content = self.durable.clone();
        match fate {
            Fate::Dropped => {}
            Fate::Kept => self.unsynced.iter().for_each(|change| change.apply(&mut content)),
            Fate::Some => self.keep_some(&mut content, random),
            Fate::Torn => self.tear(&mut content, random),
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
                Change::Write(at, bytes) if grows && content.len() < at + bytes.len() => {
                    content.resize(at + bytes.len(), 0);
                }
                _ => {}
            }
        }
    }

    fn tear(&self, content: &mut Vec<u8>, random: &mut fastrand::Rng) {
        let Some(last) = self.unsynced.len().checked_sub(1) else { return };
        let torn = random.usize(..=last);
        self.unsynced[..torn].iter().for_each(|change| change.apply(content));
        let Change::Write(at, bytes) = &self.unsynced[torn] else { return };
        for (at, sector) in sectors(*at, bytes) {
            if random.bool() {
                Change::Write(at, sector.to_vec()).apply(content);
            }
        }
    }
}

impl Change {
    fn apply(&self, content: &mut Vec<u8>) {
        match self {
            Change::Write(at, bytes) => {
                let end = at + bytes.len();
                content.resize(content.len().max(end), 0);
                content[*at..end].copy_from_slice(bytes);
            }
            Change::Cut(len) => content.resize(*len, 0),
        }
    }
}

/// A write in parts that end where sectors of the disk do.
pub fn sectors(at: usize, bytes: &[u8]) -> Vec<(usize, &[u8])> {
    let mut parts = Vec::new();
    let (mut at, mut rest) = (at, bytes);
    while !rest.is_empty() {
        let (part, after) = rest.split_at(rest.len().min(SECTOR - at % SECTOR));
        parts.push((at, part));
        at += part.len();
        rest = after;
    }
    parts
}
