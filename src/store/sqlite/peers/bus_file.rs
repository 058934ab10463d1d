//! The file of the bus, `FILE-nodes/bus.db`: opened, checked, and replaced if it is damaged or outdated.
//!
//! It is never synced. After a loss of power it may contain anything, so a file from an earlier start of the machine is
//! replaced.

use std::fs::{File, TryLockError};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OptionalExtension};

use crate::store::sqlite::file;
use crate::store::sqlite::nodes::directory::NodesDir;
use crate::store::sqlite::nodes::identity::boot_id;
use crate::store::sqlite::nodes::slots::{CurrentSlots, SharedSlots};
use crate::sync::LockExt;

const SCHEMA: &str = include_str!("bus.sql");
const BUS_FILE: &str = "bus.db";
const BUS_WAL: &str = "bus.db-wal";
const BUS_SHM: &str = "bus.db-shm";
const LOCK_FILE: &str = "bus.lock";
/// Most pages of 4 KiB. If the file is full, the oldest messages are deleted.
const PAGES_MAX: u32 = 65_536;
/// How long to wait for another process that opens or replaces the file.
const OPEN_LOCK_TIMEOUT: Duration = Duration::from_secs(1);
const OPEN_LOCK_RETRY_DELAY: Duration = Duration::from_millis(1);

/// The bus, as used by one thread.
pub(crate) struct BusFile {
    /// The directory; `None` for a store in memory.
    slots: Option<CurrentSlots>,
    open: Option<OpenBus>,
}

struct OpenBus {
    conn: Connection,
    inode: u64,
}

impl BusFile {
    /// The bus in the directory of these slots, or in memory. It is opened on first use.
    pub(crate) fn beside(slots: Option<&CurrentSlots>) -> Self {
        BusFile { slots: slots.cloned(), open: None }
    }

    /// Returns the inode of the open file. It changes when the file is replaced.
    pub(crate) fn inode(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| open.inode)
    }

    /// Runs `run` on the bus. If the file is damaged, replaces it and calls `run` once more.
    pub(crate) fn with<T>(&mut self, mut run: impl FnMut(&Connection) -> rusqlite::Result<T>) -> rusqlite::Result<T> {
        let open = self.open_current(None)?;
        match run(&open.conn) {
            Err(error) if is_corruption(&error) => {
                let damaged = open.inode;
                tracing::warn!(%error, "the bus file is damaged; replacing it");
                run(&self.open_current(Some(damaged))?.conn)
            }
            done => done,
        }
    }

    /// Opens the current file of the directory, but never the damaged one.
    fn open_current(&mut self, damaged: Option<u64>) -> rusqlite::Result<&mut OpenBus> {
        let Some(slots) = &self.slots else {
            return match &mut self.open {
                Some(open) => Ok(open),
                none => Ok(none.insert(open_in_memory()?)),
            };
        };
        let slots: Arc<SharedSlots> = slots.lock_unpoisoned().clone();
        let inode = read_inode(slots.dir());
        let open = match self.open.take() {
            Some(open) if Some(open.inode) == inode && damaged.is_none() => open,
            _ => open_or_create(slots.dir(), damaged)?,
        };
        Ok(self.open.insert(open))
    }
}

fn open_in_memory() -> rusqlite::Result<OpenBus> {
    let conn = Connection::open_in_memory()?;
    conn.execute_batch(SCHEMA)?;
    Ok(OpenBus { conn, inode: 0 })
}

/// Returns whether a new file would help: the file is damaged, or lacks tables. Other errors are temporary, or concern
/// only this process.
fn is_corruption(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error_code();
    matches!(code, Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase | ErrorCode::Unknown))
}

/// Opens the file. Creates it if it is missing, damaged, or from an earlier start of the machine. Only one process does
/// this at a time, so that none removes a file that another starts to use.
fn open_or_create(dir: &NodesDir, damaged: Option<u64>) -> rusqlite::Result<OpenBus> {
    let _turn = lock_for_opening(dir).map_err(to_sqlite_error)?;
    // A link or a device at the path is replaced: it would lead out of the directory.
    let inode = read_inode(dir).filter(|_| dir.is_plain_file(BUS_FILE));
    if inode.is_some() && inode != damaged {
        match connect(dir).and_then(|conn| is_from_this_boot(&conn).map(|ours| ours.then_some(conn))) {
            Ok(Some(conn)) => return Ok(OpenBus { conn, inode: read_inode(dir).unwrap_or(0) }),
            Err(error) if !is_corruption(&error) => return Err(error),
            _ => {}
        }
    }
    create(dir)
}

