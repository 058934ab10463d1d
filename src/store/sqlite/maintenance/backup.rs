//! Backup: copies the file at one moment, while all processes continue to work.

use std::path::Path;

use rusqlite::Connection;

use crate::error::{Error, Result};
use crate::store::sqlite::{Sqlite, errors, file};

/// Implements `SnapshotStore::backup`. The copy is a store of its own, so that a process notices if the copy replaces the
/// file that it has open. One statement reads one snapshot, so it does not block writers and sees
/// no partial transaction.
pub(crate) async fn backup(store: &Sqlite, to: &Path) -> Result<()> {
    let to = to.to_str().ok_or_else(|| Error::invalid("file", "name must be UTF-8"))?.to_owned();
    let Some(path) = store.path.clone() else {
        return store.writer.run_outside_transaction("backup", move |conn| vacuum_into(conn, &to)).await;
    };
    let run = move || -> Result<()> {
        let to_error = |e| errors::from_sqlite("backup", e);
        let mut conn = Connection::open_with_flags(&path, file::OPEN_FLAGS).map_err(to_error)?;
        conn.busy_handler(Some(file::wait_while_busy)).map_err(to_error)?;
        vacuum_into(&conn, &to).map_err(to_error)
    };
    let ran = tokio::task::spawn_blocking(run).await;
    ran.map_err(|e| Error::store("backup", format!("the copy did not finish: {e}; start it again")))?
}

fn vacuum_into(conn: &Connection, to: &str) -> rusqlite::Result<()> {
    conn.execute("VACUUM INTO ?1", [to])?;
    file::renew_store_id(&Connection::open_with_flags(to, file::OPEN_FLAGS)?)
}
