//! Facts and warnings about the file, for `duly doctor`.

use std::path::Path;

use rusqlite::Connection;

use crate::clock::{Clock, Micros, micros};
use crate::job::push::ARGS_BYTES_MAX;
use crate::store::sqlite::disk_reserve::DiskSpace;
use crate::store::sqlite::file;
use crate::store::sqlite::file_watch::FileWatch;
use crate::store::sqlite::inbox;
use crate::store::sqlite::inbox::InboxCounts;
use crate::store::{Durability, Health};

/// A clock before 2026-01-01 has not been set.
const CLOCK_MICROS_MIN: i64 = 1_767_225_600_000_000;
/// A WAL of this size means that a reader keeps an old snapshot open.
const WAL_WARNING_BYTES: u64 = 256 * 1024 * 1024;
/// Rows of the inbox usually become jobs at once.
const INBOX_WARNING_AGE: Micros = 60_000_000;
/// With less free space than this many times the reserve, the disk may soon be full.
const DISK_WARNING_RESERVES: u64 = 4;

pub(crate) fn health(
    conn: &Connection,
    watch: Option<&FileWatch>,
    durability: Durability,
    clock: &Clock,
) -> rusqlite::Result<Health> {
    let mut facts = vec![
        ("sqlite".to_owned(), rusqlite::version().to_owned()),
        ("format".to_owned(), file::read_format(conn)?.unwrap_or_default()),
    ];
    let file_problem = watch.and_then(|watch| watch.check().err());
    // The pages of another file would only lead to an error that hides the problem.
    let is_own_file = file_problem.is_none();
    let mut warnings: Vec<String> = file_problem.map(|problem| format!("{problem}.")).into_iter().collect();
    let durability = match watch {
        None => "Jobs are kept in memory only: everything is lost when this process ends.".to_owned(),
        Some(watch) => {
            add_file_facts(conn, watch.path(), &mut facts, &mut warnings)?;
            describe_durability(durability).to_owned()
        }
    };
    let now = clock.now_micros();
    facts.push(("clock_us".to_owned(), now.to_string()));
    if now < CLOCK_MICROS_MIN {
        warnings.push("The machine's clock is years behind. Set it: due times depend on it.".to_owned());
    }
    if is_own_file {
        add_inbox_facts(conn, now, &mut facts, &mut warnings)?;
    }
    let fence: i64 =
        conn.query_row("SELECT value FROM duly_sequence WHERE name = 'last_fence'", [], |row| row.get(0))?;
    if fence > now + micros(std::time::Duration::from_secs(60)) {
        warnings.push(format!(
            "The clock went back by {} s since the last claim. Scheduled jobs start that much later.",
            (fence - now) / 1_000_000
        ));
    }
    Ok(Health { durability, facts, warnings, acl: None })
}

fn add_inbox_facts(
    conn: &Connection,
    now: Micros,
    facts: &mut Vec<(String, String)>,
    warnings: &mut Vec<String>,
) -> rusqlite::Result<()> {
    let InboxCounts { waiting, rejected, oldest_at, first_error } = inbox::count_rows(conn)?;
    facts.push(("inbox_waiting".to_owned(), waiting.to_string()));
    facts.push(("inbox_rejected".to_owned(), rejected.to_string()));
    if let Some(error) = first_error {
        warnings.push(format!(
            "{rejected} rows of duly_inbox cannot become jobs. The oldest: {error}. Correct them and set their error to \
             NULL, or delete them."
        ));
    }
    if oldest_at.is_some_and(|at| now - at > INBOX_WARNING_AGE) {
        warnings.push(format!(
            "{waiting} rows of duly_inbox have waited for more than a minute: no worker runs on this file, or their \
             queue is full."
        ));
    }
    Ok(())
}

/// Describes the failures that a push survives in a store opened with this durability. Each process chooses its own.
fn describe_durability(durability: Durability) -> &'static str {
    match durability {
        Durability::Fsync => {
            "A pushed job survives the crash of any process and a loss of power: \
             every commit is synced to the disk (durability=fsync)."
        }
        Durability::Second => {
            "A pushed job survives the crash of any process; a loss of power may lose the last second: \
             the file is synced once a second (durability=second)."
        }
    }
}

/// Returns a warning if the disk is full or will soon be.
fn disk_warning(space: &DiskSpace) -> Option<String> {
    let mib = |bytes: u64| bytes / 1_048_576;
    let (free, reserve, pending, room) = (mib(space.free), mib(space.reserve), mib(space.pending), space.room());
    if room < ARGS_BYTES_MAX as u64 {
        return Some(format!(
            "The disk has {free} MiB free, so pushes of more than {} KiB are rejected: {reserve} MiB are reserved for \
             settling and removing jobs, and {pending} MiB for the WAL. Free some space.",
            room / 1024
        ));
    }
    let is_low = space.free < space.reserve.saturating_mul(DISK_WARNING_RESERVES);
    is_low.then(|| format!("The disk has {free} MiB free: room for pushes of {} MiB. Free some space.", mib(room)))
}

fn add_file_facts(
    conn: &Connection,
    path: &Path,
    facts: &mut Vec<(String, String)>,
    warnings: &mut Vec<String>,
) -> rusqlite::Result<()> {
    let size = |path: &Path| std::fs::metadata(path).map_or(0, |m| m.len());
    let wal = size(&file::wal_path(path));
    facts.push(("file".to_owned(), path.display().to_string()));
    facts.push(("file_bytes".to_owned(), size(path).to_string()));
    facts.push(("wal_bytes".to_owned(), wal.to_string()));
    for name in ["journal_mode", "page_count", "freelist_count"] {
        let value: rusqlite::types::Value = conn.query_row(&format!("PRAGMA {name}"), [], |row| row.get(0))?;
        let value = match value {
            rusqlite::types::Value::Integer(n) => n.to_string(),
            rusqlite::types::Value::Text(text) => text,
            other => format!("{other:?}"),
        };
        facts.push((name.to_owned(), value));
    }
    if let Some(space) = DiskSpace::read(conn, path)? {
        facts.push(("disk_free_bytes".to_owned(), space.free.to_string()));
        warnings.extend(disk_warning(&space));
    }
    if wal > WAL_WARNING_BYTES {
        warnings.push(format!(
            "The WAL has {} MB: a connection keeps an old snapshot open. End its transaction.",
            wal / 1_048_576
        ));
    }
    Ok(())
}
