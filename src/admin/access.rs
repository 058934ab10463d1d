//! Access over HTTP: tokens and the audit log.

use std::time::Duration;

use crate::admin::token::{Role, TOKENS_MAX, Token, TokenSecret};
use crate::client::Duly;
use crate::error::{Error, Result};
use crate::job::push::check_name;
use crate::store::{AUDIT_PAGE_MAX, AccessStore, AuditEntry, AuditRecord, NewToken};

/// Shortest and longest lifetime of a token.
const TOKEN_LIFETIME_MIN: Duration = Duration::from_secs(1);
const TOKEN_LIFETIME_MAX: Duration = Duration::from_secs(10 * 366 * 24 * 3600);

impl Duly {
    /// Creates a token that grants this role over HTTP, for a limited time or forever.
    ///
    /// The returned secret cannot be read again: the store keeps only its SHA-256 hash.
    pub async fn create_token(&self, name: &str, role: Role, lifetime: Option<Duration>) -> Result<TokenSecret> {
        check_name("name", name)?;
        if lifetime.is_some_and(|lifetime| !(TOKEN_LIFETIME_MIN..=TOKEN_LIFETIME_MAX).contains(&lifetime)) {
            return Err(Error::invalid(
                "expires",
                "must be from one second to ten years; omit it for a token that never expires",
            ));
        }
        let secret = TokenSecret::generate();
        let token = NewToken { name: name.to_owned(), role, hash: secret.hash(), ttl: lifetime };
        if self.store.add_token(&token).await? {
            return Ok(secret);
        }
        Err(Error::Conflict(format!(
            "token {name} already exists, or there are {TOKENS_MAX} tokens; remove one first, or choose another name"
        )))
    }

    /// Returns all tokens that have not expired, by name.
    pub async fn tokens(&self) -> Result<Vec<Token>> {
        let (mut tokens, now) = (self.all_tokens().await?, self.store.now());
        tokens.retain(|token| !token.is_expired(now));
        Ok(tokens)
    }

    /// Returns all tokens, by name, expired ones included.
    ///
    /// A front end that is open without a token should close with the first one, and must not open again when the last
    /// one expires.
    pub async fn all_tokens(&self) -> Result<Vec<Token>> {
        self.store.tokens().await
    }

    /// Removes a token; servers reject it within two seconds.
    pub async fn remove_token(&self, name: &str) -> Result<()> {
        match self.store.remove_token(name).await? {
            true => Ok(()),
            false => Err(Error::NotFound { what: "token", name: name.to_owned() }),
        }
    }

    /// Adds an entry to the audit log.
    pub async fn add_audit_entry(&self, entry: AuditEntry) -> Result<()> {
        self.store.add_audit_entry(&entry).await
    }

    /// Returns audit entries, newest first, starting below the number `before` if given; at most 200.
    pub async fn audit_entries(&self, before: Option<u64>, limit: usize) -> Result<Vec<AuditRecord>> {
        self.store.audit_entries(before, limit.clamp(1, AUDIT_PAGE_MAX)).await
    }
}
