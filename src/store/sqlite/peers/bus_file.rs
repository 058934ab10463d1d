//! The file of the bus, `FILE-nodes/bus.db`: opened, checked, and replaced if it is damaged or outdated.
//!
//! It is never synced. After a loss of power it may contain anything, so a file from an earlier start of the machine is
//! replaced.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension};

use crate::store::sqlite::file;
use crate::store::sqlite::nodes::slots::{create_shared_file, open_shared_file};

const SCHEMA: &str = include_str!("bus.sql");
/// Most pages of 4 KiB. If the file is full, the oldest messages are deleted.
const PAGES_MAX: u32 = 65_536;
/// How long to wait for another process that opens or replaces the file.
const OPEN_LOCK_TIMEOUT: Duration = Duration::from_secs(1);
const OPEN_LOCK_RETRY_DELAY: Duration = Duration::from_millis(1);

/// The bus, as used by one thread.
pub(crate) struct BusFile {
    /// `None` for a store in memory.
    path: Option<PathBuf>,
    open: Option<OpenBus>,
}

struct OpenBus {
    conn: Connection,
    inode: u64,
}

impl BusFile {
    /// The bus in this directory, or in memory. It is opened on first use.
    pub(crate) fn in_dir(dir: Option<&Path>) -> Self {
        BusFile { path: dir.map(|dir| dir.join("bus.db")), open: None }
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

    /// Opens the current file at the path, but never the damaged one.
    fn open_current(&mut self, damaged: Option<u64>) -> rusqlite::Result<&mut OpenBus> {
        let Some(path) = &self.path else {
            return match &mut self.open {
                Some(open) => Ok(open),
                none => Ok(none.insert(open_in_memory()?)),
            };
        };
        let inode = read_inode(path);
        let open = match self.open.take() {
            Some(open) if Some(open.inode) == inode && damaged.is_none() => open,
            _ => open_or_create(path, damaged)?,
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
fn open_or_create(path: &Path, damaged: Option<u64>) -> rusqlite::Result<OpenBus> {
    let _turn = lock_for_opening(&path.with_extension("lock")).map_err(to_sqlite_error)?;
    let inode = read_inode(path);
    if inode.is_some() && inode != damaged {
        match connect(path).and_then(|conn| is_from_this_boot(&conn).map(|ours| ours.then_some(conn))) {
            Ok(Some(conn)) => return Ok(OpenBus { conn, inode: read_inode(path).unwrap_or(0) }),
            Err(error) if !is_corruption(&error) => return Err(error),
            _ => {}
        }
    }
    create(path)
}

fn create(path: &Path) -> rusqlite::Result<OpenBus> {
    // SQLite would apply a leftover WAL to the new file.
    for end in ["", "-wal", "-shm"] {
        let mut name = path.as_os_str().to_owned();
        name.push(end);
        match std::fs::remove_file(&name) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(to_sqlite_error(e)),
            _ => {}
        }
    }
    create_shared_file(path).map_err(to_sqlite_error)?;
    let conn = connect(path)?;
    conn.execute_batch(&format!("BEGIN IMMEDIATE; {SCHEMA}"))?;
    conn.execute("INSERT INTO duly_meta (name, value) VALUES ('boot_id', ?1)", [boot_id()])?;
    conn.execute_batch("COMMIT")?;
    Ok(OpenBus { conn, inode: read_inode(path).unwrap_or(0) })
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut conn = Connection::open_with_flags(path, flags)?;
    conn.busy_handler(Some(file::wait_while_busy))?;
    file::enable_statement_cache(&conn)?;
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

/// Returns a text that changes with each start of the machine; empty if the system has none.
fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

fn read_inode(path: &Path) -> Option<u64> {
    std::fs::metadata(path).ok().map(|file| file.ino())
}

/// Waits for the lock that serialises opening. The lock ends with the returned file.
fn lock_for_opening(path: &Path) -> io::Result<File> {
    let lock = open_shared_file(path)?;
    let retries = OPEN_LOCK_TIMEOUT.as_millis() / OPEN_LOCK_RETRY_DELAY.as_millis();
    for _ in 0..retries {
        match lock.try_lock() {
            Ok(()) => return Ok(lock),
            Err(TryLockError::WouldBlock) => std::thread::sleep(OPEN_LOCK_RETRY_DELAY),
            Err(TryLockError::Error(e)) => return Err(e),
        }
    }
    Err(io::Error::other("timed out waiting for another process that opens the bus file"))
}

fn to_sqlite_error(error: io::Error) -> rusqlite::Error {
    rusqlite::Error::ToSqlConversionFailure(Box::new(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count_connections(bus: &mut BusFile) -> i64 {
        bus.with(|conn| conn.query_row("SELECT count(*) FROM duly_connection", [], |row| row.get(0))).expect("counts")
    }

    fn insert_connection(bus: &mut BusFile, name: &str) {
        bus.with(|conn| conn.execute("INSERT INTO duly_connection (name, node_id) VALUES (?1, x'00')", [name]))
            .expect("notes");
    }

    #[test]
    fn two_processes_share_a_bus_file_also_after_it_is_recreated() {
        let dir = tempfile::tempdir().expect("a directory");
        let (mut a, mut b) = (BusFile::in_dir(Some(dir.path())), BusFile::in_dir(Some(dir.path())));
        insert_connection(&mut a, "one");
        assert_eq!(count_connections(&mut b), 1);
        std::fs::remove_file(dir.path().join("bus.db")).expect("removes");
        assert_eq!(count_connections(&mut b), 0, "replaced, without the contents of the old WAL");
        insert_connection(&mut a, "two");
        assert_eq!((count_connections(&mut b), a.inode()), (1, b.inode()));
    }

    #[test]
    fn damaged_bus_file_is_recreated() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("bus.db");
        let mut bus = BusFile::in_dir(Some(dir.path()));
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
        let dir = tempfile::tempdir().expect("a directory");
        let mut bus = BusFile::in_dir(Some(dir.path()));
        insert_connection(&mut bus, "one");
        bus.with(|conn| conn.execute("UPDATE duly_meta SET value = 'earlier'", [])).expect("writes");
        drop(bus);
        assert_eq!(count_connections(&mut BusFile::in_dir(Some(dir.path()))), 0);
    }

    #[test]
    fn ordinary_error_keeps_the_bus_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut bus = BusFile::in_dir(Some(dir.path()));
        insert_connection(&mut bus, "one");
        let inode = bus.inode();
        bus.with(|conn| conn.execute("INSERT INTO duly_connection (name, node_id) VALUES ('one', x'00')", []))
            .expect_err("is there");
        assert_eq!((count_connections(&mut bus), bus.inode()), (1, inode));
    }
}
