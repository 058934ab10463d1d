//! Cron rules: save, list, pause, trigger and remove them, and preview a pattern.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::jobs::parameter_error;
use super::push::{COMMAND, check_existing, fingerprint, set_if_some};
use super::queues::Name;
use super::{PreconditionFailed, Problems, positive};
use crate::etag::{self, IfMatch};
use crate::identity::{Identity, Operator};
use crate::json::{IdempotencyKey, Json, NoBody, PathParam, QueryParams};
use crate::openapi::{OverlapName, PriorityName};
use crate::problem::{Problem, Result};
use crate::server::{App, AppState};
use crate::views::{Preview, PushedView, RuleView, Rules, TICKS};
use duly::Error;
use duly::Priority;
use duly::Push;
use duly::bounds::DEFAULT_QUEUE;
use duly::cron::CronRecord;
use duly::cron::{CronRule, Missed, Overlap, Schedule};

/// The most ticks in a response.
const TICKS_MAX: usize = 100;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(preview))
        .routes(routes!(get, put, remove))
        .routes(routes!(pause))
        .routes(routes!(resume))
        .routes(routes!(trigger))
}

/// A rule that pushes a job at each tick of a pattern.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CronRule)]
struct RuleBody {
    /// Five fields as in crontab(5), such as `0 3 * * *`.
    pattern: String,
    /// The time zone of the pattern (UTC).
    tz: Option<String>,
    kind: String,
    #[schema(value_type = Option<serde_json::Value>)]
    args: Option<Box<RawValue>>,
    queue: Option<String>,
    #[schema(value_type = Option<PriorityName>)]
    priority: Option<Priority>,
    max_attempts: Option<u32>,
    timeout_ms: Option<u64>,
    keep_ms: Option<u64>,
    #[serde(default)]
    tags: Vec<String>,
    /// The policy for ticks that no worker fired in time: `skip` them, fire the newest `once` (the default), or fire
    /// `all` or `all:N` of the newest.
    #[schema(pattern = "^(skip|once|all(:[1-9][0-9]{0,3})?)$")]
    missed: Option<String>,
    #[schema(value_type = Option<OverlapName>)]
    overlap: Option<String>,
    /// The most milliseconds by which a job is due after its tick, at random.
    jitter_ms: Option<u64>,
}

/// List rules
#[utoipa::path(get, path = "/cron", tag = "cron", operation_id = "listCronRules", responses((status = 200, description = "all rules, by name", body = Rules), Problems))]
async fn list(State(app): AppState, identity: Identity) -> Result<axum::Json<Rules>> {
    let (records, now) = (app.duly.crons().list().await?, app.duly.now());
    let rules = records.iter().map(|record| RuleView::for_identity(record, now, &identity)).collect();
    Ok(axum::Json(Rules { rules }))
}

/// Get a rule
#[utoipa::path(get, path = "/cron/{name}", tag = "cron", operation_id = "getCronRule", params(("name" = String, Path, description = "the name of the rule")),
    responses((status = 200, description = "the rule", body = RuleView, headers(("ETag" = String, description = "the version of the rule, for If-Match"))), Problems))]
async fn get(
    State(app): AppState,
    identity: Identity,
    PathParam(Name(name)): PathParam<Name>,
) -> Result<(HeaderMap, axum::Json<RuleView>)> {
    let record = app.duly.crons().get(&name).await?.ok_or_else(|| Error::not_found("cron rule", name))?;
    Ok((etag::header(&etag::for_cron(&record)), axum::Json(RuleView::for_identity(&record, app.duly.now(), &identity))))
}

/// Save a rule
///
/// Saving the same rule again is a no-op; a different rule with the same name replaces it. With `If-Match`, a rule
/// that has changed since gives a 412 with the code `changed`.
#[utoipa::path(put, path = "/cron/{name}", tag = "cron", operation_id = "saveCronRule", request_body = RuleBody,
    params(("name" = String, Path, description = "the name of the rule"),
        ("If-Match" = Option<String>, Header, description = "the ETag of the rule to change")),
    responses((status = 200, description = "the stored rule", body = RuleView, headers(("ETag" = String, description = "the new version of the rule, for If-Match"))), Problems, PreconditionFailed))]
async fn put(
    State(app): AppState,
    Operator(identity): Operator,
    headers: HeaderMap,
    PathParam(Name(name)): PathParam<Name>,
    Json(body): Json<RuleBody>,
) -> Result<(HeaderMap, axum::Json<RuleView>)> {
    if body.kind == COMMAND && !app.options.commands {
        return Err(Problem::forbidden(
            "rules that run commands cannot be stored over HTTP; start the server with --allow-commands to allow them",
        ));
    }
    let queue = body.queue.as_deref().unwrap_or(DEFAULT_QUEUE);
    let queues = app.queue_count_limit.reserve(&app.duly, &identity, [queue]).await?;
    let if_match = IfMatch::from_headers(&headers)?;
    let condition = |found: Option<&CronRecord>| if_match.check(found.map(etag::for_cron).as_deref());
    let record = app.duly.crons().put_if(body.into_rule(name)?, condition).await?;
    queues.confirm();
    Ok((etag::header(&etag::for_cron(&record)), axum::Json(RuleView::for_identity(&record, app.duly.now(), &identity))))
}

