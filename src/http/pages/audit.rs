//! Who has done what through this server.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Query, State};
use serde::Deserialize;

use super::frame::Frame;
use super::show::Moment;
use super::{Answer, render};
use crate::admin::token::Role;
use crate::http::server::App;
use crate::http::who::Who;

/// Entries on one page.
const PAGE: usize = 100;

#[derive(Template)]
#[template(path = "audit.html")]
struct Audit {
    page: Frame,
    rows: Vec<Row>,
    next: String,
}

struct Row {
    at: Moment,
    who: String,
    what: String,
    from: String,
    refused: bool,
}

#[derive(Deserialize, Default)]
pub(super) struct Asked {
    #[serde(default)]
    before: String,
}

/// `GET /audit`
pub(super) async fn list(State(app): State<Arc<App>>, who: Who, Query(asked): Query<Asked>, page: Frame) -> Answer {
    who.may(Role::Operator)?;
    let page = page.titled("/audit", "Audit");
    let found = app.duly.audits(asked.before.parse().ok(), PAGE).await?;
    let next =
        found.last().filter(|last| found.len() == PAGE && last.no > 0).map(|last| format!("/audit?before={}", last.no));
    let rows = found.into_iter().map(|record| Row {
        at: page.moment(record.at),
        who: record.entry.who,
        what: record.entry.what,
        from: record.entry.from.unwrap_or_default(),
        refused: record.entry.status >= 400,
    });
    let rows = rows.collect();
    render(&Audit { page, rows, next: next.unwrap_or_default() })
}
