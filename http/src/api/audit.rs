//! The audit log.

use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Problems, next_link, page_size};
use crate::identity::Operator;
use crate::json::QueryParams;
use crate::openapi::AuditOutcomeName;
use crate::problem::Result;
use crate::server::{App, AppState};
use crate::views::{rfc3339, unix_ms};
use duly::admin::AuditRecord;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(list))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct AuditListParams {
    /// The page size (50, at most 200).
    limit: Option<usize>,
    /// The cursor of the page.
    cursor: Option<u64>,
}

/// An administrative action, over HTTP or on the command line.
#[derive(Serialize, ToSchema)]
#[schema(as = AuditEntry)]
struct EntryView {
    number: u64,
    at: String,
    at_ms: i64,
    /// The name of the token, `local`, or the user and the host of a command.
    actor: String,
    /// The resource and the verb: `jobs.remove`, `queues.pause`.
    action: String,
    /// The id or the name of the changed thing.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    /// The filter that selected the changed jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    filter: Option<String>,
    /// The number of changed things.
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
    #[schema(value_type = AuditOutcomeName)]
    outcome: &'static str,
    /// The address of the client.
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
}

impl EntryView {
    fn new(record: AuditRecord) -> Self {
        let AuditRecord { number, at, entry, .. } = record;
        EntryView {
            number,
            at: rfc3339(at),
            at_ms: unix_ms(at),
            actor: entry.actor,
            action: entry.action,
            target: entry.target,
            filter: entry.filter,
            count: entry.count,
            outcome: entry.outcome.as_str(),
            address: entry.address,
        }
    }
}

/// A page of entries, newest first.
#[derive(Serialize, ToSchema)]
struct AuditEntries {
    entries: Vec<EntryView>,
    next: Option<String>,
}

/// List administrative actions, newest first: the last 1,000 of each actor
#[utoipa::path(get, path = "/audit", tag = "audit", operation_id = "listAuditEntries", params(AuditListParams), responses((status = 200, description = "a page of entries", body = AuditEntries), Problems))]
async fn list(
    State(app): AppState,
    _: Operator,
    QueryParams(params): QueryParams<AuditListParams>,
) -> Result<(HeaderMap, axum::Json<AuditEntries>)> {
    let page_size = page_size(params.limit)?;
    let entries = app.duly.audit().list(params.cursor, page_size).await?;
    let next = entries.last().filter(|_| entries.len() == page_size).map(|last| last.number.to_string());
    let headers = next_link(&app, "/audit", &[("limit", Some(page_size.to_string()))], next.as_deref());
    Ok((headers, axum::Json(AuditEntries { entries: entries.into_iter().map(EntryView::new).collect(), next })))
}
