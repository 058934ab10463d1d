//! Error pages, and the login page for unknown clients.

use askama::Template;
use axum::extract::{Query, State};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use serde::Deserialize;

use super::layout::Layout;
use super::{PageResult, assets, render_with_status};
use crate::identity::Identity;
use crate::problem::Problem;
use crate::server::{App, AppState};

#[derive(Template)]
#[template(path = "error.html")]
struct ErrorPage<'p> {
    root: &'p str,
    title: &'p str,
    detail: &'p str,
    hint: &'static str,
    status: u16,
    css: String,
    mark: String,
}

#[derive(Template)]
#[template(path = "login.html")]
struct LoginPage<'p> {
    root: &'p str,
    next: String,
    error: &'p str,
    /// The secret of the sign-in link, or nothing.
    token: String,
    /// Why the client needs a token, and how to get one.
    reason: &'p str,
    css: String,
    mark: String,
}

/// Returns the page for a problem; `None` leaves it as JSON. An unknown client gets the login page, which leads to the
/// requested address.
pub(crate) fn problem_page(app: &App, identity: Option<&Identity>, uri: &Uri, problem: &Problem) -> Option<Response> {
    let path = uri.path();
    let root = app.options.prefix.as_str();
    let asset = |name: &str| app.link(&assets::path(name));
    let (css, mark) = (asset("duly.css"), asset("mark.svg"));
    if identity.is_none() && problem.status == StatusCode::UNAUTHORIZED {
        let (error, reason) =
            if path == "/login" { (problem.detail.as_str(), "") } else { ("", problem.detail.as_str()) };
        let token = String::new();
        let requested = uri.path_and_query().map_or("/", |requested| requested.as_str());
        let next = if path == "/login" { app.link("/") } else { app.link(requested) };
        return render_with_status(
            StatusCode::UNAUTHORIZED,
            &LoginPage { root, next, error, token, reason, css, mark },
        )
        .ok();
    }
    let (title, hint) = title_and_hint(problem);
    let (detail, status) = (problem.detail.as_str(), problem.status.as_u16());
    render_with_status(problem.status, &ErrorPage { root, title, detail, hint, status, css, mark }).ok()
}

#[derive(Deserialize, Default)]
pub(super) struct LoginParams {
    /// The secret of the sign-in link.
    #[serde(default)]
    link: String,
}

/// `GET /login`: the form. A sign-in link fills it in; only sending the form uses the link, so a preview does not.
pub(super) async fn login(State(app): AppState, Query(params): Query<LoginParams>, layout: Layout) -> PageResult {
    let (css, mark) = (layout.asset("duly.css"), layout.asset("mark.svg"));
    let (root, token) = (&layout.root, params.link);
    let view = LoginPage { root, next: app.link("/"), error: "", token, reason: "", css, mark };
    render_with_status(StatusCode::OK, &view)
}

fn title_and_hint(problem: &Problem) -> (&'static str, &'static str) {
    match problem.code {
        "not_found" => ("Not found", "It may have been removed a moment ago."),
        "conflict" => ("It has changed in the meantime", "Go back, reload the page and try again."),
        "invalid" => ("The input is invalid", "Go back, correct it, and send it again."),
        "forbidden" => ("You may not do that", "Sign in with a token that has a higher role."),
        "read_only" => ("This server is read-only", ""),
        "cross_site" => {
            ("The request came from another site", "Nothing was changed. To do it, use a page of this server.")
        }
        "too_many" | "busy" => ("Too many requests", ""),
        "store" | "unknown" | "timeout" => ("The store does not respond", "Try again; `duly doctor` shows the cause."),
        "unsupported" => ("This store does not support that", ""),
        "remote" => ("The call of the node failed", ""),
        _ => ("That did not work", ""),
    }
}
