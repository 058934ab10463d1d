//! Access over HTTP: tokens and the audit log.

use std::time::Duration;

use crate::admin::job_id_key::JobIdKey;
use crate::admin::token::{TokenSecret, random_hex};
use crate::client::Duly;
use crate::error::{ConflictKind, Error, Result};
use crate::job::push::check_name;
use crate::store::{
    AUDIT_PAGE_MAX, AccessStore, AuditBounds, AuditEntry, AuditRecord, NewToken, Role, TOKENS_MAX, Token,
};

/// Shortest and longest lifetime of a token.
const TOKEN_LIFETIME_MIN: Duration = Duration::from_secs(1);
const TOKEN_LIFETIME_MAX: Duration = Duration::from_secs(10 * 366 * 24 * 3600);

impl Duly {
    /// Returns a handle to the tokens that grant access over HTTP.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, admin::Role};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let secret = duly.tokens().create("ci", Role::Pusher, None).await?;
    /// println!("Authorization: Bearer {}", secret.as_str());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn tokens(&self) -> Tokens<'_> {
        Tokens { duly: self }
    }

    /// Returns a handle to the log of changes that people and programs made over HTTP and on the command line.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// for record in duly.audit().list(None, 20).await? {
    ///     println!("{} {}", record.entry.actor, record.entry.action);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn audit(&self) -> Audit<'_> {
        Audit { duly: self }
    }
}

/// The tokens of a store, from [`Duly::tokens`].
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use duly::{Duly, admin::Role};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> duly::Result<()> {
/// # let duly = Duly::open(":memory:").await?;
/// let secret = duly.tokens().create("ci", Role::Pusher, Some(Duration::from_secs(90 * 24 * 3600))).await?;
/// println!("Authorization: Bearer {}", secret.as_str());
/// assert_eq!(duly.tokens().list().await?[0].name, "ci");
/// duly.tokens().remove("ci").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Tokens<'d> {
    duly: &'d Duly,
}

impl Tokens<'_> {
    /// Creates a token that grants this role over HTTP, for a limited time or forever.
    ///
    /// The returned secret cannot be read again: the store keeps only its SHA-256 hash.
    ///
    /// # Errors
    ///
    /// - [`Error::Conflict`]: the name is taken, or the store has too many tokens.
    /// - [`Error::Invalid`]: the name or the lifetime is invalid.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use duly::{Duly, admin::Role};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let day = Duration::from_secs(24 * 3600);
    /// let secret = duly.tokens().create("contractor", Role::Viewer, Some(day)).await?;
    /// assert!(duly.tokens().create("contractor", Role::Viewer, None).await.is_err(), "the name is taken");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn create(self, name: &str, role: Role, lifetime: Option<Duration>) -> Result<TokenSecret> {
        check_name("name", name)?;
        if lifetime.is_some_and(|lifetime| !(TOKEN_LIFETIME_MIN..=TOKEN_LIFETIME_MAX).contains(&lifetime)) {
            return Err(Error::invalid(
                "expires",
                "must be from one second to ten years; omit it for a token that never expires",
            ));
        }
        let secret = TokenSecret::generate();
        let token = NewToken { name: name.to_owned(), role, hash: secret.hash(), ttl: lifetime };
        if self.duly.store.add_token(&token).await? {
            return Ok(secret);
        }
        Err(explain_refusal(name, &self.list_all().await?))
    }

    /// Creates a token that never expires, with a secret of your own. Returns `false` if the store has the same token
    /// already, so several processes may call this at their start.
    ///
    /// # Errors
    ///
    /// - [`Error::Conflict`]: another token has the name, or the store has too many tokens.
    /// - [`Error::Invalid`]: the name is invalid, or the secret is shorter than 32 bytes or contains a space.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, admin::{Role, TokenSecret}};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// // From the secrets of the machine:
    /// let secret = TokenSecret::new("8d0e6f57c1f24b6b9a52d5a4e7f0c3b1");
    /// assert!(duly.tokens().create_with_secret("ops", Role::Admin, &secret).await?);
    /// assert!(!duly.tokens().create_with_secret("ops", Role::Admin, &secret).await?, "the store has it");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn create_with_secret(self, name: &str, role: Role, secret: &TokenSecret) -> Result<bool> {
        check_name("name", name)?;
        secret.check()?;
        let token = NewToken { name: name.to_owned(), role, hash: secret.hash(), ttl: None };
        if self.duly.store.add_token(&token).await? {
            return Ok(true);
        }
        let all = self.list_all().await?;
        let is_same = |found: &Token| found.name == name && found.role == role && found.hash == token.hash;
        match all.iter().any(|found| is_same(found) && found.expires.is_none()) {
            true => Ok(false),
            false => Err(explain_refusal(name, &all)),
        }
    }

    /// Returns the key that derives job ids from names that clients choose. All processes on the store get the same key.
    ///
    /// In a store that supports no tokens, the key is not secret: every client can compute the ids from the names.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Store`] if the store cannot be reached.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let key = duly.tokens().job_id_key().await?;
    /// assert_eq!(key.derive("ci/order-7"), key.derive("ci/order-7"));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn job_id_key(self) -> Result<JobIdKey> {
        match self.duly.store.secret(&random_hex()).await {
            Ok(secret) => Ok(JobIdKey::new(secret)),
            Err(Error::Unsupported { .. }) => Ok(JobIdKey::new(String::new())),
            Err(error) => Err(error),
        }
    }

    /// Returns all tokens that have not expired, by name.
    ///
    /// # Errors
    ///
    /// - [`Error::Unsupported`]: the store has no tokens, as stores on the keys of another system.
    /// - [`Error::Store`]: the store cannot be reached.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// for token in duly.tokens().list().await? {
    ///     println!("{} has the role {}", token.name, token.role);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn list(self) -> Result<Vec<Token>> {
        let (mut tokens, now) = (self.list_all().await?, self.duly.store.now());
        tokens.retain(|token| !token.is_expired(now));
        Ok(tokens)
    }

    /// Returns all tokens, by name, expired ones included.
    ///
    /// Use this to decide whether clients need a token at all: they do once the store has one. Expired tokens count,
    /// because access must not become open when the last token expires.
    ///
    /// # Errors
    ///
    /// - [`Error::Unsupported`]: the store has no tokens, as stores on the keys of another system.
    /// - [`Error::Store`]: the store cannot be reached.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let requires_token = !duly.tokens().list_all().await?.is_empty();
    /// assert!(!requires_token);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn list_all(self) -> Result<Vec<Token>> {
        self.duly.store.tokens().await
    }

    /// Removes a token; servers reject it within two seconds.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NotFound`] if there is no such token.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, admin::Role};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// duly.tokens().create("ci", Role::Pusher, None).await?;
    /// duly.tokens().remove("ci").await?;
    /// assert!(duly.tokens().remove("ci").await.is_err(), "it is gone");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn remove(self, name: &str) -> Result<()> {
        match self.duly.store.remove_token(name).await? {
            true => Ok(()),
            false => Err(Error::not_found("token", name)),
        }
    }
}

