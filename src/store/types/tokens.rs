//! Access tokens, which authenticate HTTP clients.

use std::time::Duration;

use crate::admin::token::Role;

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
