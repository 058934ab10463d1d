//! Access tokens, which authenticate HTTP clients, and the roles that they grant. Pure data.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// Most tokens in a store.
pub const TOKENS_MAX: usize = 1_000;

/// The permissions of a client; each role includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Role {
    /// Reads everything except the args, results and logs of jobs, and the audit log.
    Viewer,
    /// Pushes and works on jobs, acquires locks, calls methods.
    Pusher,
    /// Reads args, results, logs and the audit log. Manages jobs, queues, cron rules and nodes.
    Operator,
    /// Creates and removes tokens.
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
        Role::ALL.into_iter().find(|role| role.as_str() == text).ok_or_else(|| {
            Error::invalid("role", format!("{text:?} is not a role; use viewer, pusher, operator or admin"))
        })
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

/// A token to add.
#[derive(Clone, Debug)]
pub struct NewToken {
    /// Its unique name.
    pub name: String,
    /// The permissions it grants.
    pub role: Role,
    /// Its SHA-256 hash.
    pub hash: [u8; 32],
    /// How long it is valid; forever if `None`.
    pub ttl: Option<Duration>,
}

/// Returns bytes as hex, as tokens are stored.
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
}
