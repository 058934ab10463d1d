//! Cron rules: put, look at, pause, trigger, remove, and what a pattern would do.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::jobs::param;
use super::push::{COMMAND, PushedView};
use super::queues::Name;
use super::{ChangedSince, Problems};
use crate::cron::{CronRule, Missed, Overlap, Schedule};
use crate::error::Error;
use crate::http::etag::{self, IfMatch};
use crate::http::json::{Json, Key, Named, NoBody, Params};
use crate::http::problem::Problem;
use crate::http::server::App;
use crate::http::view::{moment, moment_ms, ms, raw};
use crate::http::who::{Operator, Who};
use crate::job::push::Push;
use crate::job::{JobId, Priority};
use crate::store::CronRecord;

/// Next times that are shown, unless a preview says otherwise, and at most.
const NEXT: usize = 5;
const NEXT_MAX: usize = 100;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(preview))
        .routes(routes!(get, put, remove))
        .routes(routes!(pause))
        .routes(routes!(resume))
        .routes(routes!(trigger))
}

/// A rule that pushes a job at each time of a pattern.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CronRule)]
struct RuleBody {
    /// Five fields as in crontab(5), such as `0 3 * * *`.
    pattern: String,
    /// The time zone in which it is meant (UTC).
    tz: Option<String>,
    kind: String,
    #[schema(value_type = Option<serde_json::Value>)]
    args: Option<Box<RawValue>>,
    queue: Option<String>,
    #[schema(value_type = Option<String>)]
    priority: Option<Priority>,
    max_attempts: Option<u32>,
    timeout_ms: Option<u64>,
    keep_ms: Option<u64>,
    #[serde(default)]
    tags: Vec<String>,
    /// What becomes of ticks at which nobody was there: skip, once (the default), or all.
    missed: Option<String>,
    /// What a tick does while an earlier job has not ended: allow (the default), skip, queue, replace.
    overlap: Option<String>,
    /// Each job is due so much later than its tick at most.
    jitter_ms: Option<u64>,
}

/// A rule as it is kept.
#[derive(Serialize, ToSchema)]
#[schema(as = Cron)]
struct RuleView {
    name: String,
    pattern: String,
    /// The pattern in words.
    words: String,
    tz: String,
    queue: String,
    kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    args: Option<Box<RawValue>>,
    priority: &'static str,
    max_attempts: u32,
    timeout_ms: u64,
    /// How long one of its jobs stays once it is done; left out if the rule does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    keep_ms: Option<u64>,
    tags: Vec<String>,
    missed: String,
    overlap: &'static str,
    jitter_ms: u64,
    paused: bool,
    /// Grows with every change.
    revision: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    last: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_ms: Option<i64>,
    /// The next times at which it fires; none while it is paused.
    next: Vec<String>,
    next_ms: Vec<i64>,
}

impl RuleView {
    fn of(app: &App, record: &CronRecord, who: &Who) -> Self {
        let rule = &record.rule;
        let schedule = rule.schedule().ok();
        let from = app.duly.now();
        let times: Vec<_> = match (&schedule, record.paused) {
            (Some(schedule), false) => schedule.after(from).take(NEXT).collect(),
            _ => Vec::new(),
        };
        RuleView {
            name: rule.name.clone(),
            pattern: rule.pattern.clone(),
            words: schedule.map(|schedule| schedule.in_words()).unwrap_or_default(),
            tz: rule.tz.clone(),
            queue: rule.queue.clone(),
            kind: rule.kind.clone(),
            args: who.sees_args().then(|| raw(&rule.args)),
            priority: rule.priority.as_str(),
            max_attempts: rule.max_attempts,
            timeout_ms: ms(rule.timeout),
            keep_ms: rule.keep.map(ms),
            tags: rule.tags.clone(),
            missed: rule.missed.to_string(),
            overlap: rule.overlap.as_str(),
            jitter_ms: ms(rule.jitter),
            paused: record.paused,
            revision: record.revision,
            last: record.last.map(moment),
            last_ms: record.last.map(moment_ms),
            next: times.iter().copied().map(moment).collect(),
            next_ms: times.iter().copied().map(moment_ms).collect(),
        }
    }
}

