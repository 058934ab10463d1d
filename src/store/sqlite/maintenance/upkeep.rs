//! Upkeep of the file itself: its WAL grown once, its free pages given back.

use std::path::Path;

use rusqlite::Connection;

use crate::store::sqlite::file;

/// The WAL is grown to this size once: overwriting is much cheaper to sync than growing.
const WAL_BYTES: usize = 8 * 1024 * 1024;
/// Where less is free on the disk, the WAL is left to grow as it needs.
const WAL_ROOM_BYTES: u64 = 256 * 1024 * 1024;
/// Free pages that make it worth to shrink the file, if they are also most of it.
const VACUUM_PAGES_MIN: i64 = 4_096;
/// Most pages in use for which the file is shrunk: it is copied whole, under the write lock.
const VACUUM_LIVE_PAGES_MAX: i64 = 8_192;

/// Whether the disk has room enough to grow the WAL of this file.
pub(crate) fn is_roomy(path: &Path) -> bool {
    file::free_bytes(path) >= WAL_ROOM_BYTES
}

/// Grows the WAL without changing the file: a transaction larger than the cache spills into the WAL, then is rolled back.
pub(crate) fn grow_wal(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute_batch("PRAGMA cache_size = 16")?;
    let spilled = conn.execute_batch("BEGIN IMMEDIATE").and_then(|()| {
        let sql = "INSERT INTO duly_meta (name, value) VALUES ('growing', CAST(zeroblob(?1) AS TEXT))";
        conn.execute(sql, [WAL_BYTES])
    });
    // Fails if SQLite has rolled back by itself, or never begun.
    let _ = conn.execute_batch("ROLLBACK");
    conn.execute_batch(file::CACHE)?;
    spilled.map(drop)
}

/// Gives free pages back to the disk once they are most of a file that holds nothing but duly's tables.
///
/// The cost follows what is left in the file, so it is small just when it is worth most.
pub(crate) fn shrink(conn: &Connection) -> rusqlite::Result<()> {
    let number = |sql: &str| conn.query_row(sql, [], |row| row.get::<_, i64>(0));
    let (free, all) = (number("PRAGMA freelist_count")?, number("PRAGMA page_count")?);
    if free < VACUUM_PAGES_MIN || free < all * 3 / 4 || all - free > VACUUM_LIVE_PAGES_MAX {
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
