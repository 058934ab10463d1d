//! Whether the server lives, and whether it can serve: for whoever restarts it or sends it requests.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;

use super::problem::Problem;
use super::server::App;

/// A store that does not answer by then is not there.
const READY: Duration = Duration::from_secs(2);
/// One that has answered within this time is there: whoever asks often does not ask the store each time.
const ANSWERED: Duration = Duration::from_secs(1);

/// `GET /healthz`: the process lives.
pub(super) async fn alive() -> &'static str {
    "ok\n"
}

/// `GET /readyz`: the store answers.
pub(super) async fn ready(State(app): State<Arc<App>>) -> Result<&'static str, Problem> {
    let not_ready =
        || Problem::new(StatusCode::SERVICE_UNAVAILABLE, "store", "the store does not answer").retry_after(1);
    match tokio::time::timeout(READY, app.tokens.all_of(&app.duly, ANSWERED)).await {
        Ok(Ok(_)) => Ok("ok\n"),
        _ => Err(not_ready()),
    }
}
