//! The liveness and readiness probes.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;

use super::problem::{Problem, Result};
use super::server::AppState;

/// The store must respond within this time.
const STORE_TIMEOUT: Duration = Duration::from_secs(2);
/// A response of the store counts for this long, so that frequent probes do not each query the store.
const RESPONSE_AGE_MAX: Duration = Duration::from_secs(1);

/// `GET /healthz`: the process runs.
pub(super) async fn liveness() -> &'static str {
    "ok\n"
}

/// `GET /readyz`: the store responds.
pub(super) async fn readiness(State(app): AppState) -> Result<&'static str> {
    let not_ready =
        || Problem::new(StatusCode::SERVICE_UNAVAILABLE, "store", "the store does not respond").retry_after(1);
    match tokio::time::timeout(STORE_TIMEOUT, app.tokens.get_within(&app.duly, RESPONSE_AGE_MAX)).await {
        Ok(Ok(_)) => Ok("ok\n"),
        _ => Err(not_ready()),
    }
}
