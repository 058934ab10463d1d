//! By what somebody is known: looked at again for as long as they are told something.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};

use super::problem::Problem;
use super::server::App;

/// By what the sender of a request is known.
#[derive(Clone)]
pub(crate) enum Proof {
    /// A service around the router answers for them.
    Vouched,
    /// They are on this machine, and the store keeps no token.
    Here,
    /// The SHA-256 of the token that they sent.
    Token([u8; 32]),
    /// The session that they have signed in to.
    Session(String),
}

impl Proof {
    /// Whether it would let them in now as well. Nothing is counted, and a session is not used by it.
    ///
    /// A store that does not answer takes nobody's right away: it tells them nothing, either.
    pub(crate) async fn holds(&self, app: &App) -> bool {
        let hash = match self {
            Proof::Vouched => return true,
            Proof::Here => None,
            Proof::Token(hash) => Some(*hash),
            Proof::Session(id) => match app.sessions.seen(id) {
                Some(hash) => Some(hash),
                None => return false,
            },
        };
        let Ok(known) = app.tokens.all(&app.duly).await else {
            return true;
        };
        match hash {
            Some(hash) => known.with_hash(hash).is_some(),
            None => !known.any,
        }
    }
}

/// The gate has put it there.
impl<S: Send + Sync> FromRequestParts<S> for Proof {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Response> {
        parts.extensions.get::<Proof>().cloned().ok_or_else(|| Problem::unauthorized("sign in first").into_response())
    }
}
