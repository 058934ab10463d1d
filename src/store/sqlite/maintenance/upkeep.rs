//! Upkeep of the file: grows the WAL once, writes it into the file, and returns free pages to the disk.

use std::path::Path;

use rusqlite::Connection;

use crate::store::sqlite::disk_reserve;
use crate::store::sqlite::file;
use crate::store::sqlite::file_watch::FileWatch;

/// The size to which the WAL is grown once: overwriting is much cheaper to sync than growing.
const WAL_GROWN_BYTES: usize = 8 * 1024 * 1024;
/// With less free space on the disk, the WAL is not grown in advance.
const WAL_GROW_FREE_BYTES_MIN: u64 = 256 * 1024 * 1024;
/// The file is shrunk only if it has at least this many free pages, and they are most of it.
const VACUUM_FREE_PAGES_MIN: i64 = 4_096;
/// The file is shrunk only if it has at most this many pages in use: it is copied under the write lock.
const VACUUM_LIVE_PAGES_MAX: i64 = 8_192;

/// The length of the WAL from which on each commit is followed by a checkpoint, in pages.
const CHECKPOINT_PAGES_MIN: i64 = 1_000;

/// Writes a long WAL into the file. SQLite would do so by itself, but also into a file that was copied over this one.
pub(crate) fn checkpoint_if_long(conn: &Connection, watch: &FileWatch) {
    let run = |sql: &str| {
        let mut checkpoint = conn.prepare_cached(sql)?;
        checkpoint.query_row([], |row| row.get::<_, i64>("log"))
    };
    // This mode only counts pages.
    let is_long = run("PRAGMA wal_checkpoint(NOOP)").is_ok_and(|pages| pages >= CHECKPOINT_PAGES_MIN);
    if is_long && watch.allows_checkpoint() && disk_reserve::has_room_for_checkpoint(conn, watch.path()) {
        // The commits are in the WAL, and the next one tries again.
        if let Err(error) = run("PRAGMA wal_checkpoint(PASSIVE)") {
            tracing::debug!(%error, "a checkpoint failed");
        }
    }
}

/// Returns whether the disk has enough space to grow the WAL of this file.
pub(crate) fn has_disk_room(path: &Path) -> bool {
    file::free_bytes(path) >= WAL_GROW_FREE_BYTES_MIN
}

/// Grows the WAL without a change to the file: a transaction larger than the cache spills into the WAL and is rolled
/// back.
pub(crate) fn grow_wal(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute_batch("PRAGMA cache_size = 16")?;
    let spilled = conn.execute_batch("BEGIN IMMEDIATE").and_then(|()| {
        let sql = "INSERT INTO duly_meta (name, value) VALUES ('growing', CAST(zeroblob(?1) AS TEXT))";
        conn.execute(sql, [WAL_GROWN_BYTES])
    });
    // Fails if SQLite rolled back by itself, or never began.
    let _ = conn.execute_batch("ROLLBACK");
    conn.execute_batch(file::CACHE_PRAGMA)?;
    spilled.map(drop)
}

/// Returns free pages to the disk once they are most of the file, if the file has only tables of duly.
///
/// The cost depends on the pages in use, so it is lowest when the gain is highest.
pub(crate) fn shrink(conn: &Connection) -> rusqlite::Result<()> {
    let number = |sql: &str| conn.query_row(sql, [], |row| row.get::<_, i64>(0));
    let (free, all) = (number("PRAGMA freelist_count")?, number("PRAGMA page_count")?);
    if free < VACUUM_FREE_PAGES_MIN || free < all * 3 / 4 || all - free > VACUUM_LIVE_PAGES_MAX {
        return Ok(());
    }
    let foreign = number(
        "SELECT count(*) FROM sqlite_schema
           WHERE name NOT LIKE 'duly\\_%' ESCAPE '\\' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'",
    )?;
    if foreign > 0 {
        return Ok(());
    }
    conn.execute_batch("VACUUM; PRAGMA wal_checkpoint(PASSIVE);")
}
