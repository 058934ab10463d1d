//! The HTTP API and the dashboard of a duly store.
//!
//! The API speaks JSON to clients and workers in any language; the dashboard is for people. [`router`] returns both as an
//! [`axum::Router`] to mount in a service; [`Server`] has options, and serves on a socket of its own.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> duly::Result<()> {
//! let duly = duly::Duly::open(":memory:").await?;
//! let service: axum::Router = axum::Router::new().nest("/duly", duly_http::router(duly));
//! # Ok(())
//! # }
//! ```
//!
//! The package uses only the public API of `duly`. A handler parses the request, calls [`duly::Duly`] and builds the response;
//! it has no rules of its own. The `auth` module wraps all of them: it identifies the client, checks its role and limits its
//! rate. `problem` builds error responses.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(missing_debug_implementations, missing_docs, unreachable_pub)]

mod access_log;
mod api;
mod audit;
mod audited_action;
mod auth;
mod body_budget;
mod bulk_task;
mod client_map;
mod client_network;
mod connections;
mod credential;
mod etag;
mod health;
mod identity;
mod json;
mod json_pointer;
mod local;
mod login;
mod metrics;
mod open_files;
mod openapi;
mod pages;
mod problem;
mod queue_count_limit;
mod rate_limit;
mod samples;
mod server;
mod sessions;
mod sign_in_link;
mod slots;
mod streams;
mod sync;
mod token_cache;
pub mod views;
mod waits;
mod write_timeout;

use std::sync::Arc;

use axum::middleware::{from_fn, from_fn_with_state};
use axum::{Router, routing};
use duly::Duly;
use tower_http::compression::CompressionLayer;

pub use self::connections::BoundServer;
pub use self::identity::Identity;
pub use self::openapi::openapi;
use self::problem::Problem;
use self::server::App;
pub use self::server::{DEFAULT_CONNECTIONS_MAX, DEFAULT_QUEUES_MAX, DEFAULT_REQUESTS_PER_SECOND_MAX, Server};
pub use self::sign_in_link::SIGN_IN_LINK_TTL;

/// Returns the API and the dashboard of a store, to mount in a service; [`Server`] has options.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> duly::Result<()> {
/// # let duly = duly::Duly::open(":memory:").await?;
/// let service: axum::Router = axum::Router::new().merge(duly_http::router(duly));
/// # Ok(())
/// # }
/// ```
pub fn router(duly: Duly) -> Router {
    Server::new(duly).router()
}

fn routes(app: Arc<App>) -> Router {
    let (api, _) = openapi::described_router().split_for_parts();
    api.route("/healthz", routing::get(health::liveness))
        .route("/readyz", routing::get(health::readiness))
        .route("/metrics", routing::get(metrics::metrics))
        .route("/openapi.json", routing::get(openapi::document))
        .route("/login", routing::post(login::sign_in))
        .route("/logout", routing::post(login::sign_out))
        .merge(pages::router(&app))
        .fallback(async || Problem::unknown_route())
        .method_not_allowed_fallback(async || {
            Problem::new(
                axum::http::StatusCode::METHOD_NOT_ALLOWED,
                "method",
                "this address does not support this method; see /openapi.json",
            )
        })
        .layer(from_fn_with_state(app.clone(), auth::handle_request))
        .layer(CompressionLayer::new())
        .layer(from_fn(access_log::log_request))
        .with_state(app)
}

/// The Rust in the documents is compiled as tests.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../README.md")]
    struct ReadMe;
    #[doc = include_str!("../../docs/guide/http.md")]
    struct Http;
    #[doc = include_str!("../../docs/guide/dashboard.md")]
    struct Dashboard;
    #[doc = include_str!("../../docs/how-to/send-mail.md")]
    struct SendMail;
}
