//! A form to push a job.

use askama::Template;
use axum::Form;
use axum::extract::{Query, State};
use serde::Deserialize;

use super::cron_form::{format_duration, optional_duration};
use super::job::parse_duration;
use super::layout::{Layout, SUGGESTED_QUEUES_MAX};
use super::{PageResult, redirect_with_flash, render, render_with_status};
use crate::audit::AuditNote;
use crate::identity::Identity;
use crate::problem::Result;
use crate::server::{App, AppState};
use duly::Error;
use duly::Push;
use duly::admin::Role;
use duly::bounds::{DEFAULT_MAX_ATTEMPTS, DEFAULT_QUEUE};
use duly::{JobId, Priority, PushResult};

#[derive(Template)]
#[template(path = "push.html")]
struct PushPage {
    layout: Layout,
    form: PushForm,
    queues: Vec<String>,
    error: String,
}

/// The fields of the form.
#[derive(Deserialize, Clone)]
pub(super) struct PushForm {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    queue: String,
    #[serde(default)]
    args: String,
    #[serde(default)]
    after: String,
    #[serde(default)]
    priority: String,
    #[serde(default)]
    max_attempts: String,
    #[serde(default)]
    unique: String,
    #[serde(default)]
    tags: String,
    #[serde(default)]
    timeout: String,
    #[serde(default)]
    keep: String,
}

#[derive(Deserialize, Default)]
pub(super) struct PushParams {
    #[serde(default)]
    queue: String,
    #[serde(default)]
    kind: String,
    /// The job to copy the fields from.
    #[serde(default)]
    like: String,
}

/// `GET /push`
pub(super) async fn form(
    State(app): AppState,
    identity: Identity,
    Query(params): Query<PushParams>,
    layout: Layout,
) -> PageResult {
    identity.require(Role::Pusher)?;
    let mut form = PushForm {
        kind: params.kind,
        queue: if params.queue.is_empty() { DEFAULT_QUEUE.to_owned() } else { params.queue },
        args: "{}".to_owned(),
        after: String::new(),
        priority: Priority::default().as_str().to_owned(),
        max_attempts: DEFAULT_MAX_ATTEMPTS.to_string(),
        unique: String::new(),
        tags: String::new(),
        timeout: String::new(),
        keep: String::new(),
    };
    if let Ok(id) = params.like.parse::<JobId>() {
        let record = app.duly.jobs().get(id).await?.ok_or_else(|| Error::not_found("job", id))?;
        let job = record.job;
        form.kind = job.kind;
        form.queue = job.queue;
        if layout.can_see_args() {
            form.args = job.args;
        }
        form.priority = job.priority.as_str().to_owned();
        form.max_attempts = job.max_attempts.to_string();
        form.tags = job.tags.join(" ");
        form.timeout = format_duration(job.timeout);
        form.keep = format_duration(job.keep);
    }
    render(&form_page(layout, form, String::new()))
}

fn form_page(layout: Layout, form: PushForm, error: String) -> PushPage {
    let layout = layout.with_title("/jobs", "Push a job");
    let queues = layout.counts.iter().map(|counts| counts.queue.clone()).take(SUGGESTED_QUEUES_MAX).collect();
    PushPage { layout, form, queues, error }
}

/// `POST /push`
pub(super) async fn push(
    State(app): AppState,
    identity: Identity,
    note: AuditNote,
    layout: Layout,
    Form(form): Form<PushForm>,
) -> PageResult {
    identity.require(Role::Pusher)?;
    match push_form(&app, &identity, &form).await {
        Ok(pushed) => {
            note.set_target(pushed.id());
            let flash_key = if pushed.is_new() { "pushed" } else { "there" };
            redirect_with_flash(&layout, &format!("/jobs/{}", pushed.id()), flash_key, None, "")
        }
        // The form keeps the input, and shows the error.
        Err(problem) if problem.status.is_client_error() => render_with_status(
            problem.status,
            &form_page(layout, form, problem.detail.trim_start_matches('/').to_owned()),
        ),
        Err(problem) => Err(problem),
    }
}

async fn push_form(app: &App, identity: &Identity, form: &PushForm) -> Result<PushResult> {
    super::check_kind(app, &form.kind)?;
    let push = to_push(form)?;
    push.check()?;
    let queues = app.queue_count_limit.reserve(&app.duly, identity, [push.job_queue()]).await?;
    let pushed = app.duly.push(push).await?;
    queues.confirm();
    Ok(pushed)
}

fn to_push(form: &PushForm) -> Result<Push, Error> {
    let mut push =
        Push::new(form.kind.trim(), form.args.trim()).queue(form.queue.trim()).priority(form.priority.parse()?);
    if !form.after.trim().is_empty() {
        let error = || Error::invalid("after", "write a delay such as 30s, 10m, 2h30m or 3d");
        push = push.after(parse_duration(&form.after).ok_or_else(error)?);
    }
    if !form.max_attempts.trim().is_empty() {
        let error = |_| Error::invalid("max_attempts", "must be a whole number, at least 1");
        push = push.max_attempts(form.max_attempts.trim().parse().map_err(error)?);
    }
    if !form.unique.trim().is_empty() {
        push = push.unique(form.unique.trim());
    }
    if let Some(timeout) = optional_duration("timeout", &form.timeout)? {
        push = push.timeout(timeout);
    }
    if let Some(keep) = optional_duration("keep", &form.keep)? {
        push = push.keep(keep);
    }
    Ok(push.tags(form.tags.split([',', ' ']).filter(|tag| !tag.is_empty())))
}
