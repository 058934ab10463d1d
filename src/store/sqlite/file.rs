//! Opens the file: rejects unsafe paths, sets up the connection, creates or checks the tables.

use std::cell::Cell;
use std::fs::OpenOptions;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, TransactionBehavior};
use tokio::time::Instant;
use uuid::Uuid;

use crate::clock::monotonic_now;
use crate::error::{Error, Result};
use crate::node::DEFAULT_LEASE;
use crate::store::open::Durability;
use crate::store::sqlite::nodes::directory::{FileId, NodesDir};
use crate::store::sqlite::{errors, file_watch, opening};

/// The format that this build reads and writes. A newer format is refused.
pub(super) const FORMAT: u32 = 1;
/// The first version of SQLite without the bug that could damage a WAL shared by several connections.
pub(super) const SQLITE_VERSION_MIN: i32 = 3_051_003;
/// How long to wait for the write lock.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// The length of one wait: short and constant, so that no process starves.
const BUSY_RETRY_DELAY: Duration = Duration::from_micros(100);
/// Most turns of one wait: more than fit into the timeout.
const BUSY_TURNS_MAX: i32 = 50_000;
/// Most prepared statements kept per connection.
const CACHED_STATEMENTS_MAX: usize = 96;

/// Flags of every connection. The path has no symbolic link, so SQLite need not follow one.
pub(super) const OPEN_FLAGS: OpenFlags =
    OpenFlags::SQLITE_OPEN_READ_WRITE.union(OpenFlags::SQLITE_OPEN_NO_MUTEX).union(OpenFlags::SQLITE_OPEN_NOFOLLOW);

/// The page cache of the writing connection.
pub(super) const CACHE_PRAGMA: &str = "PRAGMA cache_size = -16384";

pub(super) const SCHEMA: &str = include_str!("schema.sql");

/// Removes a file that was created for a store that is then refused. No process uses an empty file.
pub(super) fn remove_if_empty(path: &Path) {
    if std::fs::metadata(path).is_ok_and(|file| file.len() == 0) {
        // The refusal is the error to report.
        let _ = std::fs::remove_file(path);
    }
}

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
    reject_second_name(&real)?;
    Ok(real)
}

/// Rejects a file that other processes may know by another name: they would use another WAL and another `FILE-nodes`.
fn reject_second_name(path: &Path) -> Result<()> {
    let names = std::fs::metadata(path).map_or(1, |file| file.nlink());
    if names > 1 {
        return Err(Error::store("open", file_watch::hard_link_problem(path, names)));
    }
    if is_mount_point(path) {
        return Err(Error::store(
            "open",
            format!(
                "{} is mounted by itself, so its WAL and {} are not shared with the other side of the mount; \
                 mount its directory instead",
                path.display(),
                NodesDir::path_of(path).display()
            ),
        ));
    }
    Ok(())
}

