//! Flash messages: one sentence per action, with an undo if there is one.
//!
//! A redirect carries the message in a cookie, and the page that shows it deletes the cookie: a reload or a bookmark does
//! not repeat it.

use axum::extract::{Request, State};
use axum::http::header::{CONTENT_TYPE, HeaderValue, SET_COOKIE};
use axum::http::{Extensions, HeaderMap};
use axum::middleware::Next;
use axum::response::Response;

use super::{display, layout};
use crate::auth::LIVE_UPDATE;
use crate::server::{App, AppState};
use duly::bounds::NAME_BYTES_MAX;

/// The name of the cookie.
const COOKIE: &str = "duly_flash";
/// How long a browser keeps a message that no page has shown.
const KEPT_SECS: u32 = 60;

/// A message at the top of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Flash {
    pub text: String,
    pub is_error: bool,
    pub undo: Option<Undo>,
}

/// A button that undoes the action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Undo {
    /// The path to post to, below the root.
    pub action: String,
    pub label: &'static str,
}

/// Returns the value of the cookie for the page after an action.
pub(super) fn encode(action: &str, number: Option<u64>, name: &str) -> String {
    let mut value = format!("did={action}");
    if let Some(number) = number {
        value.push_str(&format!("&n={number}"));
    }
    if !name.is_empty() {
        value.push_str(&format!("&of={}", display::url_encode(name)));
    }
    value
}

/// Returns the `Set-Cookie` of a message for the next page below `root`.
pub(super) fn cookie(root: &str, is_secure: bool, value: &str) -> String {
    set_cookie(root, is_secure, value, KEPT_SECS)
}

fn set_cookie(root: &str, is_secure: bool, value: &str, max_age: u32) -> String {
    let path = if root.is_empty() { "/" } else { root };
    let flag = if is_secure { "; Secure" } else { "" };
    format!("{COOKIE}={value}; Path={path}; Max-Age={max_age}; HttpOnly; SameSite=Strict{flag}")
}

/// Returns the message of a request for a page. A live update shows none: it must not take the message of the page that
/// the browser loads at the same time.
pub(super) fn of_request(headers: &HeaderMap) -> Option<Flash> {
    shown_cookie(headers).and_then(decode)
}

fn shown_cookie(headers: &HeaderMap) -> Option<&str> {
    layout::cookie(headers, COOKIE).filter(|_| !headers.contains_key(LIVE_UPDATE))
}

/// The middleware around all pages: deletes the cookie with the page that shows its message.
pub(super) async fn delete_shown(State(app): AppState, request: Request, next: Next) -> Response {
    let delete = shown_cookie(request.headers()).is_some().then(|| deletion(&app, request.extensions()));
    let mut response = next.run(request).await;
    let is_page = response.headers().get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/html"));
    if let Some(Ok(delete)) = delete.filter(|_| is_page && !response.status().is_redirection()) {
        response.headers_mut().append(SET_COOKIE, delete);
    }
    response
}

fn deletion(app: &App, extensions: &Extensions) -> Result<HeaderValue, axum::http::header::InvalidHeaderValue> {
    HeaderValue::try_from(set_cookie(layout::root(app, extensions), app.options.secure, "", 0))
}

