//! Tokens, by which somebody over HTTP is known: the words of this chapter.

use std::time::Duration;

use crate::admin::token::Role;

/// A token to be kept.
#[derive(Clone, Debug)]
pub struct NewToken {
    /// Its name: nobody else's.
    pub name: String,
    /// What whoever has it may do.
    pub role: Role,
    /// SHA-256 of it.
    pub hash: [u8; 32],
    /// How long it lasts; for ever if nothing is said.
    pub ttl: Option<Duration>,
}
