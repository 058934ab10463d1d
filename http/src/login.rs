//! Signing in from a browser: a token, or once the link of the server, creates a session, and the browser keeps only the
//! session id.

use std::net::SocketAddr;

use axum::Form;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{Extensions, HeaderMap, header};
use axum::response::{IntoResponse, Redirect, Response};
use duly::admin::TokenSecret;
use serde::Deserialize;

use super::audit::AuditNote;
use super::auth::{self, LOCAL};
use super::local;
use super::pages::local_path_or;
use super::problem::{Problem, Result};
use super::server::AppState;
use super::sessions::SessionCredential;
use super::sign_in_link::SIGN_IN_LINK_TTL;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LoginForm {
    token: String,
    /// The page to redirect to: a path of this server.
    #[serde(default)]
    next: String,
}

/// `POST /login`: signs in with a token, or with the secret of the link.
pub(super) async fn sign_in(
    State(app): AppState,
    info: Option<axum::Extension<ConnectInfo<SocketAddr>>>,
    note: AuditNote,
    extensions: Extensions,
    headers: HeaderMap,
    Form(form): Form<LoginForm>,
) -> Result<Response> {
    let from = info.map(|info| info.0.0.ip().to_canonical());
    let secret = TokenSecret::new(form.token.trim());
    let (credential, actor) = if app.link.has_secret(&secret) {
        if !app.tokens.get(&app.duly).await?.accepts_link() || !app.link.use_once() {
            return Err(link_has_ended());
        }
        (SessionCredential::Link, LOCAL.to_owned())
    } else {
        (SessionCredential::Token(secret.hash()), auth::identify_by_token(&app, &secret, from).await?.name)
    };
    // After the token: clients without one must not use up the sign-ins of others who share their address.
    app.rate_limits.take_sign_in_from(from).map_err(auth::too_many_requests)?;
    // Each sign-in replaces a session and leaves an entry in the audit log.
    app.rate_limits.take_sign_in_as(&actor).map_err(auth::too_many_requests)?;
    note.set_actor(actor);
    let uid = local::loopback_uid(&extensions).await;
    let cookie = app.sessions.create(credential, uid, &headers);
    // Only a path of this server: another site must not receive a visitor who has just signed in.
    let home = app.link("/");
    Ok(([(header::SET_COOKIE, cookie)], Redirect::to(local_path_or(&form.next, &home))).into_response())
}

fn link_has_ended() -> Problem {
    let minutes = SIGN_IN_LINK_TTL.as_secs() / 60;
    Problem::unauthorized(format!(
        "this sign-in link has ended: it works once, within {minutes} minutes of the server's start, until there is a token; \
         restart the server for a new link, or create a token with `duly token create NAME --role admin`"
    ))
}

/// `POST /logout`: ends the session.
pub(super) async fn sign_out(State(app): AppState, headers: HeaderMap, _: Request) -> Response {
    let cookie = app.sessions.remove(&headers);
    ([(header::SET_COOKIE, cookie)], Redirect::to(&app.link("/login"))).into_response()
}
