//! Tokens.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{rfc3339, unix_ms};
use duly::admin::{Role, Token};

/// The schema of [`Role`].
#[derive(ToSchema)]
#[schema(as = Role, rename_all = "lowercase")]
#[allow(dead_code, reason = "only its schema is used")]
pub(crate) enum RoleSchema {
    /// Reads, without the args of jobs.
    Viewer,
    /// Pushes jobs and works on them, acquires locks, calls methods.
    Pusher,
    /// Manages jobs, queues, cron rules and nodes.
    Operator,
    /// Manages tokens, and reads the audit log.
    Admin,
}

/// A token, without its secret.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[non_exhaustive]
#[schema(as = Token)]
pub struct TokenView {
    /// The name, for people.
    pub name: String,
    /// The rights.
    #[schema(value_type = RoleSchema)]
    pub role: Role,
    /// When it was created.
    pub created: String,
    /// The same in milliseconds since 1970.
    pub created_ms: i64,
    /// When it expires; absent if it never does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires: Option<String>,
    /// The same in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<i64>,
}

impl From<&Token> for TokenView {
    fn from(token: &Token) -> Self {
        TokenView {
            name: token.name.clone(),
            role: token.role,
            created: rfc3339(token.created),
            created_ms: unix_ms(token.created),
            expires: token.expires.map(rfc3339),
            expires_ms: token.expires.map(unix_ms),
        }
    }
}

/// All tokens.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[non_exhaustive]
pub struct Tokens {
    /// The tokens, by name.
    pub tokens: Vec<TokenView>,
}

impl From<&[Token]> for Tokens {
    fn from(tokens: &[Token]) -> Self {
        Tokens { tokens: tokens.iter().map(TokenView::from).collect() }
    }
}

/// A new token: only this response contains it.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[non_exhaustive]
pub struct CreatedToken {
    /// The name, for people.
    pub name: String,
    /// The rights.
    #[schema(value_type = RoleSchema)]
    pub role: Role,
    /// The secret.
    pub token: String,
}

impl CreatedToken {
    /// Returns a new token with its secret.
    #[must_use]
    pub fn new(name: impl Into<String>, role: Role, token: impl Into<String>) -> Self {
        CreatedToken { name: name.into(), role, token: token.into() }
    }
}

impl std::fmt::Debug for CreatedToken {
    /// Hides the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CreatedToken").field("name", &self.name).field("role", &self.role).finish_non_exhaustive()
    }
}
