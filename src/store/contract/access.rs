//! Tokens of the HTTP API, and the audit log.

use super::capability;
use crate::admin::token::Token;
use crate::error::Result;
use crate::store::*;

capability! {
    /// Keeps access tokens and the audit log.
    pub trait AccessStore(access: "tokens and an audit log") {
        /// Adds a token, unless its name is taken or the maximum is reached. Returns whether it was added.
        async fn add_token(&self, token: &NewToken) -> Result<bool>;

        /// Removes a token. Returns whether it existed.
        async fn remove_token(&self, name: &str) -> Result<bool>;

        /// Returns all tokens by name, including expired ones.
        async fn tokens(&self) -> Result<Vec<Token>>;

        /// Adds an entry to the audit log, which keeps the newest [`AUDIT_ENTRIES_MAX`].
        async fn add_audit_entry(&self, entry: &AuditEntry) -> Result<()>;

        /// Returns at most `limit` audit entries, newest first, starting below the number `before` if given.
        async fn audit_entries(&self, before: Option<u64>, limit: usize) -> Result<Vec<AuditRecord>>;
    }
}
