//! The error of a group of operations, and of each operation in it.

use crate::error::Error;
use crate::store::sqlite::errors;

/// The phase in which a transaction failed. Only a failed commit has an unknown outcome.
pub(super) enum TransactionError {
    /// The write lock was not available, so a retry of each alone would not help. The text describes its holder.
    Begin(rusqlite::Error, Option<String>),
    Operation(rusqlite::Error),
    /// The file is not the one at its path.
    WrongFile(String),
    Commit(rusqlite::Error),
}

impl TransactionError {
    pub(super) fn to_error(&self, op: &'static str) -> Error {
        // The errors of rusqlite cannot be cloned, so each operation gets a copy.
        let copy = |error: &rusqlite::Error| match error {
            rusqlite::Error::SqliteFailure(code, text) => rusqlite::Error::SqliteFailure(*code, text.clone()),
            other => rusqlite::Error::ToSqlConversionFailure(other.to_string().into()),
        };
        match self {
            TransactionError::Begin(_, Some(holder)) => errors::locked_by(op, holder),
            TransactionError::Begin(error, None) | TransactionError::Operation(error) => {
                errors::from_sqlite(op, copy(error))
            }
            TransactionError::WrongFile(problem) => Error::store(op, problem.clone()),
            TransactionError::Commit(error) => errors::from_commit(op, copy(error)),
        }
    }
}