/// All rules, by name.
#[derive(Serialize, ToSchema)]
struct Rules {
    rules: Vec<RuleView>,
}

/// All rules
#[utoipa::path(get, path = "/cron", tag = "cron", responses((status = 200, body = Rules), Problems))]
async fn list(State(app): State<Arc<App>>, who: Who) -> Result<axum::Json<Rules>, Problem> {
    let rules = app.duly.crons().await?.iter().map(|record| RuleView::of(&app, record, &who)).collect();
    Ok(axum::Json(Rules { rules }))
}

/// One rule
#[utoipa::path(get, path = "/cron/{name}", tag = "cron", params(("name" = String, Path, description = "its name")),
    responses((status = 200, body = RuleView, headers(("ETag" = String, description = "its state, for If-Match"))), Problems))]
async fn get(
    State(app): State<Arc<App>>,
    who: Who,
    Named(Name(name)): Named<Name>,
) -> Result<(HeaderMap, axum::Json<RuleView>), Problem> {
    let record = app.duly.cron_get(&name).await?.ok_or(Error::NotFound { what: "cron", name })?;
    Ok((etag::header(&etag::of_cron(&record)), axum::Json(RuleView::of(&app, &record, &who))))
}

/// Keep a rule: the same again changes nothing, another takes the place of the old one
///
/// With `If-Match`, only if the rule is still as that `ETag` has seen it: else 412 with the code `changed`.
#[utoipa::path(put, path = "/cron/{name}", tag = "cron", request_body = RuleBody,
    params(("name" = String, Path, description = "its name"),
        ("If-Match" = Option<String>, Header, description = "the ETag of the rule that is to be changed")),
    responses((status = 200, body = RuleView, headers(("ETag" = String, description = "its new state, for If-Match"))), Problems, ChangedSince))]
async fn put(
    State(app): State<Arc<App>>,
    Operator(who): Operator,
    headers: HeaderMap,
    Named(Name(name)): Named<Name>,
    Json(body): Json<RuleBody>,
) -> Result<(HeaderMap, axum::Json<RuleView>), Problem> {
    if body.kind == COMMAND && !app.options.commands {
        return Err(Problem::forbidden(
            "rules that run programs are not made over HTTP; start the server with --allow-commands",
        ));
    }
    let wanted = IfMatch::of(&headers)?;
    let admit = |found: Option<&CronRecord>| wanted.check(found.map(etag::of_cron).as_deref());
    let record = app.duly.put_cron_over(body.into_rule(name)?, admit).await?;
    Ok((etag::header(&etag::of_cron(&record)), axum::Json(RuleView::of(&app, &record, &who))))
}

impl RuleBody {
    fn into_rule(self, name: String) -> Result<CronRule, Problem> {
        let args = self.args.map_or_else(|| "null".to_owned(), |args| args.get().to_owned());
        let mut job = Push::with_args(self.kind, Ok(args)).tags(self.tags);
        job.queue = self.queue.unwrap_or(job.queue);
        job.priority = self.priority.unwrap_or(job.priority);
        job.max_attempts = self.max_attempts.unwrap_or(job.max_attempts);
        job.timeout = self.timeout_ms.map_or(job.timeout, Duration::from_millis);
        job.keep = self.keep_ms.map(Duration::from_millis);
        let mut rule = CronRule::new(name, self.pattern, job)?;
        if let Some(tz) = self.tz {
            rule = rule.tz(tz);
        }
        if let Some(missed) = self.missed {
            rule = rule.missed(missed.parse::<Missed>().map_err(|error| param("/missed", error))?);
        }
        if let Some(overlap) = self.overlap {
            rule = rule.overlap(overlap.parse::<Overlap>().map_err(|error| param("/overlap", error))?);
        }
        Ok(rule.jitter(Duration::from_millis(self.jitter_ms.unwrap_or(0))))
    }
}

