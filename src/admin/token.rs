//! Permissions over HTTP: roles, and the tokens that grant them. Pure data.
//!
//! A token is 256 random bits, shown once; the store keeps only its SHA-256 hash.

use std::fmt;
use std::str::FromStr;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::Error;

/// Prefix of every token, so that people and secret scanners recognise it.
pub const TOKEN_PREFIX: &str = "duly_";
/// Most tokens in a store.
pub const TOKENS_MAX: usize = 1_000;

/// The permissions of a client; each role includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Role {
    /// Reads everything except the args of jobs.
    Viewer,
    /// Pushes and works on jobs, acquires locks, calls methods.
    Pusher,
    /// Manages jobs, queues, cron rules and nodes.
    Operator,
    /// Creates and removes tokens, and reads the audit log.
    Admin,
}

impl Role {
    /// All roles, least privileged first.
    pub const ALL: [Role; 4] = [Role::Viewer, Role::Pusher, Role::Operator, Role::Admin];

    /// Returns the name of the role.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Viewer => "viewer",
            Role::Pusher => "pusher",
            Role::Operator => "operator",
            Role::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Role {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Role::ALL
            .into_iter()
            .find(|role| role.as_str() == text)
            .ok_or_else(|| Error::invalid("role", format!("{text:?} is none of viewer, pusher, operator, admin")))
    }
}

/// A token as stored: enough to recognise it, not enough to use it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Token {
    /// Its unique name, for people.
    pub name: String,
    /// The role it grants.
    pub role: Role,
    /// SHA-256 of the token.
    #[serde(skip)]
    pub hash: [u8; 32],
    /// When it was created, by the store's clock.
    #[serde(serialize_with = "crate::clock::as_micros")]
    pub created: SystemTime,
    /// When it expires; never if `None`.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "crate::clock::as_micros_option")]
    pub expires: Option<SystemTime>,
}

impl Token {
    /// Returns whether the token has expired at this time.
    #[must_use]
    pub fn is_expired(&self, now: SystemTime) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }
}

/// The secret text of a token, as its user has it. Redacted in `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenSecret(String);

impl TokenSecret {
    /// Wraps the text of a token that a client has sent.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        TokenSecret(text.into())
    }

    /// Generates a random secret, with 256 bits of entropy.
    #[must_use]
    pub fn generate() -> Self {
        // Each UUID has 122 random bits, so three have more than the 256 bits of the token.
        let random: Vec<u8> = (0..3).flat_map(|_| *uuid::Uuid::new_v4().as_bytes()).collect();
        TokenSecret(format!("{TOKEN_PREFIX}{}", to_hex(&Sha256::digest(&random))))
    }

    /// Returns the text that a client sends with each request.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the SHA-256 of the secret: [`Token::hash`] of the token that it proves.
    #[must_use]
    pub fn hash(&self) -> [u8; 32] {
        Sha256::digest(self.0.as_bytes()).into()
    }
}

impl fmt::Debug for TokenSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenSecret(..)")
    }
}

pub(crate) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        for nibble in [byte >> 4, byte & 15] {
            text.push(char::from_digit(u32::from(nibble), 16).unwrap_or('0'));
        }
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_ordered_and_parse() {
        assert!(Role::ALL.is_sorted());
        assert!(Role::ALL.iter().all(|role| role.as_str().parse::<Role>().is_ok_and(|same| same == *role)));
    }

    #[test]
    fn token_secrets_differ_and_are_redacted() {
        let (one, other) = (TokenSecret::generate(), TokenSecret::generate());
        assert_ne!(one, other);
        assert_eq!(one.as_str().len(), TOKEN_PREFIX.len() + 64);
        assert_eq!(format!("{one:?}"), "TokenSecret(..)");
        assert_ne!(one.hash(), other.hash());
    }
}
