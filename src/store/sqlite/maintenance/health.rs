//! Facts and warnings about the file, for `duly doctor`.

use std::path::Path;

use rusqlite::Connection;

use crate::clock::{Clock, micros};
use crate::store::sqlite::file;
use crate::store::{Durability, Health};

/// A clock before 2026-01-01 has not been set.
const CLOCK_MICROS_MIN: i64 = 1_767_225_600_000_000;
/// A WAL of this size means that a reader keeps an old snapshot open.
const WAL_WARNING_BYTES: u64 = 256 * 1024 * 1024;

pub(crate) fn health(
    conn: &Connection,
    path: Option<&Path>,
    durability: Durability,
    clock: &Clock,
) -> rusqlite::Result<Health> {
    let mut facts = vec![
        ("sqlite".to_owned(), rusqlite::version().to_owned()),
        ("format".to_owned(), file::read_format(conn)?.unwrap_or_default()),
    ];
    let mut warnings = Vec::new();
    let durability = match path {
        None => "Jobs are kept in memory only: everything is lost when this process ends.".to_owned(),
        Some(path) => {
            add_file_facts(conn, path, &mut facts, &mut warnings)?;
            describe_durability(durability).to_owned()
        }
    };
    let now = clock.now_micros();
    facts.push(("clock_us".to_owned(), now.to_string()));
    if now < CLOCK_MICROS_MIN {
        warnings.push("The machine's clock is years behind. Set it: due times depend on it.".to_owned());
    }
    let fence: i64 =
        conn.query_row("SELECT value FROM duly_sequence WHERE name = 'last_fence'", [], |row| row.get(0))?;
    if fence > now + micros(std::time::Duration::from_secs(60)) {
        warnings.push(format!(
            "The clock went back by {} s since the last claim. Scheduled jobs are late by the same time.",
            (fence - now) / 1_000_000
        ));
    }
    Ok(Health { durability, facts, warnings, acl: None })
}

/// Describes what a push survives through a store opened with this durability. Each process chooses its own.
fn describe_durability(durability: Durability) -> &'static str {
    match durability {
        Durability::Fsync => {
            "A pushed job survives the crash of any process and a loss of power: \
             every commit is synced to the disk (durability=fsync)."
        }
        Durability::Second => {
            "A pushed job survives the crash of any process; a loss of power may cost the last second: \
             the file is synced once a second (durability=second)."
        }
    }
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
    if wal > WAL_WARNING_BYTES {
        warnings.push(format!(
            "The WAL has {} MB: a connection keeps an old snapshot open. End its transaction.",
            wal / 1_048_576
        ));
    }
    Ok(())
}
