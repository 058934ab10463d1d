//! The secrets that clients of the HTTP API send.
//!
//! A token is 256 random bits, shown once; the store keeps only its SHA-256 hash.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::store::to_hex;

/// Prefix of every token, so that people and secret scanners recognise it.
pub const TOKEN_PREFIX: &str = "duly_";

/// The fewest and the most bytes of a secret that was not generated here.
const SECRET_BYTES_MIN: usize = 32;
const SECRET_BYTES_MAX: usize = 512;

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

    /// Returns an error if a secret of your own is too short, too long, or cannot be sent in a header.
    pub(crate) fn check(&self) -> Result<()> {
        let bytes = self.0.len();
        if bytes < SECRET_BYTES_MIN {
            let reason =
                format!("has {bytes} bytes; use at least {SECRET_BYTES_MIN}, such as `openssl rand -hex 32` prints");
            return Err(Error::invalid("token", reason));
        }
        if bytes > SECRET_BYTES_MAX {
            return Err(Error::invalid("token", format!("has {bytes} bytes; at most {SECRET_BYTES_MAX} are allowed")));
        }
        match self.0.bytes().all(|byte| byte.is_ascii_graphic()) {
            true => Ok(()),
            false => Err(Error::invalid("token", "must be one line of ASCII characters without spaces")),
        }
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