fn create(dir: &NodesDir) -> rusqlite::Result<OpenBus> {
    // SQLite would apply a leftover WAL to the new file.
    for name in [BUS_FILE, BUS_WAL, BUS_SHM] {
        match dir.remove(name) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(to_sqlite_error(e)),
            _ => {}
        }
    }
    dir.create_file(BUS_FILE).map_err(to_sqlite_error)?;
    let conn = connect(dir)?;
    conn.execute_batch(&format!("BEGIN IMMEDIATE; {SCHEMA}"))?;
    conn.execute("INSERT INTO duly_meta (name, value) VALUES ('boot_id', ?1)", [boot_id()])?;
    conn.execute_batch("COMMIT")?;
    Ok(OpenBus { conn, inode: read_inode(dir).unwrap_or(0) })
}

/// Opens the file. SQLite takes only a path, so the file must be at its path before it is opened, and before anything
/// is written.
fn connect(dir: &NodesDir) -> rusqlite::Result<Connection> {
    let path = dir.checked_path(BUS_FILE).map_err(to_sqlite_error)?;
    let mut conn = Connection::open_with_flags(path, file::OPEN_FLAGS)?;
    dir.checked_path(BUS_FILE).map_err(to_sqlite_error)?;
    conn.busy_handler(Some(file::wait_while_busy))?;
    file::enable_statement_cache(&conn)?;
    file::enable_defensive_mode(&conn)?;
    file::switch_to_wal(&conn)?;
    conn.execute_batch(&format!(
        "PRAGMA synchronous = OFF;
         PRAGMA max_page_count = {PAGES_MAX};
         PRAGMA journal_size_limit = 16777216;
         PRAGMA cache_size = -4096;
         PRAGMA trusted_schema = OFF;
         PRAGMA cell_size_check = ON;"
    ))?;
    Ok(conn)
}

fn is_from_this_boot(conn: &Connection) -> rusqlite::Result<bool> {
    let start: Option<String> =
        conn.query_row("SELECT value FROM duly_meta WHERE name = 'boot_id'", [], |row| row.get(0)).optional()?;
    Ok(start == Some(boot_id()))
}

fn read_inode(dir: &NodesDir) -> Option<u64> {
    dir.file_id(BUS_FILE).map(|id| id.inode)
}

/// Waits for the lock that serialises opening. The lock ends with the returned file.
fn lock_for_opening(dir: &NodesDir) -> io::Result<File> {
    let lock = dir.open_or_create(LOCK_FILE)?;
    let retries = OPEN_LOCK_TIMEOUT.as_millis() / OPEN_LOCK_RETRY_DELAY.as_millis();
    for _ in 0..retries {
        match lock.try_lock() {
            Ok(()) => return Ok(lock),
            Err(TryLockError::WouldBlock) => std::thread::sleep(OPEN_LOCK_RETRY_DELAY),
            Err(TryLockError::Error(e)) => return Err(e),
        }
    }
    Err(io::Error::other(
        "timed out waiting for another process that opens the bus file; try again, or end that process if it is stopped",
    ))
}

