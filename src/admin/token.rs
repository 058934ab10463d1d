//! The secrets that clients of the HTTP API send.
//!
//! A token is 256 random bits, shown once; the store keeps only its SHA-256 hash.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::store::to_hex;

/// Prefix of every token, so that people and secret scanners recognise it.
pub const TOKEN_PREFIX: &str = "duly_";

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
        TokenSecret(format!("{TOKEN_PREFIX}{}", random_hex()))
    }

    /// Returns the text that a client sends with each request.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the SHA-256 of the secret: [`Token::hash`](crate::admin::Token::hash) of the token that it proves.
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

/// Returns 256 random bits in hex.
pub(crate) fn random_hex() -> String {
    // Each UUID has 122 random bits, so three have more than 256.
    let random: Vec<u8> = (0..3).flat_map(|_| *uuid::Uuid::new_v4().as_bytes()).collect();
    to_hex(&Sha256::digest(&random))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_secrets_differ_and_are_redacted() {
        let (one, other) = (TokenSecret::generate(), TokenSecret::generate());
        assert_ne!(one, other);
        assert_eq!(one.as_str().len(), TOKEN_PREFIX.len() + 64);
        assert_eq!(format!("{one:?}"), "TokenSecret(..)");
        assert_ne!(one.hash(), other.hash());
    }
}
