//! Who gets in over HTTP, and who has done what: tokens and the audit, through the door.

use std::time::Duration;

use crate::admin::token::{Role, TOKENS_MAX, Token, TokenSecret};
use crate::client::Duly;
use crate::error::{Error, Result};
use crate::job::push::check_name;
use crate::store::{AUDIT_PAGE_MAX, AuditEntry, AuditRecord, NewToken};

/// Shortest and longest time that a token can be asked to last.
const TOKEN_LIFETIME_MIN: Duration = Duration::from_secs(1);
const TOKEN_LIFETIME_MAX: Duration = Duration::from_secs(10 * 366 * 24 * 3600);

impl Duly {
    /// Makes a token with which somebody may do over HTTP what this role may, for so long or for ever.
    ///
    /// The answer is the only place where it can be read: the store keeps its SHA-256.
    pub async fn create_token(&self, name: &str, role: Role, lasts: Option<Duration>) -> Result<TokenSecret> {
        check_name("name", name)?;
        if lasts.is_some_and(|lasts| !(TOKEN_LIFETIME_MIN..=TOKEN_LIFETIME_MAX).contains(&lasts)) {
            return Err(Error::invalid("expires", "a token lasts from a second to ten years, or for ever"));
        }
        let secret = TokenSecret::generate();
        let token = NewToken { name: name.to_owned(), role, hash: secret.hash(), ttl: lasts };
        if self.store.add_token(&token).await? {
            return Ok(secret);
        }
        Err(Error::Conflict(format!(
            "token {name} is there already, or there are {TOKENS_MAX}: remove one first, or take another name"
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

    /// Forgets a token: servers refuse it within two seconds.
    pub async fn remove_token(&self, name: &str) -> Result<()> {
        match self.store.remove_token(name).await? {
            true => Ok(()),
            false => Err(Error::NotFound { what: "token", name: name.to_owned() }),
        }
    }

    /// Notes that somebody has done something.
    pub async fn add_audit_entry(&self, entry: AuditEntry) -> Result<()> {
        self.store.add_audit_entry(&entry).await
    }

    /// Who has done what, newest first: the newest entries, or those before this number; at most 200.
    pub async fn audit_entries(&self, before: Option<u64>, limit: usize) -> Result<Vec<AuditRecord>> {
        self.store.audit_entries(before, limit.clamp(1, AUDIT_PAGE_MAX)).await
    }
}
