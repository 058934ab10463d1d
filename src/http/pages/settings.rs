//! What this server and its store are, and how pages look in this browser.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Query, State};
use axum::http::header::SET_COOKIE;
use axum::response::{AppendHeaders, IntoResponse, Redirect};
use serde::Deserialize;

use super::frame::{self, Frame};
use super::{Answer, render};
use crate::http::server::App;
use crate::store::Health;

/// How long a browser remembers how pages look.
const REMEMBERED_SECS: u32 = 365 * 24 * 3600;

#[derive(Template)]
#[template(path = "settings.html")]
struct Settings {
    page: Frame,
    health: Option<Health>,
    zones: Vec<String>,
    version: &'static str,
    commands: bool,
}

/// `GET /settings`
pub(super) async fn show(State(app): State<Arc<App>>, page: Frame) -> Answer {
    let page = page.titled("/settings", "Settings");
    let health = app.duly.health().await.ok();
    let mut zones: Vec<String> = jiff::tz::db().available().map(|zone| zone.as_str().to_owned()).collect();
    zones.sort();
    render(&Settings { page, health, zones, version: env!("CARGO_PKG_VERSION"), commands: app.options.commands })
}

#[derive(Deserialize, Default)]
pub(super) struct Look {
    theme: Option<String>,
    zone: Option<String>,
    #[serde(default)]
    next: String,
}

/// `GET /settings/look?theme=&zone=`: how pages look in this browser, for those who may change nothing else, too.
pub(super) async fn look(page: Frame, Query(look): Query<Look>) -> Answer {
    let path = if page.root.is_empty() { "/" } else { page.root.as_str() };
    let cookie = |name: &str, value: &str| {
        (SET_COOKIE, format!("{name}={value}; Path={path}; Max-Age={REMEMBERED_SECS}; SameSite=Lax"))
    };
    let mut cookies = Vec::new();
    if let Some(wanted) = &look.theme {
        let theme = frame::theme(Some(wanted));
        cookies.push(cookie("duly_theme", if theme.is_empty() { "auto" } else { theme }));
    }
    if let Some(wanted) = &look.zone {
        cookies.push(cookie("duly_zone", &frame::zone(Some(wanted)).1));
    }
    let to = format!("{}{}", page.root, super::back_to(&look.next, "/settings?did=look"));
    Ok((AppendHeaders(cookies), Redirect::to(&to)).into_response())
}
