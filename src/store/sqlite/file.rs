//! Opens the file: rejects unsafe paths, sets up the connection, creates or checks the tables.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, TransactionBehavior};

use crate::error::{Error, Result};
use crate::store::open::Durability;
use crate::store::sqlite::errors;

/// The format that this build reads and writes. A newer format is refused.
pub(super) const FORMAT: u32 = 1;
/// The first version of SQLite without the bug that could damage a WAL shared by several connections.
pub(super) const SQLITE_VERSION_MIN: i32 = 3_051_003;
/// How long to wait for the write lock.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// The length of one wait: short and constant, so that no process starves.
const BUSY_RETRY_DELAY: Duration = Duration::from_micros(100);
/// Most prepared statements kept per connection.
const CACHED_STATEMENTS_MAX: usize = 96;

/// The page cache of the writing connection.
pub(super) const CACHE_PRAGMA: &str = "PRAGMA cache_size = -16384";

pub(super) const SCHEMA: &str = include_str!("schema.sql");

/// Returns the path of the file with symbolic links resolved, so that all processes find the same node registry.
pub(super) fn prepare_file(path: &Path) -> Result<PathBuf> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let shown = path.display();
    if !parent.is_dir() {
        return Err(Error::store(
            "open",
            format!("{shown}: the directory {} does not exist; create it first", parent.display()),
        ));
    }
    if path.is_dir() {
        return Err(Error::store("open", format!("{shown} is a directory; name a file in it")));
    }
    reject_network_file_system(path, parent)?;
    // A new file is created here, so that only its owner can read it. An existing file is not opened: closing it would
    // drop all locks that SQLite holds on it for other handles of this process.
    let made = match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
            rustix::fs::access(path, rustix::fs::Access::WRITE_OK).map_err(std::io::Error::from)
        }
        made => made.map(drop),
    };
    if let Err(e) = made {
        return Err(Error::store("open", format!("{shown} cannot be opened for writing: {e}; change its permissions")));
    }
    let real = path.canonicalize().map_err(|e| Error::store("open", format!("{shown}: {e}")))?;
    // A symbolic link may lead from a local disk to a network file system.
    reject_network_file_system(path, real.parent().unwrap_or(&real))?;
    Ok(real)
}

fn reject_network_file_system(path: &Path, dir: &Path) -> Result<()> {
    let Some(system) = network_file_system(dir) else {
        return Ok(());
    };
    let shown = path.display();
    Err(Error::store(
        "open",
        format!(
            "{shown} is on a network file system ({system}), where SQLite's WAL is not safe; \
             put it on a local disk, or use Redis if several machines share work"
        ),
    ))
}

/// Opens the writing connection.
pub(super) fn connect(path: &Path, durability: Durability) -> Result<Connection> {
    if rusqlite::version_number() < SQLITE_VERSION_MIN {
        return Err(Error::store(
            "open",
            format!(
                "SQLite {} can damage files that processes share; build with the bundled SQLite",
                rusqlite::version()
            ),
        ));
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut conn = Connection::open_with_flags(path, flags).map_err(|e| open_error(path, e))?;
    configure(&mut conn, durability).map_err(|e| open_error(path, e))?;
    create_tables(&conn, &path.display().to_string())?;
    sync_recovered(path)?;
    Ok(conn)
}

/// Returns the path of the WAL of a file.
pub(super) fn wal_path(path: &Path) -> PathBuf {
    let mut wal = path.as_os_str().to_owned();
    wal.push("-wal");
    PathBuf::from(wal)
}

/// Returns the free bytes of the disk that holds a file.
pub(super) fn free_bytes(path: &Path) -> u64 {
    rustix::fs::statvfs(path).map_or(0, |disk| disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// Syncs the WAL. A process may have been killed between the write and the sync of a commit. Opening the file recovered
/// that commit, so it must reach the disk before a reader sees it.
fn sync_recovered(path: &Path) -> Result<()> {
    match std::fs::File::open(wal_path(path)).and_then(|wal| wal.sync_data()) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::store("open", format!("{}-wal cannot be synced: {e}", path.display())))
        }
        _ => Ok(()),
    }
}

/// Opens a connection that only reads.
pub(super) fn connect_read_only(path: &Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut conn = Connection::open_with_flags(path, flags).map_err(|e| open_error(path, e))?;
    conn.busy_handler(Some(wait_while_busy)).map_err(|e| open_error(path, e))?;
    conn.set_prepared_statement_cache_capacity(CACHED_STATEMENTS_MAX);
    conn.execute_batch("PRAGMA query_only = ON; PRAGMA trusted_schema = OFF; PRAGMA cache_size = -4096;")
        .map_err(|e| open_error(path, e))?;
    Ok(conn)
}

/// Opens a store in memory. It ends with its connection.
pub(super) fn connect_in_memory() -> Result<Connection> {
    let conn = Connection::open_in_memory().map_err(|e| errors::from_sqlite("open", e))?;
    enable_statement_cache(&conn).map_err(|e| errors::from_sqlite("open", e))?;
    create_tables(&conn, ":memory:")?;
    Ok(conn)
}

fn open_error(path: &Path, error: rusqlite::Error) -> Error {
    match errors::from_sqlite("open", error) {
        Error::Store { op, reason, source } => {
            Error::Store { op, reason: format!("{}: {reason}", path.display()), source }
        }
        other => other,
    }
}

/// Keeps statements prepared for all values: the query plans of duly do not depend on bound values.
pub(super) fn enable_statement_cache(conn: &Connection) -> rusqlite::Result<()> {
    conn.set_prepared_statement_cache_capacity(CACHED_STATEMENTS_MAX);
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map(drop)
}

