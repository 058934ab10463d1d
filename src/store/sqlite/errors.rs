//! Converts errors of SQLite into errors of the store. Each contains the remedy.

use std::panic::AssertUnwindSafe;
use std::path::Path;

use rusqlite::ErrorCode;

use crate::error::Error;
use crate::store::sqlite::lock_holder;

/// Runs `run` and turns a panic into an error, so that the thread survives.
pub(super) fn catch_panic<T>(run: impl FnOnce() -> T) -> rusqlite::Result<T> {
    let ran = std::panic::catch_unwind(AssertUnwindSafe(run));
    ran.map_err(|_| rusqlite::Error::ToSqlConversionFailure("panicked; please report this as a bug".into()))
}

/// Converts an error of SQLite if nothing can have been written.
pub(super) fn from_sqlite(op: &'static str, error: rusqlite::Error) -> Error {
    let reason = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy) if is_snapshot_stale(&error) => {
            "another connection wrote after your transaction started with a read; \
             begin it with TransactionBehavior::Immediate"
                .into()
        }
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            return locked_by(op, lock_holder::UNKNOWN_HOLDER);
        }
        Some(ErrorCode::DiskFull) => "the disk is full; nothing was changed; free some space and try again".into(),
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => {
            "the file or its directory is not writable; change its permissions".into()
        }
        Some(ErrorCode::CannotOpen) => "the file cannot be opened; its directory must exist and be writable".into(),
        Some(ErrorCode::NotADatabase) => "this is not a SQLite file, and was not changed; choose another path".into(),
        Some(ErrorCode::DatabaseCorrupt) => "the file is damaged, or lies next to the `-wal` of another file; \
             stop all workers, remove the files that begin with its name, and restore a backup"
            .into(),
        Some(ErrorCode::SystemIoFailure) => {
            format!("the disk failed: {error}; check the disk and the log of the system")
        }
        _ => error.to_string(),
    };
    Error::store_with_cause(op, reason, error)
}

/// Converts an error of the directory `FILE-nodes` and of the registry in it.
pub(super) fn from_registry(op: &'static str, problem: impl std::fmt::Display, error: std::io::Error) -> Error {
    let advice = match error.kind() {
        // The registry's own errors have their remedy.
        _ if error.to_string().contains("; ") => "",
        std::io::ErrorKind::StorageFull => "; free some space and try again",
        _ => "; check that the directory `-nodes` next to the file exists and is writable",
    };
    Error::store_with_cause(op, format!("{problem}: {error}{advice}"), error)
}

/// Converts an error of SQLite on this file. If the write lock was not available, the error describes its holder.
pub(super) fn from_file(op: &'static str, path: &Path, error: rusqlite::Error) -> Error {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy) if !is_snapshot_stale(&error) => {
            locked_by(op, &lock_holder::describe_lock_holder(path))
        }
        _ => from_sqlite(op, error),
    }
}

/// Returns the error of an operation that waited in vain for a write lock with this holder.
pub(super) fn locked_by(op: &'static str, holder: &str) -> Error {
    Error::Timeout { op, reason: format!("timed out waiting for the write lock of the file; {holder}") }
}

/// Returns whether the transaction's snapshot is older than the file: such a transaction can never write.
fn is_snapshot_stale(error: &rusqlite::Error) -> bool {
    matches!(error, rusqlite::Error::SqliteFailure(e, _) if e.extended_code == rusqlite::ffi::SQLITE_BUSY_SNAPSHOT)
}

/// Converts an error of a COMMIT. After a failed write or sync it is unknown whether the disk kept the commit.
pub(super) fn from_commit(op: &'static str, error: rusqlite::Error) -> Error {
    match error.sqlite_error_code() {
        Some(ErrorCode::SystemIoFailure) => Error::unknown_with_cause(op, error),
        _ => from_sqlite(op, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_of_the_registry_ends_with_a_remedy() {
        let text = |error| from_registry("open", "shop.db-nodes", error).to_string();
        let denied = text(std::io::ErrorKind::PermissionDenied.into());
        assert!(denied.contains("; check that the directory") && denied.contains("permission denied"), "{denied}");
        assert!(text(std::io::ErrorKind::StorageFull.into()).ends_with("; free some space and try again"));
        let own = std::io::Error::other("is a symbolic link; remove it");
        assert_eq!(text(own), "open: shop.db-nodes: is a symbolic link; remove it");
    }

    /// The message of SQLite is in the text if there are no words of our own for the failure.
    #[test]
    fn text_contains_the_message_of_sqlite_once() {
        let conn = rusqlite::Connection::open_in_memory().expect("opens");
        let error = from_sqlite("claim", conn.execute_batch("SELECT * FROM duly_nothing").expect_err("no such table"));
        assert_eq!(error.to_string().matches("no such table: duly_nothing").count(), 1, "{error}");
        assert!(std::error::Error::source(&error).is_none(), "{error:?}");
        assert!(matches!(error, Error::Store { cause: Some(cause), .. } if cause.is::<rusqlite::Error>()));
    }
}
