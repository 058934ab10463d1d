//! Converts errors of SQLite into errors of the store. Each says how to correct the problem.

use std::panic::AssertUnwindSafe;

use rusqlite::ErrorCode;

use crate::error::Error;

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
            return Error::Timeout {
                op,
                reason: "another connection held the write lock of the file for the whole timeout; \
                         end your own transaction (push_in) before you await a call to duly"
                    .into(),
            };
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
        Some(ErrorCode::SystemIoFailure) => format!("the disk failed: {error}"),
        _ => error.to_string(),
    };
    Error::Store { op, reason, source: Some(Box::new(error)) }
}

/// Returns whether the transaction's snapshot is older than the file: such a transaction can never write.
fn is_snapshot_stale(error: &rusqlite::Error) -> bool {
    matches!(error, rusqlite::Error::SqliteFailure(e, _) if e.extended_code == rusqlite::ffi::SQLITE_BUSY_SNAPSHOT)
}

/// Converts an error of a COMMIT. After a failed write or sync it is unknown whether the disk kept the commit.
pub(super) fn from_commit(op: &'static str, error: rusqlite::Error) -> Error {
    match error.sqlite_error_code() {
        Some(ErrorCode::SystemIoFailure) => Error::Unknown { op, source: Some(Box::new(error)) },
        _ => from_sqlite(op, error),
    }
}
