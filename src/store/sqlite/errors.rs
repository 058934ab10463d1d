//! From SQLite's errors to ours: what happened, and what to do about it.

use std::panic::AssertUnwindSafe;

use rusqlite::ErrorCode;

use crate::error::Error;

/// Runs something; a panic in it must not end the thread that all depend on.
pub(super) fn caught<T>(run: impl FnOnce() -> T) -> rusqlite::Result<T> {
    let ran = std::panic::catch_unwind(AssertUnwindSafe(run));
    ran.map_err(|_| rusqlite::Error::ToSqlConversionFailure("panicked: please report this".into()))
}

/// What SQLite said, as an error of ours, when nothing can have been written.
pub(super) fn refused(op: &'static str, error: rusqlite::Error) -> Error {
    let reason = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy) if is_stale(&error) => {
            "your transaction began with a look, and another connection has written since; \
             begin it with TransactionBehavior::Immediate"
                .into()
        }
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            return Error::Timeout {
                op,
                reason: "another connection has kept the file's write lock all this time; \
                         end your own transaction (push_in) before you await anything of duly's"
                    .into(),
            };
        }
        Some(ErrorCode::DiskFull) => "the disk is full; nothing was changed, free some space and try again".into(),
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => {
            "the file or its directory cannot be written; mend its permissions".into()
        }
        Some(ErrorCode::CannotOpen) => "the file cannot be opened; its directory must exist and be writable".into(),
        Some(ErrorCode::NotADatabase) => "this is not a SQLite file; choose another path, it was left as it is".into(),
        Some(ErrorCode::DatabaseCorrupt) => "the file is damaged, or it was put there beside the `-wal` of another; stop all workers and restore a backup, \
             without the files that begin with its name".into(),
        Some(ErrorCode::SystemIoFailure) => format!("the disk failed: {error}"),
        _ => error.to_string(),
    };
    Error::Store { op, reason, source: Some(Box::new(error)) }
}

/// The transaction's snapshot is older than the file: it can never write any more.
fn is_stale(error: &rusqlite::Error) -> bool {
    matches!(error, rusqlite::Error::SqliteFailure(e, _) if e.extended_code == rusqlite::ffi::SQLITE_BUSY_SNAPSHOT)
}

/// What SQLite said to a COMMIT: after a failed write or sync nobody knows what the disk has kept.
pub(super) fn commit_failed(op: &'static str, error: rusqlite::Error) -> Error {
    match error.sqlite_error_code() {
        Some(ErrorCode::SystemIoFailure) => Error::Unknown { op, source: Some(Box::new(error)) },
        _ => refused(op, error),
    }
}
