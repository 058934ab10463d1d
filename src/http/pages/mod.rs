//! The dashboard: pages for people.

use std::sync::Arc;

use axum::Router;
use axum::response::Response;

use super::problem::Problem;
use super::server::App;
use super::who::Who;

/// All pages and their assets.
pub(crate) fn router() -> Router<Arc<App>> {
    Router::new()
}

/// The same problem as a page; `None` leaves it as JSON. Without anybody known, that is the place for a way to sign in.
pub(crate) fn problem(_app: &App, _who: Option<&Who>, _path: &str, _problem: &Problem) -> Option<Response> {
    None
}