/// Delete a rule; jobs that it has pushed stay
#[utoipa::path(delete, path = "/cron/{name}", tag = "cron", params(("name" = String, Path, description = "its name")),
    responses((status = 204, description = "it is gone"), Problems))]
async fn remove(
    State(app): State<Arc<App>>,
    _: Operator,
    Named(Name(name)): Named<Name>,
) -> Result<StatusCode, Problem> {
    app.duly.remove_cron(&name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Let a rule fire no more until it is resumed
#[utoipa::path(post, path = "/cron/{name}/pause", tag = "cron", params(("name" = String, Path, description = "its name")),
    responses((status = 200, body = RuleView), Problems))]
async fn pause(
    State(app): State<Arc<App>>,
    Operator(who): Operator,
    Named(Name(name)): Named<Name>,
    _: NoBody,
) -> Result<axum::Json<RuleView>, Problem> {
    let record = app.duly.pause_cron(&name).await?;
    Ok(axum::Json(RuleView::of(&app, &record, &who)))
}

/// Let a paused rule fire again
#[utoipa::path(post, path = "/cron/{name}/resume", tag = "cron", params(("name" = String, Path, description = "its name")),
    responses((status = 200, body = RuleView), Problems))]
async fn resume(
    State(app): State<Arc<App>>,
    Operator(who): Operator,
    Named(Name(name)): Named<Name>,
    _: NoBody,
) -> Result<axum::Json<RuleView>, Problem> {
    let record = app.duly.resume_cron(&name).await?;
    Ok(axum::Json(RuleView::of(&app, &record, &who)))
}

/// Push the job of a rule now
///
/// With an `Idempotency-Key` it may be repeated safely.
#[utoipa::path(post, path = "/cron/{name}/trigger", tag = "cron",
    params(("name" = String, Path, description = "its name"),
        ("Idempotency-Key" = Option<String>, Header, description = "the same key pushes its job once")),
    responses((status = 200, body = PushedView), Problems))]
async fn trigger(
    State(app): State<Arc<App>>,
    _: Operator,
    Named(Name(name)): Named<Name>,
    Key(key): Key,
    _: NoBody,
) -> Result<axum::Json<PushedView>, Problem> {
    // With the rule's name: a key that came with another rule long ago does not name that one's job.
    let id = key.map(|key| JobId::named(&format!("{key}\ncron:{name}")));
    Ok(axum::Json(PushedView::of(app.duly.trigger_cron_as(&name, id).await?)))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct PreviewParams {
    /// Such as `0 3 * * *`.
    pattern: String,
    /// The time zone (UTC).
    tz: Option<String>,
    /// So many times (5, at most 100).
    limit: Option<usize>,
}

/// What a pattern does.
#[derive(Serialize, ToSchema)]
struct Preview {
    words: String,
    next: Vec<String>,
    next_ms: Vec<i64>,
}

/// What a pattern would do
#[utoipa::path(get, path = "/cron/preview", tag = "cron", params(PreviewParams), responses((status = 200, body = Preview), Problems))]
async fn preview(
    State(app): State<Arc<App>>,
    _: Who,
    Params(params): Params<PreviewParams>,
) -> Result<axum::Json<Preview>, Problem> {
    let schedule = Schedule::parse(&params.pattern, params.tz.as_deref().unwrap_or("UTC"))
        .map_err(|error| param("pattern", error))?;
    let limit = params.limit.unwrap_or(NEXT).clamp(1, NEXT_MAX);
    let times: Vec<_> = schedule.after(app.duly.now()).take(limit).collect();
    Ok(axum::Json(Preview {
        words: schedule.in_words(),
        next: times.iter().copied().map(moment).collect(),
        next_ms: times.iter().copied().map(moment_ms).collect(),
    }))
}
