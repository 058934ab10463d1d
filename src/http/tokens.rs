//! The store's tokens as the server knows them: looked up again when they may have changed, never for each request.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use subtle::ConstantTimeEq;

use crate::clock::{Clock, Micros, micros};
use crate::duly::Duly;
use crate::error::Result;
use crate::token::{Token, hash};

/// A token that was removed is good for at most so long.
const FRESH: Duration = Duration::from_secs(2);

/// The tokens, and when they were looked up.
#[derive(Default)]
pub(crate) struct Known {
    all: Mutex<Option<(Micros, Arc<Vec<Token>>)>>,
    /// One looks at a time; others wait for what it finds.
    looking: tokio::sync::Mutex<()>,
}

impl Known {
    /// All tokens that have not ended.
    pub(crate) async fn all(&self, duly: &Duly) -> Result<Arc<Vec<Token>>> {
        self.all_of(duly, FRESH).await
    }

    /// The same, as the store knew them this long ago at most.
    pub(crate) async fn all_of(&self, duly: &Duly, age: Duration) -> Result<Arc<Vec<Token>>> {
        if let Some(fresh) = self.fresh(age) {
            return Ok(fresh);
        }
        let _looking = self.looking.lock().await;
        if let Some(fresh) = self.fresh(age) {
            return Ok(fresh);
        }
        let found = Arc::new(duly.tokens().await?);
        *self.all.lock().unwrap_or_else(PoisonError::into_inner) = Some((now(), found.clone()));
        Ok(found)
    }

    /// They have changed here: look again.
    pub(crate) fn forget(&self) {
        *self.all.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn fresh(&self, age: Duration) -> Option<Arc<Vec<Token>>> {
        let known = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, all) = known.as_ref()?;
        (now() - at < micros(age)).then(|| all.clone())
    }
}

/// The token with this hash. Takes equally long whichever it is, or none.
pub(crate) fn with_hash(all: &[Token], hash: [u8; 32]) -> Option<&Token> {
    all.iter().fold(None, |found, token| if bool::from(token.hash.ct_eq(&hash)) { Some(token) } else { found })
}

/// The token that somebody has sent.
pub(crate) fn sent<'a>(all: &'a [Token], secret: &str) -> Option<&'a Token> {
    with_hash(all, hash(secret))
}

fn now() -> Micros {
    Clock::system().since_boot()
}