impl RuleBody {
    fn into_rule(self, name: String) -> Result<CronRule> {
        let args = self.args.map_or_else(|| "null".to_owned(), |args| args.get().to_owned());
        let mut job = Push::new(self.kind, args).tags(self.tags);
        job = set_if_some(job, self.queue, |job, queue| job.queue(queue));
        job = set_if_some(job, self.priority, Push::priority);
        job = set_if_some(job, self.max_attempts, Push::max_attempts);
        job = set_if_some(job, self.timeout_ms.map(Duration::from_millis), Push::timeout);
        job = set_if_some(job, self.keep_ms.map(Duration::from_millis), Push::keep);
        let mut rule = CronRule::new(name, self.pattern, job)?;
        if let Some(tz) = self.tz {
            rule = rule.tz(tz);
        }
        if let Some(missed) = self.missed {
            rule = rule.missed(missed.parse::<Missed>().map_err(|error| parameter_error("/missed", error))?);
        }
        if let Some(overlap) = self.overlap {
            rule = rule.overlap(overlap.parse::<Overlap>().map_err(|error| parameter_error("/overlap", error))?);
        }
        Ok(rule.jitter(Duration::from_millis(self.jitter_ms.unwrap_or(0))))
    }
}

/// Delete a rule; its jobs stay
#[utoipa::path(delete, path = "/cron/{name}", tag = "cron", operation_id = "deleteCronRule", params(("name" = String, Path, description = "the name of the rule")),
    responses((status = 204, description = "the rule is deleted"), Problems))]
async fn remove(State(app): AppState, _: Operator, PathParam(Name(name)): PathParam<Name>) -> Result<StatusCode> {
    app.duly.crons().remove(&name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Pause a rule
#[utoipa::path(post, path = "/cron/{name}/pause", tag = "cron", operation_id = "pauseCronRule", params(("name" = String, Path, description = "the name of the rule")),
    responses((status = 200, description = "the paused rule", body = RuleView), Problems))]
async fn pause(
    State(app): AppState,
    Operator(identity): Operator,
    PathParam(Name(name)): PathParam<Name>,
    _: NoBody,
) -> Result<axum::Json<RuleView>> {
    let record = app.duly.crons().pause(&name).await?;
    Ok(axum::Json(RuleView::for_identity(&record, app.duly.now(), &identity)))
}

/// Returns the rule, or a 403 if it runs a program and the server does not accept that.
pub(crate) async fn check_command_rule(app: &App, name: &str) -> Result<Option<CronRule>> {
    let rule = app.duly.crons().get(name).await?.map(|record| record.rule);
    match rule.as_ref().is_some_and(|rule| rule.kind == COMMAND) && !app.options.commands {
        true => Err(Problem::forbidden(
            "rules that run commands cannot be triggered over HTTP; start the server with --allow-commands to allow them",
        )),
        false => Ok(rule),
    }
}

/// Resume a paused rule
#[utoipa::path(post, path = "/cron/{name}/resume", tag = "cron", operation_id = "resumeCronRule", params(("name" = String, Path, description = "the name of the rule")),
    responses((status = 200, description = "the resumed rule", body = RuleView), Problems))]
async fn resume(
    State(app): AppState,
    Operator(identity): Operator,
    PathParam(Name(name)): PathParam<Name>,
    _: NoBody,
) -> Result<axum::Json<RuleView>> {
    check_command_rule(&app, &name).await?;
    let record = app.duly.crons().resume(&name).await?;
    Ok(axum::Json(RuleView::for_identity(&record, app.duly.now(), &identity)))
}

/// Push the job of a rule now
///
/// Safe to repeat with the same `Idempotency-Key`.
#[utoipa::path(post, path = "/cron/{name}/trigger", tag = "cron", operation_id = "triggerCronRule",
    params(("name" = String, Path, description = "the name of the rule"),
        ("Idempotency-Key" = Option<String>, Header, description = "requests with the same key push the job once")),
    responses((status = 200, description = "the pushed job", body = PushedView), Problems))]
async fn trigger(
    State(app): AppState,
    _: Operator,
    PathParam(Name(name)): PathParam<Name>,
    IdempotencyKey(key): IdempotencyKey,
    _: NoBody,
) -> Result<axum::Json<PushedView>> {
    let rule = check_command_rule(&app, &name).await?;
    // The id includes the rule's name, so that the same key with another rule pushes another job.
    let id = key.as_ref().map(|key| key.id_of(&format!("cron:{name}")));
    let pushed = app.duly.crons().trigger_with_id(&name, id).await?;
    if let (Some(key), Some(id), Some(rule)) = (key, id, rule) {
        check_existing(&app, &key.key, [(id, fingerprint(&rule.kind, &rule.args), pushed)]).await?;
    }
    Ok(axum::Json(PushedView::from(pushed)))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct PreviewParams {
    /// Such as `0 3 * * *`.
    pattern: String,
    /// The time zone (UTC).
    tz: Option<String>,
    /// The number of ticks (5, at most 100).
    limit: Option<usize>,
}

/// Preview the next ticks of a pattern
#[utoipa::path(get, path = "/cron/preview", tag = "cron", operation_id = "previewCronPattern", params(PreviewParams), responses((status = 200, description = "the pattern in plain English, and its next ticks", body = Preview), Problems))]
async fn preview(
    State(app): AppState,
    _: Identity,
    QueryParams(params): QueryParams<PreviewParams>,
) -> Result<axum::Json<Preview>> {
    let schedule = Schedule::parse(&params.pattern, params.tz.as_deref().unwrap_or("UTC"))
        .map_err(|error| parameter_error("pattern", error))?;
    let limit = positive("limit", params.limit, TICKS, TICKS_MAX)?;
    let times: Vec<_> = schedule.ticks_after(app.duly.now()).take(limit).collect();
    Ok(axum::Json(Preview::new(&schedule, &times)))
}
