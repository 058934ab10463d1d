//! The face of a store: a JSON API for any language, and a dashboard for people.
//!
//! It holds no rules: each handler parses, calls the door ([`Duly`]) and answers. It never touches the store.
//! `gate` stands before everything: who it is, whether they may, how often; `problem` is how errors look.

mod api;
mod audit;
mod etag;
mod gate;
mod health;
mod impatient;
mod json;
mod limit;
mod login;
mod metrics;
mod openapi;
mod pages;
mod pointer;
mod problem;
mod proof;
mod serve;
mod server;
mod session;
mod streams;
mod tokens;
mod view;
mod who;

use std::sync::Arc;

use axum::middleware::from_fn_with_state;
use axum::{Router, routing};
use tower_http::compression::CompressionLayer;

pub use self::openapi::openapi;
use self::problem::Problem;
pub use self::serve::Listening;
use self::server::App;
pub use self::server::{CONNECTIONS, RATE, Server};
pub use self::who::Who;
use crate::client::Duly;

/// The API and the dashboard of a store, to be mounted in a service of your own; [`Server`] has options.
pub fn router(duly: Duly) -> Router {
    Server::new(duly).router()
}

fn routes(app: Arc<App>) -> Router {
    let (api, _) = openapi::described().split_for_parts();
    api.route("/healthz", routing::get(health::alive))
        .route("/readyz", routing::get(health::ready))
        .route("/metrics", routing::get(metrics::metrics))
        .route("/openapi.json", routing::get(openapi::document))
        .route("/login", routing::post(login::sign_in))
        .route("/logout", routing::post(login::sign_out))
        .merge(pages::router())
        .fallback(async || Problem::no_page())
        .method_not_allowed_fallback(async || {
            Problem::new(
                axum::http::StatusCode::METHOD_NOT_ALLOWED,
                "method",
                "this address does not do that; see /openapi.json",
            )
        })
        .layer(from_fn_with_state(app.clone(), gate::pass))
        .layer(CompressionLayer::new())
        .with_state(app)
}
