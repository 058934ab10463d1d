//! Signing in with a token, for browsers: it becomes a session, and the browser keeps only that session's id.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Form;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Redirect, Response};
use serde::Deserialize;

use super::gate;
use super::pages::back_to;
use super::problem::Problem;
use super::server::App;
use crate::admin::token::hash;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SignIn {
    token: String,
    /// Where to go then: a path of this server.
    #[serde(default)]
    next: String,
}

/// `POST /login`: signs in with a token.
pub(super) async fn sign_in(
    State(app): State<Arc<App>>,
    info: Option<axum::Extension<ConnectInfo<SocketAddr>>>,
    Form(form): Form<SignIn>,
) -> Result<Response, Problem> {
    let from = info.map(|info| info.0.0.ip().to_canonical());
    gate::by_token(&app, form.token.trim(), from).await?;
    let cookie = app.sessions.begin(hash(form.token.trim()), app.options.secure);
    // Only a path of ours: no other site gets a visitor who has just signed in.
    let home = app.link("/");
    Ok(([(header::SET_COOKIE, cookie)], Redirect::to(back_to(&form.next, &home))).into_response())
}

/// `POST /logout`: ends the session.
pub(super) async fn sign_out(State(app): State<Arc<App>>, headers: HeaderMap, _: Request) -> Response {
    let cookie = app.sessions.end(&headers, app.options.secure);
    ([(header::SET_COOKIE, cookie)], Redirect::to(&app.link("/login"))).into_response()
}
