//! The file `FILE-nodes/identity`: which database file the directory belongs to, and since when.

use crate::clock::Micros;

/// The name of the file in the directory.
pub(crate) const IDENTITY_FILE: &str = "identity";

/// The contents of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The id in the tables of the database file.
    pub(crate) store_id: String,
    /// The inode of the database file. Devices may get other numbers when the machine starts.
    pub(crate) file_inode: u64,
    /// The inode of its WAL.
    pub(crate) wal_inode: u64,
    /// The start of the machine to which the time below belongs.
    pub(crate) boot_id: String,
    /// Until then, a node that is not in the registry may be alive: the directory was deleted while nodes used it, and
    /// each of them joins again with its next heartbeat.
    pub(crate) unknown_alive_until: Micros,
}

impl Default for Identity {
    fn default() -> Self {
        Identity {
            store_id: String::new(),
            file_inode: 0,
            wal_inode: 0,
            boot_id: boot_id(),
            unknown_alive_until: Micros::MIN,
        }
    }
}

impl Identity {
    pub(crate) fn to_text(&self) -> String {
        format!(
            "store {}\nfile {}\nwal {}\nboot {}\nunknown_alive_until {}\n",
            self.store_id, self.file_inode, self.wal_inode, self.boot_id, self.unknown_alive_until
        )
    }

    /// Returns `None` for text that no build of this version writes.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let mut value = |name: &str| Some(lines.next()?.strip_prefix(name)?.trim().to_owned());
        let (store_id, file) = (value("store")?, value("file")?);
        let (wal, boot_id, until) = (value("wal")?, value("boot")?, value("unknown_alive_until")?);
        Some(Identity {
            store_id,
            file_inode: file.parse().ok()?,
            wal_inode: wal.parse().ok()?,
            boot_id,
            unknown_alive_until: until.parse().ok()?,
        })
    }

    /// Returns until when an unknown node may be alive, by the clock of this start of the machine. `longest` bounds it
    /// on systems without a boot id.
    pub(crate) fn unknown_alive_until(&self, now: Micros, longest: Micros) -> Micros {
        let is_usable = self.boot_id == boot_id() && self.unknown_alive_until <= now.saturating_add(longest);
        if is_usable { self.unknown_alive_until } else { Micros::MIN }
    }
}

/// Returns a text that changes with each start of the machine; empty if the system has none.
pub(crate) fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_text_parses_or_is_refused(text in ".*") {
            let _ = Identity::parse(&text);
        }

        #[test]
        fn identity_is_parsed_as_it_was_written(inode in any::<u64>(), until in any::<i64>()) {
            let written = Identity {
                store_id: "a".into(),
                file_inode: inode,
                wal_inode: inode,
                unknown_alive_until: until,
                ..Identity::default()
            };
            prop_assert_eq!(Identity::parse(&written.to_text()), Some(written));
        }
    }
}
