//! Identity has changed what.

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
use crate::problem::Problem;
use crate::server::App;
use crate::views::{rfc3339, unix_ms};
use duly::AuditRecord;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(list))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
    /// At most so many (50, at most 200).
    limit: Option<usize>,
    /// Go on after this page.
    cursor: Option<u64>,
}

/// Something that somebody has done, or was refused.
#[derive(Serialize, ToSchema)]
#[schema(as = AuditEntry)]
struct EntryView {
    no: u64,
    at: String,
    at_ms: i64,
    who: String,
    what: String,
    /// From which address.
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<String>,
    /// How it was answered.
    status: u16,
}

impl EntryView {
    fn new(record: AuditRecord) -> Self {
        let AuditRecord { no, at, entry, .. } = record;
        EntryView {
            no,
            at: rfc3339(at),
            at_ms: unix_ms(at),
            who: entry.who,
            what: entry.what,
            from: entry.from,
            status: entry.status,
        }
    }
}

/// A page of entries, newest first.
#[derive(Serialize, ToSchema)]
struct AuditPage {
    entries: Vec<EntryView>,
    next: Option<String>,
}

/// Identity has changed what, newest first: the last 10,000 decisions
#[utoipa::path(get, path = "/audit", tag = "audit", params(ListParams), responses((status = 200, body = AuditPage), Problems))]
async fn list(
    State(app): State<Arc<App>>,
    _: Operator,
    QueryParams(params): QueryParams<ListParams>,
) -> Result<(HeaderMap, axum::Json<AuditPage>), Problem> {
    let page_size = page_size(params.limit);
    let entries = app.duly.audits(params.cursor, page_size).await?;
    let next = entries.last().filter(|_| entries.len() == page_size).map(|last| last.no.to_string());
    let headers = next_link(&app, "/audit", &[("limit", Some(page_size.to_string()))], next.as_deref());
    Ok((headers, axum::Json(AuditPage { entries: entries.into_iter().map(EntryView::new).collect(), next })))
}
