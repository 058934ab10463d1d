//! The dashboard. A handler calls the client API, builds a view and renders it; it has no rules of its own.
//!
//! All pages are plain HTML and forms, and work without scripts; `assets/duly.js` adds live updates and shortcuts.
//! Every change is a POST: the handler requires a role, `auth` audits the request, and the response redirects to a
//! page with a flash message.

mod assets;
mod attention;
mod audit;
mod bulk_actions;
mod calls;
mod chart;
mod confirm;
mod cron;
mod cron_form;
mod dead;
mod display;
mod error_page;
mod flash;
mod history_charts;
mod job;
mod job_timeline;
mod jobs;
mod json_format;
mod kinds;
mod layout;
mod locks;
mod nodes;
mod overview;
mod palette;
mod push;
mod queues;
mod scheduled;
mod settings;
mod utilisation;

use std::collections::HashSet;
use std::sync::Arc;

use askama::Template;
use axum::Router;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, SET_COOKIE};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};

pub(crate) use self::error_page::problem_page;
use self::layout::Layout;
use super::problem::{Problem, Result};
use super::server::App;
use duly::NodeId;

/// The result of a page handler.
type PageResult = Result<Response>;

/// Returns the routes of all pages and assets.
pub(crate) fn router(app: &Arc<App>) -> Router<Arc<App>> {
    Router::new()
        .route("/", get(overview::show))
        .route("/jobs", get(jobs::list))
        .route("/jobs/actions", post(bulk_actions::run))
        .route("/jobs/{id}", get(job::show))
        .route("/jobs/{id}/edit", get(job::edit).post(job::save))
        .route("/jobs/{id}/{action}", post(job::run_action))
        .route("/push", get(push::form).post(push::push))
        .route("/queues", get(queues::list))
        .route("/queues/{queue}", get(queues::show))
        .route("/queues/{queue}/{action}", post(queues::run_action))
        .route("/kinds", get(kinds::list))
        .route("/kinds/{kind}", get(kinds::show))
        .route("/scheduled", get(scheduled::show))
        .route("/dead", get(dead::show))
        .route("/cron", get(cron::list).post(cron_form::save))
        .route("/cron/new", get(cron_form::form))
        .route("/cron/rule/{name}", get(cron::show))
        .route("/cron/{name}/{action}", post(cron::run_action))
        .route("/nodes", get(nodes::list))
        .route("/nodes/{id}", get(nodes::show))
        .route("/nodes/{id}/{action}", post(nodes::run_action))
        .route("/locks", get(locks::list))
        .route("/locks/break", post(locks::break_lock))
        .route("/calls", get(calls::list).post(calls::ping))
        .route("/audit", get(audit::list))
        .route("/palette", get(palette::search))
        .route("/suggestions", get(palette::suggestions))
        .route("/settings", get(settings::show))
        .route("/settings/appearance", get(settings::save_appearance))
        .route("/login", get(error_page::login))
        .layer(from_fn_with_state(app.clone(), flash::delete_shown))
        .route("/assets/{hash}/{name}", get(assets::get))
}

/// Renders a view.
fn render(view: &impl Template) -> PageResult {
    render_with_status(StatusCode::OK, view)
}

fn render_with_status(status: StatusCode, view: &impl Template) -> PageResult {
    match view.render() {
        Ok(text) => Ok((status, [(CONTENT_TYPE, "text/html; charset=utf-8")], text).into_response()),
        Err(error) => {
            tracing::error!(%error, "a page could not be rendered");
            Err(Problem::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "page",
                "this page could not be rendered; see the server's log",
            ))
        }
    }
}

/// Redirects to a page with a flash message.
fn redirect_with_flash(layout: &Layout, path: &str, action: &str, number: Option<u64>, name: &str) -> PageResult {
    let cookie = flash::cookie(&layout.root, layout.secure, &flash::encode(action, number, name));
    Ok(([(SET_COOKIE, cookie)], Redirect::to(&format!("{}{path}", layout.root))).into_response())
}

/// Returns `next` if it is a path of this server, or `fallback`.
///
/// Browsers drop tabs and line ends from a URL and read `\` as `/`, so a text that looks like a path may lead to
/// another site. Other control characters are not allowed in a header.
pub(super) fn local_path_or<'f>(next: &'f str, fallback: &'f str) -> &'f str {
    let is_odd = |c: char| c == '\\' || c.is_control();
    let is_local = next.starts_with('/') && !next.starts_with("//") && !next.contains(is_odd);
    if is_local { next } else { fallback }
}

/// Returns a 403 for jobs that run programs, unless the server accepts them.
fn check_kind(app: &App, kind: &str) -> Result<()> {
    if kind.trim() == "command" && !app.options.commands {
        return Err(Problem::forbidden(
            "this server does not allow `command` jobs; use `duly push`, or start the server with --allow-commands",
        ));
    }
    Ok(())
}

/// Returns the nodes that have a page. Links to others would lead to an error page.
async fn known_nodes(app: &App) -> HashSet<NodeId> {
    let nodes = app.duly.nodes().list().await.unwrap_or_default();
    nodes.iter().map(|node| node.id).collect()
}

/// Returns the 404 for an unknown action.
fn unknown_action(action: &str) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "not_found", format!("there is no action {action:?} here"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_stay_on_this_server() {
        let elsewhere = ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)"];
        let odd = ["", "/a\r\nX: y", "/\t/evil.example/x", "/\0x", "/\u{1b}", "/\u{7f}", "/\u{85}/evil.example"];
        for bad in elsewhere.into_iter().chain(odd) {
            assert_eq!(local_path_or(bad, "/jobs"), "/jobs", "{bad}");
        }
        assert_eq!(local_path_or("/queues/mail?x=1", "/"), "/queues/mail?x=1");
    }
    #[tokio::test]
    async fn links_follow_a_router_that_is_nested_somewhere() {
        let duly = duly::Duly::open(":memory:").await.expect("opens");
        let inner = crate::Server::new(duly).open_to_all().router();
        let outer: Router = Router::new().nest("/deep/duly", inner);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let address = listener.local_addr().expect("has one");
        tokio::spawn(async move { axum::serve(listener, outer).await });
        let asked = tokio::task::spawn_blocking(move || {
            use std::io::{Read as _, Write as _};
            let mut stream = std::net::TcpStream::connect(address).expect("connects");
            let request = format!("GET /deep/duly/queues HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).expect("sent");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("answered");
            answer
        });
        let answer = asked.await.expect("no panic");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains("href=\"/deep/duly/jobs\""), "{answer}");
        assert!(!answer.contains("href=\"/jobs\""), "{answer}");
    }
}
