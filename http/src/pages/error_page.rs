//! Error pages, and the login page for unknown clients.

use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;

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
    css: String,
    mark: String,
}

/// Returns the page for a problem; `None` leaves it as JSON. An unknown client gets the login page.
pub(crate) fn problem_page(app: &App, identity: Option<&Identity>, path: &str, problem: &Problem) -> Option<Response> {
    let root = app.options.prefix.as_str();
    let asset = |name: &str| app.link(&assets::path(name));
    let (css, mark) = (asset("duly.css"), asset("mark.svg"));
    if identity.is_none() && problem.status == StatusCode::UNAUTHORIZED {
        let error = if path == "/login" { problem.detail.as_str() } else { "" };
        let next = if path == "/login" { app.link("/") } else { app.link(path) };
        return render_with_status(StatusCode::UNAUTHORIZED, &LoginPage { root, next, error, css, mark }).ok();
    }
    let (title, hint) = title_and_hint(problem);
    let (detail, status) = (problem.detail.as_str(), problem.status.as_u16());
    render_with_status(problem.status, &ErrorPage { root, title, detail, hint, status, css, mark }).ok()
}

/// `GET /login`
pub(super) async fn login(State(app): AppState, layout: Layout) -> PageResult {
    let (css, mark) = (layout.asset("duly.css"), layout.asset("mark.svg"));
    render_with_status(StatusCode::OK, &LoginPage { root: &layout.root, next: app.link("/"), error: "", css, mark })
}

fn title_and_hint(problem: &Problem) -> (&'static str, &'static str) {
    match problem.code {
        "not_found" => ("Not here", "It may have been there a moment ago."),
        "conflict" => ("That is not so any more", "Go back and look again."),
        "invalid" => ("Something is wrong with what was sent", "Go back, fix it, and send it again."),
        "forbidden" => ("You may not do that", "Somebody with another token may."),
        "read_only" => ("Nothing can be changed here", ""),
        "cross_site" => {
            ("Another site has sent this", "Nothing was changed. If it was you, do it again from the page itself.")
        }
        "too_many" => ("Too much at once", ""),
        "store" | "unknown" | "timeout" => {
            ("The store does not answer", "Try again; `duly doctor` says what is wrong with it.")
        }
        "unsupported" => ("This store cannot do that", ""),
        "remote" => ("The node could not do it", ""),
        _ => ("That did not work", ""),
    }
}
