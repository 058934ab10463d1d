//! Opening a file that may have been replaced, or whose directory `FILE-nodes` may have been deleted.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension};

use crate::clock::micros;
use crate::error::{Error, Result};
use crate::store::open::StoreOptions;
use crate::store::sqlite::file_watch::{FileWatch, read_store_id_of_file};
use crate::store::sqlite::nodes::directory::{FileId, NodesDir};
use crate::store::sqlite::nodes::identity::{IDENTITY_FILE, Identity};
use crate::store::sqlite::nodes::registry::NodeRegistry;
use crate::store::sqlite::nodes::slots::SharedSlots;
use crate::store::sqlite::{errors, file};

/// Checks before the file is opened that `FILE-nodes` belongs to it. Opening a file next to the WAL of another one would
/// damage it.
pub(super) fn check_identity(path: &Path) -> Result<()> {
    let nodes_path = NodesDir::path_of(path);
    if std::fs::symlink_metadata(&nodes_path).is_err() {
        return Ok(());
    }
    let to_error = |e| errors::from_registry("open", nodes_path.display(), e);
    let dir = NodesDir::open(path).map_err(to_error)?;
    let Some(known) = dir.read_text(IDENTITY_FILE).and_then(|text| Identity::parse(&text)) else {
        return Ok(());
    };
    let inode = FileId::at(path).map_or(0, |id| id.inode);
    // A new file often gets the inode of a deleted one.
    let is_empty = std::fs::metadata(path).is_ok_and(|file| file.len() == 0);
    let has_other_contents = || is_empty || read_store_id_of_file(path).is_some_and(|id| id != known.store_id);
    if known.store_id.is_empty() || (inode == known.file_inode && !has_other_contents()) {
        return Ok(());
    }
    let shown = path.display();
    let slots = SharedSlots::open_existing(path, 0).map_err(to_error)?;
    let pids = slots.map_or_else(Vec::new, |slots| slots.living_pids());
    if !pids.is_empty() {
        let reason = format!(
            "{shown} was replaced while processes still use the file that was there before ({}); \
             stop them, put the right file in place, and start them again",
            pids.iter().map(|pid| format!("process {pid}")).collect::<Vec<_>>().join(", ")
        );
        return Err(Error::store("open", reason));
    }
    let wal = file::wal_path(path);
    let has_wal = std::fs::metadata(&wal).is_ok_and(|file| file.len() > 0);
    if has_wal && FileId::at(&wal).is_some_and(|id| id.inode == known.wal_inode) {
        let (wal, shm) = (wal.display(), file::shm_path(path).display().to_string());
        let reason = if is_empty {
            format!(
                "{shown} was deleted or moved, but {wal} still has its last commits; \
                 move the file back, or remove {wal} and {shm} to start with an empty file"
            )
        } else {
            format!(
                "{shown} was replaced, but {wal} belongs to the file that was there before and would damage it; \
                 remove that and {shm}, or remove {} if they came with the file",
                nodes_path.display()
            )
        };
        return Err(Error::store("open", reason));
    }
    Ok(())
}

/// Opens the node registry of a file. If its directory was deleted, nodes that used it may be alive.
pub(super) fn open_registry(conn: &Connection, path: &Path, options: &StoreOptions) -> Result<NodeRegistry> {
    let use_error = |e| file::open_error(path, e);
    let inode = FileId::at(path).map_or(0, |id| id.inode);
    let (was_used, lease_max) = record_directory_use(conn, inode, options.lease).map_err(use_error)?;
    NodeRegistry::open(path, options.clock.clone(), lease_max, was_used)
        .map_err(|e| errors::from_registry("open", NodesDir::path_of(path).display(), e))
}

/// Returns the record that a file with this inode is used with a directory `FILE-nodes`.
pub(super) fn format_directory_use(inode: u64, lease_max: Duration) -> String {
    format!("{inode} {}", micros(lease_max))
}

/// Records in the file that it is used with a directory `FILE-nodes`. A new file has that record. Returns whether nodes
/// have held jobs or locks with the directory, and their longest lease. In a copy of the file, they have not: it has
/// another inode.
fn record_directory_use(conn: &Connection, inode: u64, lease: Duration) -> rusqlite::Result<(bool, Duration)> {
    let stored: Option<String> =
        conn.query_row("SELECT value FROM duly_meta WHERE name = 'directory'", [], |row| row.get(0)).optional()?;
    let known_lease = stored.as_deref().and_then(|text| {
        let (known_inode, micros) = text.split_once(' ')?;
        (known_inode.parse() == Ok(inode)).then_some(Duration::from_micros(micros.parse().ok()?))
    });
    let lease_max = known_lease.map_or(lease, |known| known.max(lease));
    if known_lease != Some(lease_max) {
        let sql = "INSERT OR REPLACE INTO duly_meta (name, value) VALUES ('directory', ?1)";
        conn.execute(sql, [format_directory_use(inode, lease_max)])?;
    }
    let sql = "SELECT value > 0 FROM duly_sequence WHERE name = 'last_fence'";
    let had_holders: bool = conn.query_row(sql, [], |row| row.get(0))?;
    Ok((known_lease.is_some() && had_holders, lease_max))
}

/// Starts to watch the files of an open store, and records in `FILE-nodes` which they are.
pub(super) fn watch_files(conn: &Connection, path: &Path, registry: &NodeRegistry) -> Result<Arc<FileWatch>> {
    let store_id = file::read_store_id(conn).map_err(|e| errors::from_sqlite("open", e))?;
    let watch = FileWatch::start(path, store_id.unwrap_or_default())?;
    let record = || {
        let Some(shared) = registry.slots().shared() else {
            return Ok(());
        };
        let _turn = shared.dir().lock()?;
        let stored = shared.dir().read_text(IDENTITY_FILE).and_then(|text| Identity::parse(&text)).unwrap_or_default();
        let current = Identity {
            store_id: watch.store_id().to_owned(),
            file_inode: watch.file_id().inode,
            wal_inode: watch.wal_inode(),
            ..stored.clone()
        };
        if current == stored { Ok(()) } else { shared.dir().write_text(IDENTITY_FILE, &current.to_text()) }
    };
    record().map_err(|e| errors::from_registry("open", NodesDir::path_of(path).display(), e))?;
    Ok(watch)
}