fn to_sqlite_error(error: io::Error) -> rusqlite::Error {
    rusqlite::Error::ToSqlConversionFailure(Box::new(error))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;
    use crate::store::sqlite::nodes::slots::SlotTable;

    /// The directory of a store, as one process has it open.
    struct BusDir {
        dir: tempfile::TempDir,
        slots: SlotTable,
    }

    impl BusDir {
        fn new() -> Self {
            let dir = tempfile::tempdir().expect("a directory");
            let file = dir.path().join("duly.db");
            std::fs::write(&file, "").expect("writes");
            BusDir { slots: SlotTable::open(&file, 0, 0).expect("opens"), dir }
        }

        fn bus(&self) -> BusFile {
            BusFile::beside(self.slots.current())
        }

        fn path(&self, name: &str) -> PathBuf {
            self.dir.path().join("duly.db-nodes").join(name)
        }
    }

    fn count_connections(bus: &mut BusFile) -> i64 {
        bus.with(|conn| conn.query_row("SELECT count(*) FROM duly_connection", [], |row| row.get(0))).expect("counts")
    }

    fn insert_connection(bus: &mut BusFile, name: &str) {
        bus.with(|conn| conn.execute("INSERT INTO duly_connection (name, node_id) VALUES (?1, x'00')", [name]))
            .expect("notes");
    }

    #[test]
    fn two_processes_share_a_bus_file_also_after_it_is_recreated() {
        let dir = BusDir::new();
        let (mut a, mut b) = (dir.bus(), dir.bus());
        insert_connection(&mut a, "one");
        assert_eq!(count_connections(&mut b), 1);
        std::fs::remove_file(dir.path("bus.db")).expect("removes");
        assert_eq!(count_connections(&mut b), 0, "replaced, without the contents of the old WAL");
        insert_connection(&mut a, "two");
        assert_eq!((count_connections(&mut b), a.inode()), (1, b.inode()));
    }

    #[test]
    fn damaged_bus_file_is_recreated() {
        let dir = BusDir::new();
        let (path, mut bus) = (dir.path("bus.db"), dir.bus());
        std::fs::write(&path, "x".repeat(10_000)).expect("writes");
        insert_connection(&mut bus, "one");
        assert_eq!(count_connections(&mut bus), 1);
        // A table disappears while the file is open.
        bus.with(|conn| conn.execute_batch("DROP TABLE duly_connection")).expect("drops");
        insert_connection(&mut bus, "two");
        assert_eq!(count_connections(&mut bus), 1);
    }

    #[test]
    fn bus_file_of_an_earlier_boot_is_discarded() {
        let dir = BusDir::new();
        let mut bus = dir.bus();
        insert_connection(&mut bus, "one");
        bus.with(|conn| conn.execute("UPDATE duly_meta SET value = 'earlier'", [])).expect("writes");
        drop(bus);
        assert_eq!(count_connections(&mut dir.bus()), 0);
    }

    #[test]
    fn ordinary_error_keeps_the_bus_file() {
        let dir = BusDir::new();
        let mut bus = dir.bus();
        insert_connection(&mut bus, "one");
        let inode = bus.inode();
        bus.with(|conn| conn.execute("INSERT INTO duly_connection (name, node_id) VALUES ('one', x'00')", []))
            .expect_err("is there");
        assert_eq!((count_connections(&mut bus), bus.inode()), (1, inode));
    }

    #[test]
    fn link_in_place_of_the_bus_file_is_not_followed() {
        let dir = BusDir::new();
        let other = dir.dir.path().join("other");
        std::fs::write(&other, "kept").expect("writes");
        let links: [fn(&PathBuf, &PathBuf); 2] =
            [|to, link| symlink(to, link).expect("links"), |to, link| std::fs::hard_link(to, link).expect("links")];
        for link in links {
            let _ = std::fs::remove_file(dir.path("bus.db"));
            link(&other, &dir.path("bus.db"));
            insert_connection(&mut dir.bus(), "one");
            assert!(std::fs::symlink_metadata(dir.path("bus.db")).expect("is there").is_file());
            assert_eq!(std::fs::read_to_string(&other).expect("reads"), "kept");
        }
        std::fs::remove_file(dir.path("bus.lock")).expect("removes");
        symlink(&other, dir.path("bus.lock")).expect("links");
        let slots = dir.slots.shared().expect("is shared");
        lock_for_opening(slots.dir()).expect_err("is a link");
    }

    /// As root sees it if the owner of the directory puts a link in its place.
    #[test]
    fn link_in_place_of_the_directory_is_not_followed() {
        let dir = BusDir::new();
        let elsewhere = tempfile::tempdir().expect("a directory");
        for name in ["bus.db", "bus.db-wal", "bus.lock"] {
            std::fs::write(elsewhere.path().join(name), "kept").expect("writes");
        }
        std::fs::rename(dir.path(""), dir.dir.path().join("moved")).expect("moves");
        symlink(elsewhere.path(), dir.dir.path().join("duly.db-nodes")).expect("links");
        let error = dir.bus().with(|_| Ok(())).expect_err("is refused").to_string();
        assert!(error.contains("was replaced while it was opened"), "{error}");
        for name in ["bus.db", "bus.db-wal", "bus.lock"] {
            assert_eq!(std::fs::read_to_string(elsewhere.path().join(name)).expect("reads"), "kept", "{name}");
        }
        assert_eq!(std::fs::read_dir(elsewhere.path()).expect("lists").count(), 3, "nothing was created");
    }
}
