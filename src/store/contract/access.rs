//! Tokens of the HTTP API, and the audit log.

use super::capability;
use crate::error::Result;
use crate::store::*;

capability! {
    /// Keeps access tokens, the secret of the store and the audit log.
    pub trait AccessStore(access: "tokens and an audit log") {
        /// Adds a token, unless its name is taken or the maximum is reached. Returns whether it was added.
        async fn add_token(&self, token: &NewToken) -> Result<bool>;

        /// Removes a token. Returns whether it existed.
        async fn remove_token(&self, name: &str) -> Result<bool>;

        /// Returns all tokens by name, including expired ones.
        async fn tokens(&self) -> Result<Vec<Token>>;

        /// Returns the secret of the store: always the one of the first call, which stores `fresh`.
        async fn secret(&self, fresh: &str) -> Result<String>;

        /// Adds an entry to the audit log. If its actor then has more than `bounds.per_actor` entries, removes the oldest
        /// of them. Otherwise, if there are more than `bounds.total`, removes the oldest entry of the actor that has the
        /// most. Works while the disk or the server's memory is full.
        async fn add_audit_entry(&self, entry: &AuditEntry, bounds: AuditBounds) -> Result<()>;

        /// Returns at most `limit` audit entries, newest first, starting below the number `before` if given.
        async fn audit_entries(&self, before: Option<u64>, limit: usize) -> Result<Vec<AuditRecord>>;
    }
}