/// Returns the message of a cookie. Only numbers and names come from the cookie, never other text.
fn decode(cookie: &str) -> Option<Flash> {
    let value = |key: &str| {
        cookie.split('&').filter_map(|pair| pair.split_once('=')).find(|pair| pair.0 == key).map(|pair| pair.1)
    };
    let number = value("n").and_then(|n| n.parse().ok()).unwrap_or(1u64);
    let jobs = display::plural(number, "job");
    let name = value("of").map(url_decode).filter(|name| is_name(name)).unwrap_or_default();
    let path = display::url_encode(&name);
    let plain = |text: String| Some(Flash { text, is_error: false, undo: None });
    let undo =
        |text: String, action: String, label| Some(Flash { text, is_error: false, undo: Some(Undo { action, label }) });
    match value("did")? {
        "pushed" => plain("Pushed the job.".to_owned()),
        "there" => plain("This job exists already; nothing was changed.".to_owned()),
        "retried" => plain(format!("Retried: {jobs} will run as soon as a worker is free.")),
        "removed" => plain(format!("Removed {jobs}.")),
        "rescheduled" => plain(format!("Rescheduled {jobs}.")),
        "cancelling" => plain("Cancelling: the handler is told to stop, and the job ends when it does.".to_owned()),
        "ended" => plain("This job had already ended; nothing was changed.".to_owned()),
        "cancelled" => plain(format!("Cancelled {jobs}. A running handler is told to stop.")),
        "edited" => plain("Changed: the next attempt gets the new args.".to_owned()),
        "paused" => {
            undo(format!("Queue {name} is paused; running jobs continue."), format!("/queues/{path}/resume"), "Undo")
        }
        "resumed" => undo(format!("Queue {name} is resumed."), format!("/queues/{path}/pause"), "Undo"),
        "capacity" => plain(format!("The capacity of queue {name} is set.")),
        "cleared" => plain(format!("Cleared queue {name}: removed {jobs}.")),
        "queue-removed" => plain(format!("Removed queue {name}; a push creates it again.")),
        "rule" => plain(format!("Rule {name} is saved.")),
        "rule-paused" => undo(format!("Rule {name} is paused."), format!("/cron/{path}/resume"), "Undo"),
        "rule-resumed" => undo(format!("Rule {name} is resumed."), format!("/cron/{path}/pause"), "Undo"),
        "rule-removed" => plain(format!("Rule {name} is removed; jobs that it has pushed stay.")),
        "triggered" => plain(format!("Rule {name} has pushed a job now.")),
        "quiet" => undo(
            "The node claims no further jobs; running jobs continue.".to_owned(),
            format!("/nodes/{path}/resume"),
            "Undo",
        ),
        "node-resumed" => plain("The node claims jobs again.".to_owned()),
        "stopping" => plain("The node stops once its running jobs have finished.".to_owned()),
        "broken" | "hold-broken" => plain(match number {
            0 => "The lock was released in the meantime; nothing was broken.".to_owned(),
            1 if value("did") == Some("hold-broken") => "Broke the hold; its holder is notified.".to_owned(),
            1 => "Broke the lock; its holder is notified.".to_owned(),
            holds => format!("Broke {} holds of the lock; their holders are notified.", display::count(holds)),
        }),
        "continues" => plain("This takes a while and continues; the audit log shows its end.".to_owned()),
        "appearance" => plain("Saved for this browser.".to_owned()),
        _ => None,
    }
}

fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_.:/-".contains(c);
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.chars().all(plain)
}

fn url_decode(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cookie_carries_the_flash() {
        let value = encode("paused", None, "mail:eu");
        assert_eq!(value, "did=paused&of=mail%3Aeu");
        let flash = decode(&value).expect("something to say");
        assert_eq!(flash.text, "Queue mail:eu is paused; running jobs continue.");
        assert_eq!(flash.undo.expect("a way back").action, "/queues/mail%3Aeu/resume");
        assert_eq!(encode("removed", Some(12), ""), "did=removed&n=12");
        let set = cookie("/duly", true, "did=rule");
        assert_eq!(set, "duly_flash=did=rule; Path=/duly; Max-Age=60; HttpOnly; SameSite=Strict; Secure");
    }

    #[test]
    fn a_cookie_cannot_inject_other_text() {
        assert_eq!(decode("did=You%20have%20won"), None);
        let flash = decode("did=paused&of=%3Cscript%3Ealert(1)%3C/script%3E").expect("a sentence");
        assert_eq!(flash.text, "Queue  is paused; running jobs continue.");
        assert_eq!(text_of("did=removed&n=99999999999999999999999"), "Removed 1 job.");
    }

    #[test]
    fn one_hold_of_several_is_not_the_lock() {
        assert_eq!(text_of("did=broken&n=1"), "Broke the lock; its holder is notified.");
        assert_eq!(text_of("did=hold-broken&n=1"), "Broke the hold; its holder is notified.");
    }

    fn text_of(cookie: &str) -> String {
        decode(cookie).expect("a sentence").text
    }
}
