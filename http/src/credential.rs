//! The credential by which a client was identified, to be checked again while a stream is open.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};

use super::problem::Problem;
use super::server::App;
use super::sessions::SessionCredential;

/// The credential by which a client was identified.
#[derive(Clone)]
pub(crate) enum Credential {
    /// The service around the router has identified the client.
    Trusted,
    /// The client is local, and the store has no token.
    Local,
    /// The SHA-256 of the client's token.
    Token([u8; 32]),
    /// The id of the client's session.
    Session(String),
}

impl Credential {
    /// Returns whether the credential would be accepted now. The check does not count as a use of a session.
    ///
    /// If the store does not respond, the credential stays valid: a stream sends nothing then anyway.
    pub(crate) async fn is_valid(&self, app: &App) -> bool {
        let hash = match self {
            Credential::Trusted => return true,
            Credential::Local => None,
            Credential::Token(hash) => Some(*hash),
            Credential::Session(id) => match app.sessions.peek(id) {
                Some(SessionCredential::Token(hash)) => Some(hash),
                Some(SessionCredential::Link) => None,
                None => return false,
            },
        };
        let Ok(tokens) = app.tokens.get(&app.duly).await else {
            return true;
        };
        match hash {
            Some(hash) => tokens.find_by_hash(hash).is_some(),
            None if matches!(self, Credential::Local) => tokens.is_open,
            None => tokens.accepts_link(),
        }
    }
}

/// [`super::auth::handle_request`] puts the credential into the request.
impl<S: Send + Sync> FromRequestParts<S> for Credential {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Response> {
        let credential = parts.extensions.get::<Credential>().cloned();
        credential.ok_or_else(|| Problem::unauthorized("sign in first").into_response())
    }
}
