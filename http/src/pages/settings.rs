//! The server, its store, and the appearance of the pages in this browser.

use askama::Template;
use axum::extract::{Query, State};
use axum::http::header::SET_COOKIE;
use axum::response::{AppendHeaders, IntoResponse, Redirect};
use serde::Deserialize;

use super::layout::{self, Layout};
use super::{PageResult, flash, render};
use crate::server::AppState;
use duly::admin::Health;

/// How long a browser keeps the appearance.
const REMEMBERED_SECS: u32 = 365 * 24 * 3600;

#[derive(Template)]
#[template(path = "settings.html")]
struct SettingsPage {
    layout: Layout,
    health: Option<Health>,
    zones: Vec<String>,
    version: &'static str,
    commands: bool,
}

/// `GET /settings`
pub(super) async fn show(State(app): AppState, layout: Layout) -> PageResult {
    let layout = layout.with_title("/settings", "Settings");
    let health = app.duly.health().await.ok();
    let mut zones: Vec<String> = jiff::tz::db().available().map(|zone| zone.as_str().to_owned()).collect();
    zones.sort();
    render(&SettingsPage { layout, health, zones, version: env!("CARGO_PKG_VERSION"), commands: app.options.commands })
}

#[derive(Deserialize, Default)]
pub(super) struct AppearanceParams {
    theme: Option<String>,
    zone: Option<String>,
    #[serde(default)]
    next: String,
}

/// `GET /settings/appearance?theme=&zone=`: saves the appearance in this browser, for every role.
pub(super) async fn save_appearance(layout: Layout, Query(params): Query<AppearanceParams>) -> PageResult {
    let path = if layout.root.is_empty() { "/" } else { layout.root.as_str() };
    let cookie = |name: &str, value: &str| {
        (SET_COOKIE, format!("{name}={value}; Path={path}; Max-Age={REMEMBERED_SECS}; SameSite=Lax"))
    };
    let mut cookies = Vec::new();
    if let Some(wanted) = &params.theme {
        let theme = layout::theme(Some(wanted));
        cookies.push(cookie("duly_theme", if theme.is_empty() { "auto" } else { theme }));
    }
    if let Some(wanted) = &params.zone {
        // Only the form of the settings has a zone; the theme button needs no message.
        let flash = flash::encode("appearance", None, "");
        cookies.push((SET_COOKIE, flash::cookie(&layout.root, layout.secure, &flash)));
        cookies.push(cookie("duly_zone", &layout::zone(Some(wanted)).1));
    }
    let to = format!("{}{}", layout.root, super::local_path_or(&params.next, "/settings"));
    Ok((AppendHeaders(cookies), Redirect::to(&to)).into_response())
}