/// The audit log of a store, from [`Duly::audit`].
///
/// # Examples
///
/// ```
/// # use duly::{Duly, admin::{AuditEntry, AuditOutcome}};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> duly::Result<()> {
/// # let duly = Duly::open(":memory:").await?;
/// duly.audit().add(AuditEntry::new("ada", "report.publish", AuditOutcome::Done)).await?;
/// let newest = duly.audit().list(None, 10).await?;
/// assert_eq!(newest[0].entry.actor, "ada");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Audit<'d> {
    duly: &'d Duly,
}

impl Audit<'_> {
    /// Adds an entry to the audit log, which keeps only the newest entries. Also writes it to the log of the process
    /// (target `duly::audit`), for a permanent record.
    ///
    /// # Errors
    ///
    /// - [`Error::Unsupported`]: the store has no audit log, as stores on the keys of another system.
    /// - [`Error::Store`]: the store cannot be reached.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, admin::{AuditEntry, AuditOutcome}};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// duly.audit().add(AuditEntry::new("ada", "prices.import", AuditOutcome::Done)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn add(self, entry: AuditEntry) -> Result<()> {
        let AuditEntry { actor, action, target, filter, count, outcome, address } = &entry;
        tracing::info!(
            target: "duly::audit",
            actor, action, object = target, filter, count, outcome = outcome.as_str(), address, "action"
        );
        self.duly.store.add_audit_entry(&entry, AuditBounds::DEFAULT).await
    }

    /// Returns at most `limit` audit entries (up to 200), newest first. With `before`, returns only entries with a smaller
    /// number: the next page.
    ///
    /// # Errors
    ///
    /// - [`Error::Unsupported`]: the store has no audit log, as stores on the keys of another system.
    /// - [`Error::Store`]: the store cannot be reached.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let newest = duly.audit().list(None, 50).await?;
    /// if let Some(last) = newest.last() {
    ///     let older = duly.audit().list(Some(last.number), 50).await?;
    ///     println!("{} older entries", older.len());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn list(self, before: Option<u64>, limit: usize) -> Result<Vec<AuditRecord>> {
        self.duly.store.audit_entries(before, limit.clamp(1, AUDIT_PAGE_MAX)).await
    }
}

/// Explains why the store has not added a token.
fn explain_refusal(name: &str, tokens: &[Token]) -> Error {
    match tokens.iter().any(|token| token.name == name) {
        true => Error::conflict(
            ConflictKind::Exists,
            format!("a token named {name} exists already; choose another name, or remove that token"),
        ),
        false => Error::conflict(
            ConflictKind::LimitReached,
            format!("cannot create token {name}: the store has {TOKENS_MAX} tokens already; remove one"),
        ),
    }
}
