//! The audit log.

use askama::Template;
use axum::extract::{Query, State};
use serde::Deserialize;

use super::display::{self, Moment};
use super::layout::Layout;
use super::{PageResult, render};
use crate::identity::Identity;
use crate::server::AppState;
use duly::admin::{AuditOutcome, Role};

/// The page size.
const PAGE_SIZE: usize = 100;

#[derive(Template)]
#[template(path = "audit.html")]
struct AuditPage {
    layout: Layout,
    rows: Vec<AuditRow>,
    next: String,
}

struct AuditRow {
    at: Moment,
    actor: String,
    action: String,
    target: String,
    filter: String,
    count: String,
    address: String,
    outcome: AuditOutcome,
}

#[derive(Deserialize, Default)]
pub(super) struct AuditParams {
    #[serde(default)]
    before: String,
}

/// `GET /audit`
pub(super) async fn list(
    State(app): AppState,
    identity: Identity,
    Query(params): Query<AuditParams>,
    layout: Layout,
) -> PageResult {
    identity.require(Role::Operator)?;
    let layout = layout.with_title("/audit", "Audit");
    let found = app.duly.audit().list(params.before.parse().ok(), PAGE_SIZE).await?;
    let next = found
        .last()
        .filter(|last| found.len() == PAGE_SIZE && last.number > 0)
        .map(|last| format!("/audit?before={}", last.number));
    let rows = found.into_iter().map(|record| AuditRow {
        at: layout.moment(record.at),
        actor: record.entry.actor,
        action: record.entry.action,
        target: record.entry.target.unwrap_or_default(),
        filter: record.entry.filter.unwrap_or_default(),
        count: record.entry.count.map(display::count).unwrap_or_default(),
        address: record.entry.address.unwrap_or_default(),
        outcome: record.entry.outcome,
    });
    let rows = rows.collect();
    render(&AuditPage { layout, rows, next: next.unwrap_or_default() })
}