#[cfg(target_os = "linux")]
fn is_mount_point(path: &Path) -> bool {
    use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags};
    rustix::fs::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS)
        .is_ok_and(|file| file.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// Only Linux mounts single files.
#[cfg(not(target_os = "linux"))]
fn is_mount_point(_path: &Path) -> bool {
    false
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
    let mut conn = Connection::open_with_flags(path, OPEN_FLAGS).map_err(|e| open_error(path, e))?;
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

/// Returns the path of the index of the WAL, which the processes share in memory.
pub(super) fn shm_path(path: &Path) -> PathBuf {
    let mut shm = path.as_os_str().to_owned();
    shm.push("-shm");
    PathBuf::from(shm)
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
    let mut conn = Connection::open_with_flags(path, OPEN_FLAGS).map_err(|e| open_error(path, e))?;
    conn.busy_handler(Some(wait_while_busy)).map_err(|e| open_error(path, e))?;
    conn.set_prepared_statement_cache_capacity(CACHED_STATEMENTS_MAX);
    enable_defensive_mode(&conn).map_err(|e| open_error(path, e))?;
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

pub(super) fn open_error(path: &Path, error: rusqlite::Error) -> Error {
    match errors::from_file("open", path, error) {
        Error::Store { op, reason, cause } => {
            Error::Store { op, reason: format!("{}: {reason}", path.display()), cause }
        }
        other => other,
    }
}

/// Keeps statements prepared for all values: the query plans of duly do not depend on bound values.
pub(super) fn enable_statement_cache(conn: &Connection) -> rusqlite::Result<()> {
    conn.set_prepared_statement_cache_capacity(CACHED_STATEMENTS_MAX);
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map(drop)
}

/// Forbids statements that can damage the file, such as writes to the schema table.
pub(super) fn enable_defensive_mode(conn: &Connection) -> rusqlite::Result<()> {
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true).map(drop)
}

fn configure(conn: &mut Connection, durability: Durability) -> rusqlite::Result<()> {
    conn.busy_handler(Some(wait_while_busy))?;
    enable_statement_cache(conn)?;
    enable_defensive_mode(conn)?;
    switch_to_wal(conn)?;
    let synchronous = match durability {
        Durability::Fsync => "FULL",
        Durability::Second => "NORMAL",
    };
    conn.execute_batch(&format!(
        "PRAGMA synchronous = {synchronous};
         PRAGMA wal_autocheckpoint = 0;
         PRAGMA journal_size_limit = 16777216;
         {CACHE_PRAGMA};
         PRAGMA temp_store = MEMORY;
         PRAGMA trusted_schema = OFF;
         PRAGMA fullfsync = ON;
         PRAGMA checkpoint_fullfsync = ON;
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

/// The busy handler: sleeps for a short, constant time. Returns false after the timeout. A wait begins with turn 0.
pub(super) fn wait_while_busy(turn: i32) -> bool {
    wait_turn(turn, BUSY_TIMEOUT)
}

fn wait_turn(turn: i32, timeout: Duration) -> bool {
    thread_local! {
        /// When the wait of this thread began.
        static WAITING_SINCE: Cell<Option<Instant>> = const { Cell::new(None) };
    }
    let now = monotonic_now();
    if turn == 0 {
        WAITING_SINCE.set(Some(now));
    }
    // On a busy machine a sleep takes far longer than requested, so the turns do not tell the time.
    if now - WAITING_SINCE.get().unwrap_or(now) >= timeout || turn >= BUSY_TURNS_MAX {
        return false;
    }
    std::thread::sleep(BUSY_RETRY_DELAY);
    true
}

/// Creates the tables, or checks that this build can use the existing ones.
fn create_tables(conn: &Connection, shown: &str) -> Result<()> {
    let made = || -> rusqlite::Result<Option<String>> {
        // Beside a process that was stopped in a transaction, an existing file can still be read.
        if has_tables(conn)? {
            return read_format(conn);
        }
        let tx = rusqlite::Transaction::new_unchecked(conn, TransactionBehavior::Immediate)?;
        if has_tables(&tx)? {
            return read_format(&tx);
        }
        tx.execute_batch(SCHEMA)?;
        tx.execute_batch(&format!(
            "INSERT INTO duly_meta (name, value)
             VALUES ('format', '{FORMAT}'), ('created_by', 'duly {}'), ('store_id', '{}'), ('directory', '{}');
             INSERT INTO duly_sequence (name, value)
             VALUES ('next_number', 1), ('last_fence', 0), ('removed_id_table', 0), ('removed_id_swapped_at', 0),
               ('removed_queues', 0);",
            env!("CARGO_PKG_VERSION"),
            Uuid::new_v4(),
            opening::format_directory_use(FileId::at(Path::new(shown)).map_or(0, |id| id.inode), DEFAULT_LEASE)
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

/// Returns whether the tables exist. They are created in one transaction.
fn has_tables(conn: &Connection) -> rusqlite::Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'duly_meta')";
    conn.query_row(sql, [], |row| row.get(0))
}

/// Returns the format of the tables in a file.
pub(super) fn read_format(conn: &Connection) -> rusqlite::Result<Option<String>> {
    conn.query_row("SELECT value FROM duly_meta WHERE name = 'format'", [], |row| row.get(0)).optional()
}

/// Returns the id of the store in a file. A backup gets an id of its own.
pub(super) fn read_store_id(conn: &Connection) -> rusqlite::Result<Option<String>> {
    conn.query_row("SELECT value FROM duly_meta WHERE name = 'store_id'", [], |row| row.get(0)).optional()
}

/// Makes a copy a store of its own.
pub(super) fn renew_store_id(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute("UPDATE duly_meta SET value = ?1 WHERE name = 'store_id'", [Uuid::new_v4().to_string()])?;
    conn.execute("DELETE FROM duly_meta WHERE name = 'directory'", []).map(drop)
}

#[cfg(target_os = "linux")]
fn network_file_system(dir: &Path) -> Option<&'static str> {
    let magic = rustix::fs::statfs(dir).ok()?.f_type;
    #[allow(clippy::useless_conversion, reason = "the type differs between machines")]
    network_file_system_name(i64::try_from(magic).ok()?)
}

#[cfg(target_vendor = "apple")]
fn network_file_system(dir: &Path) -> Option<&'static str> {
    name_without_local_flag(rustix::fs::statfs(dir).ok()?.f_flags)
}

#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
fn network_file_system(_dir: &Path) -> Option<&'static str> {
    None
}

/// Returns a name for a file system whose flags of macOS's statfs(2) do not say that it is on this machine.
#[cfg(any(test, target_vendor = "apple"))]
fn name_without_local_flag(flags: u32) -> Option<&'static str> {
    /// `MNT_LOCAL`.
    const LOCAL: u32 = 0x1000;
    (flags & LOCAL == 0).then_some("not local")
}

/// Returns the name of a network file system by its number in Linux's statfs(2), which may be sign-extended.
#[cfg(any(test, target_os = "linux"))]
fn network_file_system_name(magic: i64) -> Option<&'static str> {
    Some(match magic & 0xffff_ffff {
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

    /// `./check docs` also builds SQLite without the flags of `.cargo/config.toml`, as in the programs of users.
    #[test]
    fn sqlite_has_the_compile_options_of_this_build() {
        let conn = Connection::open_in_memory().expect("opens");
        let mut query = conn.prepare("PRAGMA compile_options").expect("is known");
        let options: rusqlite::Result<Vec<String>> = query.query_map([], |row| row.get(0)).expect("runs").collect();
        let options = options.expect("are texts");
        println!("{}", options.join(" "));
        if std::env::var_os("DULY_TEST_PLAIN_SQLITE").is_some() {
            let has = |name: &str| options.iter().any(|option| option == name);
            assert!(has("ENABLE_STAT4") && !has("DQS=0"), "the flags of .cargo/config.toml apply: {options:?}");
        }
    }

    #[test]
    fn busy_wait_ends_after_its_timeout_however_long_each_turn_takes() {
        let (timeout, started) = (Duration::from_millis(200), monotonic_now());
        assert!(wait_turn(0, timeout));
        let slow_turn = |turn: &i32| {
            std::thread::sleep(Duration::from_millis(20));
            wait_turn(*turn, timeout)
        };
        let turns = (1..BUSY_TURNS_MAX).take_while(slow_turn).count();
        assert!(turns <= 10, "a turn takes at least 20 ms: {turns} turns");
        assert!(started.elapsed() >= timeout);
        assert!(wait_turn(0, timeout), "a new wait begins");
    }

    #[test]
    fn schema_cannot_be_overwritten() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = prepare_file(&dir.path().join("duly.db")).expect("a new file");
        let conn = connect(&path, Durability::Fsync).expect("opens");
        let overwrite = "PRAGMA writable_schema = ON; UPDATE sqlite_schema SET sql = '' WHERE name = 'duly_job'";
        conn.execute_batch(overwrite).expect_err("is refused");
        let reader = connect_read_only(&path).expect("opens");
        for conn in [conn, reader] {
            assert!(conn.db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE).expect("reads"));
        }
    }

    #[test]
    fn network_file_systems_are_recognized_by_magic_number() {
        assert_eq!(network_file_system_name(0x6969), Some("NFS"));
        assert_eq!(network_file_system_name(0xff53_4d42), Some("SMB"));
        assert_eq!(network_file_system_name(i64::from(0xff53_4d42_u32 as i32)), Some("SMB"), "sign-extended");
        assert_eq!(network_file_system_name(0xef53), None, "ext4 is local");
        assert_eq!(network_file_system_name(0x0102_1994), None, "tmpfs is local");
    }

    #[test]
    fn file_system_of_macos_without_the_local_flag_is_a_network() {
        assert_eq!(name_without_local_flag(0x0480_9218), None, "APFS");
        assert_eq!(name_without_local_flag(0x0000_0018), Some("not local"), "NFS");
    }
}
