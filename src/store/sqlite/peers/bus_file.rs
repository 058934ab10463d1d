//! The file of the bus, `FILE-nodes/bus.db`: opened, checked, and made anew whenever it is not what it should be.
//!
//! It is never synced. After a loss of power it may hold anything, so a file from an earlier start of the machine is thrown away.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension};

use crate::store::sqlite::file;
use crate::store::sqlite::nodes::slots::{new_file, shared_file};

const SCHEMA: &str = include_str!("bus.sql");
/// Most pages of 4 KiB: what does not fit takes the place of the oldest messages.
const PAGES_MAX: u32 = 65_536;
/// How long to wait for somebody else who opens the file or makes it anew.
const TURN: Duration = Duration::from_secs(1);
const TURN_STEP: Duration = Duration::from_millis(1);

/// The bus as one thread uses it.
pub(crate) struct BusFile {
    /// `None` beside a store in memory.
    path: Option<PathBuf>,
    open: Option<Open>,
}

struct Open {
    conn: Connection,
    inode: u64,
}

impl BusFile {
    /// The bus in this directory, or one in memory. It is opened at its first use.
    pub(crate) fn in_dir(dir: Option<&Path>) -> Self {
        BusFile { path: dir.map(|dir| dir.join("bus.db")), open: None }
    }

    /// Names the file that is open: another one after it was made anew.
    pub(crate) fn inode(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| open.inode)
    }

    /// Runs something on the bus. If the file turns out to be damaged it is made anew, and `run` called once more.
    pub(crate) fn with<T>(&mut self, mut run: impl FnMut(&Connection) -> rusqlite::Result<T>) -> rusqlite::Result<T> {
        let open = self.current(None)?;
        match run(&open.conn) {
            Err(error) if is_damage(&error) => {
                let damaged = open.inode;
                tracing::warn!(%error, "the bus beside the file is damaged; it is made anew");
                run(&self.current(Some(damaged))?.conn)
            }
            done => done,
        }
    }

    /// The file that stands at the path now, opened; never the damaged one.
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

/// What a new file can mend: it is damaged, or has not the tables that it should have.
/// Everything else passes, or is a trouble of this process, which others must not suffer for.
fn is_damage(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error_code();
    matches!(code, Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase | ErrorCode::Unknown))
}

/// Opens the file, and makes it if it is not there, not from this start of the machine, or damaged. One process at a time:
/// nobody must take away the files beside it while another begins to use them.
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
    // A WAL that is left of another file would be taken for this one's.
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

/// Another text after each start of the machine, where there is such a thing.
fn start_of_machine() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

fn inode_of(path: &Path) -> Option<u64> {
    std::fs::metadata(path).ok().map(|file| file.ino())
}

/// Waits for the lock that openers take turns by; it goes with the file that is given.
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
    Err(io::Error::other("another process does not get done with opening the bus"))
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
        assert_eq!(count(&mut b), 0, "made anew, without what the old WAL holds");
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
        // While it is open: a table is gone.
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
