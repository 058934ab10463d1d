//! A cache of the store's tokens, so that a request does not need to query the store.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use duly::admin::{Token, TokenSecret};
use duly::{Clock, Duly, Result};
use subtle::ConstantTimeEq;

use crate::sync::LockExt;

/// A removed token stays valid for at most this long.
const CACHE_TTL: Duration = Duration::from_secs(2);

/// The tokens of a store at some moment.
pub(crate) struct TokenList {
    /// The tokens that have not expired.
    pub(crate) valid: Vec<Token>,
    /// The store has no token, not even an expired one: clients on this machine need none.
    pub(crate) is_open: bool,
    /// The store has had a token since this process started, or has one now.
    had_token: bool,
}

/// The cached tokens.
#[derive(Default)]
pub(crate) struct TokenCache {
    /// The tokens, and when they were read.
    cached: Mutex<Option<(Duration, Arc<TokenList>)>>,
    /// Serialises reads: concurrent requests wait for one of them.
    reading: tokio::sync::Mutex<()>,
    /// A token was seen. This never becomes false again: removing the last token must not revive a link.
    had_token: AtomicBool,
}

impl TokenCache {
    /// Returns the tokens of the store.
    pub(crate) async fn get(&self, duly: &Duly) -> Result<Arc<TokenList>> {
        self.get_within(duly, CACHE_TTL).await
    }

    /// Returns the tokens of the store, read at most `age_max` ago.
    pub(crate) async fn get_within(&self, duly: &Duly, age_max: Duration) -> Result<Arc<TokenList>> {
        if let Some(cached) = self.cached(age_max) {
            return Ok(cached);
        }
        let _reading = self.reading.lock().await;
        if let Some(cached) = self.cached(age_max) {
            return Ok(cached);
        }
        let mut valid = duly.tokens().list_all().await?;
        let (is_open, store_now) = (valid.is_empty(), duly.now());
        valid.retain(|token| !token.is_expired(store_now));
        let had_token = self.had_token.fetch_or(!is_open, Ordering::Relaxed) || !is_open;
        let tokens = Arc::new(TokenList { valid, is_open, had_token });
        *self.cached.lock_unpoisoned() = Some((now(), tokens.clone()));
        Ok(tokens)
    }

    /// Drops the cached tokens.
    pub(crate) fn clear(&self) {
        *self.cached.lock_unpoisoned() = None;
    }

    fn cached(&self, age_max: Duration) -> Option<Arc<TokenList>> {
        let cached = self.cached.lock_unpoisoned();
        let (at, tokens) = cached.as_ref()?;
        (now().saturating_sub(*at) < age_max).then(|| tokens.clone())
    }
}

impl TokenList {
    /// Returns whether the sign-in link and its sessions are valid, if the server has one. They end with the first token.
    pub(crate) fn accepts_link(&self) -> bool {
        self.is_open && !self.had_token
    }

    /// Returns the token with this hash. The time does not depend on which token matches, or whether one does.
    pub(crate) fn find_by_hash(&self, hash: [u8; 32]) -> Option<&Token> {
        let is_equal = |token: &Token| bool::from(token.hash.ct_eq(&hash));
        self.valid.iter().fold(None, |found, token| if is_equal(token) { Some(token) } else { found })
    }

    /// Returns the token that a client has sent.
    pub(crate) fn find_by_secret(&self, secret: &TokenSecret) -> Option<&Token> {
        self.find_by_hash(secret.hash())
    }
}

fn now() -> Duration {
    Clock::system().monotonic()
}
