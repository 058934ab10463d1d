//! Who has changed what.

use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Problems, limit, next_link};
use crate::http::json::Params;
use crate::http::problem::Problem;
use crate::http::server::App;
use crate::http::view::{moment, moment_ms};
use crate::http::who::Operator;
use crate::store::AuditRecord;

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
    fn of(record: AuditRecord) -> Self {
        let AuditRecord { no, at, entry } = record;
        EntryView {
            no,
            at: moment(at),
            at_ms: moment_ms(at),
            who: entry.who,
            what: entry.what,
            from: entry.from,
            status: entry.status,
        }
    }
}

/// A page of entries, newest first.
#[derive(Serialize, ToSchema)]
struct Entries {
    entries: Vec<EntryView>,
    next: Option<String>,
}

/// Who has changed what, newest first: the last 10,000 decisions
#[utoipa::path(get, path = "/audit", tag = "audit", params(ListParams), responses((status = 200, body = Entries), Problems))]
async fn list(
    State(app): State<Arc<App>>,
    _: Operator,
    Params(params): Params<ListParams>,
) -> Result<(HeaderMap, axum::Json<Entries>), Problem> {
    let at_most = limit(params.limit);
    let entries = app.duly.audits(params.cursor, at_most).await?;
    let next = entries.last().filter(|_| entries.len() == at_most).map(|last| last.no.to_string());
    let headers = next_link(&app, "/audit", &[("limit", Some(at_most.to_string()))], next.as_deref());
    Ok((headers, axum::Json(Entries { entries: entries.into_iter().map(EntryView::of).collect(), next })))
}
