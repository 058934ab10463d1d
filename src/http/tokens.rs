//! The store's tokens as the server knows them: looked up again when they may have changed, never for each request.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use subtle::ConstantTimeEq;

use crate::admin::token::{Token, hash};
use crate::client::Duly;
use crate::clock::{Clock, Micros, micros};
use crate::error::Result;

/// A token that was removed is good for at most so long.
const FRESH: Duration = Duration::from_secs(2);

/// The tokens of a store, as it knew them at some moment.
pub(crate) struct Tokens {
    /// Those that have not ended.
    pub(crate) good: Vec<Token>,
    /// The store keeps at least one, be it one that has ended: then nobody gets in without.
    pub(crate) any: bool,
}

/// The tokens, and when they were looked up.
#[derive(Default)]
pub(crate) struct Known {
    all: Mutex<Option<(Micros, Arc<Tokens>)>>,
    /// One looks at a time; others wait for what it finds.
    looking: tokio::sync::Mutex<()>,
}

impl Known {
    /// All tokens of the store.
    pub(crate) async fn all(&self, duly: &Duly) -> Result<Arc<Tokens>> {
        self.all_of(duly, FRESH).await
    }

    /// The same, as the store knew them this long ago at most.
    pub(crate) async fn all_of(&self, duly: &Duly, age: Duration) -> Result<Arc<Tokens>> {
        if let Some(fresh) = self.fresh(age) {
            return Ok(fresh);
        }
        let _looking = self.looking.lock().await;
        if let Some(fresh) = self.fresh(age) {
            return Ok(fresh);
        }
        let (good, any) = duly.kept_tokens().await?;
        let found = Arc::new(Tokens { good, any });
        *self.all.lock().unwrap_or_else(PoisonError::into_inner) = Some((now(), found.clone()));
        Ok(found)
    }

    /// They have changed here: look again.
    pub(crate) fn forget(&self) {
        *self.all.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn fresh(&self, age: Duration) -> Option<Arc<Tokens>> {
        let known = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, all) = known.as_ref()?;
        (now() - at < micros(age)).then(|| all.clone())
    }
}

impl Tokens {
    /// The token with this hash. Takes equally long whichever it is, or none.
    pub(crate) fn with_hash(&self, hash: [u8; 32]) -> Option<&Token> {
        let same = |token: &Token| bool::from(token.hash.ct_eq(&hash));
        self.good.iter().fold(None, |found, token| if same(token) { Some(token) } else { found })
    }

    /// The token that somebody has sent.
    pub(crate) fn sent(&self, secret: &str) -> Option<&Token> {
        self.with_hash(hash(secret))
    }
}

fn now() -> Micros {
    Clock::system().since_boot()
}
