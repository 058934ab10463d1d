//! What went wrong, as a page; and the way to sign in, where nobody is known.

use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;

use super::frame::Frame;
use super::{Answer, assets, page as answer};
use crate::http::problem::Problem;
use crate::http::server::App;
use crate::http::who::Who;

#[derive(Template)]
#[template(path = "problem.html")]
struct Page<'p> {
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
struct Login<'p> {
    root: &'p str,
    next: String,
    wrong: &'p str,
    css: String,
    mark: String,
}

/// The same problem as a page; `None` leaves it as JSON. Without anybody known, that is the place for a way to sign in.
pub(crate) fn problem(app: &App, who: Option<&Who>, path: &str, problem: &Problem) -> Option<Response> {
    let root = app.options.prefix.as_str();
    let asset = |name: &str| app.link(&assets::path(name));
    let (css, mark) = (asset("duly.css"), asset("mark.svg"));
    if who.is_none() && problem.status == StatusCode::UNAUTHORIZED {
        let wrong = if path == "/login" { problem.detail.as_str() } else { "" };
        let next = if path == "/login" { app.link("/") } else { app.link(path) };
        return answer(StatusCode::UNAUTHORIZED, &Login { root, next, wrong, css, mark }).ok();
    }
    let (title, hint) = words(problem);
    let (detail, status) = (problem.detail.as_str(), problem.status.as_u16());
    answer(problem.status, &Page { root, title, detail, hint, status, css, mark }).ok()
}

/// `GET /login`
pub(super) async fn sign_in(State(app): State<Arc<App>>, page: Frame) -> Answer {
    let (css, mark) = (page.asset("duly.css"), page.asset("mark.svg"));
    answer(StatusCode::OK, &Login { root: &page.root, next: app.link("/"), wrong: "", css, mark })
}

fn words(problem: &Problem) -> (&'static str, &'static str) {
    match problem.code {
        "not_found" => ("Not here", "It may have been there a moment ago."),
        "conflict" => ("That is not so any more", "Go back and look again."),
        "invalid" => ("Something is wrong with what was sent", "Go back, mend it, and send it again."),
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
