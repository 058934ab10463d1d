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
use crate::store::sqlite::nodes::slots::{new_file, shared_file};

const SCHEMA: &str = include_str!("bus.sql");
/// Most pages of 4 KiB. If the file is full, the oldest messages are deleted.
const PAGES_MAX: u32 = 65_536;
/// How long to wait for another process that opens or replaces the file.
const TURN: Duration = Duration::from_secs(1);
const TURN_STEP: Duration = Duration::from_millis(1);

/// The bus, as used by one thread.
pub(crate) struct BusFile {
    /// `None` for a store in memory.
    path: Option<PathBuf>,
    open: Option<Open>,
}

struct Open {
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
        let open = self.current(None)?;
        match run(&open.conn) {
            Err(error) if is_damage(&error) => {
                let damaged = open.inode;
                tracing::warn!(%error, "the bus file is damaged; replacing it");
                run(&self.current(Some(damaged))?.conn)
            }
            done => done,
        }
    }

    /// Opens the current file at the path, but never the damaged one.
    fn current(&mut self, damaged: Option<u64>) -> rusqlite::Result<&mut Open> {
        let Some(path) = &self.path else {
            return match &mut self.open {
                Some(open) => Ok(open),
                none => Ok(none.insert(in_memory()?)),
            };
        };
        let stands = inode_of(path);
        let open = match self.open.take() {
            Some(open) if Some(open.inode) == stands && damaged.is_none() => open,
            _ => open(path, damaged)?,
        };
        Ok(self.open.insert(open))
    }
}

fn in_memory() -> rusqlite::Result<Open> {
    let conn = Connection::open_in_memory()?;
    conn.execute_batch(SCHEMA)?;
    Ok(Open { conn, inode: 0 })
}

/// Returns whether a new file would help: the file is damaged, or lacks tables. Other errors are temporary, or concern
/// only this process.
fn is_damage(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error_code();
    matches!(code, Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase | ErrorCode::Unknown))
}

/// Opens the file. Creates it if it is missing, damaged, or from an earlier start of the machine. Only one process does
/// this at a time, so that none removes a file that another starts to use.
fn open(path: &Path, damaged: Option<u64>) -> rusqlite::Result<Open> {
    let _turn = turn(&path.with_extension("lock")).map_err(told)?;
    let stands = inode_of(path);
    if stands.is_some() && stands != damaged {
        match connect(path).and_then(|conn| is_ours(&conn).map(|ours| ours.then_some(conn))) {
            Ok(Some(conn)) => return Ok(Open { conn, inode: inode_of(path).unwrap_or(0) }),
            Err(error) if !is_damage(&error) => return Err(error),
            _ => {}
        }
    }
    make(path)
}

fn make(path: &Path) -> rusqlite::Result<Open> {
    // SQLite would apply a leftover WAL to the new file.
    for end in ["", "-wal", "-shm"] {
        let mut name = path.as_os_str().to_owned();
        name.push(end);
        match std::fs::remove_file(&name) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(told(e)),
            _ => {}
        }
    }
    new_file(path).map_err(told)?;
    let conn = connect(path)?;
    conn.execute_batch(&format!("BEGIN IMMEDIATE; {SCHEMA}"))?;
    conn.execute("INSERT INTO duly_meta (name, value) VALUES ('boot_id', ?1)", [start_of_machine()])?;
    conn.execute_batch("COMMIT")?;
    Ok(Open { conn, inode: inode_of(path).unwrap_or(0) })
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut conn = Connection::open_with_flags(path, flags)?;
    conn.busy_handler(Some(file::wait))?;
    file::keep_statements(&conn)?;
    file::to_wal(&conn)?;
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

fn is_ours(conn: &Connection) -> rusqlite::Result<bool> {
    let start: Option<String> =
        conn.query_row("SELECT value FROM duly_meta WHERE name = 'boot_id'", [], |row| row.get(0)).optional()?;
    Ok(start == Some(start_of_machine()))
}

/// Returns a text that changes with each start of the machine; empty if the system has none.
fn start_of_machine() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

fn inode_of(path: &Path) -> Option<u64> {
    std::fs::metadata(path).ok().map(|file| file.ino())
}

/// Waits for the lock that serialises opening. The lock ends with the returned file.
fn turn(path: &Path) -> io::Result<File> {
    let lock = shared_file(path)?;
    let steps = TURN.as_millis() / TURN_STEP.as_millis();
    for _ in 0..steps {
        match lock.try_lock() {
            Ok(()) => return Ok(lock),
            Err(TryLockError::WouldBlock) => std::thread::sleep(TURN_STEP),
            Err(TryLockError::Error(e)) => return Err(e),
        }
    }
    Err(io::Error::other("timed out waiting for another process that opens the bus file"))
}

fn told(error: io::Error) -> rusqlite::Error {
    rusqlite::Error::ToSqlConversionFailure(Box::new(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(bus: &mut BusFile) -> i64 {
        bus.with(|conn| conn.query_row("SELECT count(*) FROM duly_connection", [], |row| row.get(0))).expect("counts")
    }

    fn note(bus: &mut BusFile, name: &str) {
        bus.with(|conn| conn.execute("INSERT INTO duly_connection (name, node_id) VALUES (?1, x'00')", [name]))
            .expect("notes");
    }

    #[test]
    fn two_share_a_file_and_follow_when_it_is_made_anew() {
        let dir = tempfile::tempdir().expect("a directory");
        let (mut a, mut b) = (BusFile::in_dir(Some(dir.path())), BusFile::in_dir(Some(dir.path())));
        note(&mut a, "one");
        assert_eq!(count(&mut b), 1);
        std::fs::remove_file(dir.path().join("bus.db")).expect("removes");
        assert_eq!(count(&mut b), 0, "replaced, without the contents of the old WAL");
        note(&mut a, "two");
        assert_eq!((count(&mut b), a.inode()), (1, b.inode()));
    }

    #[test]
    fn a_damaged_file_is_made_anew() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("bus.db");
        let mut bus = BusFile::in_dir(Some(dir.path()));
        std::fs::write(&path, "x".repeat(10_000)).expect("writes");
        note(&mut bus, "one");
        assert_eq!(count(&mut bus), 1);
        // A table disappears while the file is open.
        bus.with(|conn| conn.execute_batch("DROP TABLE duly_connection")).expect("drops");
        note(&mut bus, "two");
        assert_eq!(count(&mut bus), 1);
    }

    #[test]
    fn a_file_of_an_earlier_start_of_the_machine_is_thrown_away() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut bus = BusFile::in_dir(Some(dir.path()));
        note(&mut bus, "one");
        bus.with(|conn| conn.execute("UPDATE duly_meta SET value = 'earlier'", [])).expect("writes");
        drop(bus);
        assert_eq!(count(&mut BusFile::in_dir(Some(dir.path()))), 0);
    }

    #[test]
    fn an_error_that_passes_harms_no_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut bus = BusFile::in_dir(Some(dir.path()));
        note(&mut bus, "one");
        let inode = bus.inode();
        bus.with(|conn| conn.execute("INSERT INTO duly_connection (name, node_id) VALUES ('one', x'00')", []))
            .expect_err("is there");
        assert_eq!((count(&mut bus), bus.inode()), (1, inode));
    }
}
