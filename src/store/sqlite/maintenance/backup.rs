//! Backup: copies the file at one moment, while all processes continue to work.

use std::path::Path;

use rusqlite::{Connection, OpenFlags};

use crate::error::{Error, Result};
use crate::store::sqlite::{Sqlite, errors, file};

/// Implements `SnapshotStore::backup`. One statement reads one snapshot, so it does not block writers and sees
/// no partial transaction.
pub(crate) async fn backup(store: &Sqlite, to: &Path) -> Result<()> {
    let to = to.to_str().ok_or_else(|| Error::invalid("file", "name must be UTF-8"))?.to_owned();
    let Some(path) = store.path.clone() else {
        return store.writer.run_outside_transaction("backup", move |conn| vacuum_into(conn, &to)).await;
    };
    let run = move || -> Result<()> {
        let to_error = |e| errors::from_sqlite("backup", e);
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut conn = Connection::open_with_flags(&path, flags).map_err(to_error)?;
        conn.busy_handler(Some(file::wait_while_busy)).map_err(to_error)?;
        vacuum_into(&conn, &to).map_err(to_error)
    };
    let ran = tokio::task::spawn_blocking(run).await;
    ran.map_err(|e| Error::store("backup", format!("the copy did not finish: {e}")))?
}

fn vacuum_into(conn: &Connection, to: &str) -> rusqlite::Result<()> {
    conn.execute("VACUUM INTO ?1", [to]).map(drop)
}