fn configure(conn: &mut Connection, durability: Durability) -> rusqlite::Result<()> {
    conn.busy_handler(Some(wait_while_busy))?;
    enable_statement_cache(conn)?;
    switch_to_wal(conn)?;
    let synchronous = match durability {
        Durability::Fsync => "FULL",
        Durability::Second => "NORMAL",
    };
    conn.execute_batch(&format!(
        "PRAGMA synchronous = {synchronous};
         PRAGMA wal_autocheckpoint = 1000;
         PRAGMA journal_size_limit = 16777216;
         {CACHE_PRAGMA};
         PRAGMA temp_store = MEMORY;
         PRAGMA trusted_schema = OFF;
         PRAGMA cell_size_check = ON;"
    ))
}

/// Switches the file to WAL. The switch needs exclusive access and ignores the busy handler, so it is retried here.
pub(super) fn switch_to_wal(conn: &Connection) -> rusqlite::Result<()> {
    let mut turn = 0;
    loop {
        match conn.query_row("PRAGMA journal_mode = WAL", [], |row| row.get::<_, String>(0)) {
            Ok(mode) if mode == "wal" => return Ok(()),
            Ok(mode) => {
                let reason =
                    format!("this file system allows only the journal mode {mode}; put the file on a local disk");
                return Err(rusqlite::Error::ToSqlConversionFailure(reason.into()));
            }
            Err(e) if e.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) && wait_while_busy(turn) => turn += 1,
            Err(e) => return Err(e),
        }
    }
}

/// The busy handler: sleeps for a short, constant time. Returns false after the timeout.
pub(super) fn wait_while_busy(turn: i32) -> bool {
    std::thread::sleep(BUSY_RETRY_DELAY);
    // A sleep takes about 50 us longer than requested.
    BUSY_RETRY_DELAY.saturating_mul(turn.unsigned_abs()) * 3 / 2 < BUSY_TIMEOUT
}

/// Creates the tables, or checks that this build can use the existing ones.
fn create_tables(conn: &Connection, shown: &str) -> Result<()> {
    let made = || -> rusqlite::Result<Option<String>> {
        let tx = rusqlite::Transaction::new_unchecked(conn, TransactionBehavior::Immediate)?;
        let exists: bool = tx.query_row(
            "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'duly_meta')",
            [],
            |row| row.get(0),
        )?;
        if exists {
            return read_format(&tx);
        }
        tx.execute_batch(SCHEMA)?;
        tx.execute_batch(&format!(
            "INSERT INTO duly_meta (name, value) VALUES ('format', '{FORMAT}'), ('created_by', 'duly {}');
             INSERT INTO duly_sequence (name, value)
             VALUES ('next_number', 1), ('last_fence', 0), ('removed_id_table', 0), ('removed_id_swapped_at', 0);",
            env!("CARGO_PKG_VERSION")
        ))?;
        tx.commit()?;
        Ok(Some(FORMAT.to_string()))
    };
    let format = made().map_err(|e| open_error(Path::new(shown), e))?.unwrap_or_default();
    match format.parse::<u32>() {
        Ok(FORMAT) => Ok(()),
        Ok(newer) if newer > FORMAT => Err(Error::store(
            "open",
            format!(
                "{shown} has format {newer}, but this build of duly knows formats up to {FORMAT}; use a newer duly"
            ),
        )),
        _ => Err(Error::store(
            "open",
            format!("{shown} has tables of duly in the unknown format {format:?}; restore a backup"),
        )),
    }
}

/// Returns the format of the tables in a file.
pub(super) fn read_format(conn: &Connection) -> rusqlite::Result<Option<String>> {
    conn.query_row("SELECT value FROM duly_meta WHERE name = 'format'", [], |row| row.get(0)).optional()
}

#[cfg(target_os = "linux")]
fn network_file_system(dir: &Path) -> Option<&'static str> {
    let magic = rustix::fs::statfs(dir).ok()?.f_type;
    // The type differs between machines, and the number may be sign-extended.
    #[allow(clippy::useless_conversion, reason = "useless on this machine only")]
    network_file_system_name(i64::try_from(magic).ok()? & 0xffff_ffff)
}

#[cfg(not(target_os = "linux"))]
fn network_file_system(_dir: &Path) -> Option<&'static str> {
    None
}

/// Returns the name of a network file system by its statfs(2) number.
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "statfs has no such number elsewhere"))]
fn network_file_system_name(magic: i64) -> Option<&'static str> {
    Some(match magic {
        0x6969 => "NFS",
        0x517b | 0xfe53_4d42 | 0xff53_4d42 => "SMB",
        0x0102_1997 => "9P",
        0x00c3_6400 => "Ceph",
        0x5346_414f => "AFS",
        0x7375_7245 => "Coda",
        0x0bd0_0bd0 => "Lustre",
        0x0116_1970 => "GFS2",
        0x7461_636f => "OCFS2",
        0x6573_5546 => "FUSE",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bundled_sqlite_has_no_wal_reset_bug() {
        assert!(rusqlite::version_number() >= SQLITE_VERSION_MIN, "{}", rusqlite::version());
    }

    #[test]
    fn network_file_systems_are_recognized_by_magic_number() {
        assert_eq!(network_file_system_name(0x6969), Some("NFS"));
        assert_eq!(network_file_system_name(0xff53_4d42), Some("SMB"));
        assert_eq!(network_file_system_name(0xef53), None, "ext4 is local");
        assert_eq!(network_file_system_name(0x0102_1994), None, "tmpfs is local");
    }
}
