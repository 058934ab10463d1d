//! The form of a cron rule, with a preview of its next runs.

use std::time::Duration;

use askama::Template;
use axum::Form;
use axum::extract::{Query, State};
use serde::Deserialize;

use super::cron::{NextRun, next_runs};
use super::display;
use super::job::parse_duration;
use super::layout::{Layout, SUGGESTED_QUEUES_MAX};
use super::{PageResult, redirect_with_flash, render, render_with_status};
use crate::audit::AuditNote;
use crate::etag;
use crate::identity::Identity;
use crate::problem::Result;
use crate::server::{App, AppState};
use duly::admin::Role;
use duly::bounds::{DEFAULT_MAX_ATTEMPTS, DEFAULT_QUEUE, DEFAULT_TIMEOUT};
use duly::cron::{CronRecord, CronRule, Missed, Overlap, Schedule};
use duly::{ConflictKind, Error, Priority, Push};

#[derive(Template)]
#[template(path = "cron_form.html")]
struct RuleFormPage {
    layout: Layout,
    form: RuleForm,
    queues: Vec<String>,
    description: String,
    runs: Vec<NextRun>,
    /// The error of the pattern or the zone.
    schedule_error: String,
    error: String,
}

/// The fields of the form.
#[derive(Deserialize, Clone, Default)]
#[serde(default)]
pub(super) struct RuleForm {
    name: String,
    pattern: String,
    tz: String,
    kind: String,
    queue: String,
    args: String,
    missed: String,
    overlap: String,
    jitter: String,
    priority: String,
    max_attempts: String,
    timeout: String,
    keep: String,
    tags: String,
    /// The rule to copy the fields from.
    like: String,
    /// The edited rule, and its ETag when the form was opened; empty for a new rule.
    original: String,
    etag: String,
}

impl RuleForm {
    fn from_record(record: &CronRecord, can_see_args: bool) -> RuleForm {
        let rule = &record.rule;
        RuleForm {
            name: rule.name.clone(),
            pattern: rule.pattern.clone(),
            tz: rule.tz.clone(),
            kind: rule.kind.clone(),
            queue: rule.queue.clone(),
            args: if can_see_args { rule.args.clone() } else { String::new() },
            missed: rule.missed.to_string(),
            overlap: rule.overlap.to_string(),
            jitter: if rule.jitter.is_zero() { String::new() } else { format_duration(rule.jitter) },
            priority: rule.priority.to_string(),
            max_attempts: rule.max_attempts.to_string(),
            timeout: format_duration(rule.timeout),
            keep: rule.keep.map(format_duration).unwrap_or_default(),
            tags: rule.tags.join(" "),
            like: String::new(),
            original: rule.name.clone(),
            etag: etag::for_cron(record),
        }
    }

    /// Returns whether the form edits an existing rule.
    fn is_edit(&self) -> bool {
        !self.original.is_empty()
    }

    fn with_defaults(mut self, layout: &Layout) -> RuleForm {
        let fill = |field: &mut String, with: &str| {
            if field.is_empty() {
                with.clone_into(field);
            }
        };
        fill(&mut self.tz, &layout.zone_name);
        fill(&mut self.queue, DEFAULT_QUEUE);
        fill(&mut self.args, "{}");
        fill(&mut self.missed, "once");
        fill(&mut self.overlap, "allow");
        fill(&mut self.priority, Priority::default().as_str());
        fill(&mut self.max_attempts, &DEFAULT_MAX_ATTEMPTS.to_string());
        fill(&mut self.timeout, &format_duration(DEFAULT_TIMEOUT));
        self
    }

    /// Returns the rule of the form. Empty fields have the defaults of a push.
    fn to_rule(&self) -> Result<CronRule, Error> {
        let tags = self.tags.split([',', ' ']).filter(|tag| !tag.is_empty());
        let mut job = Push::new(self.kind.trim(), self.args.trim()).queue(self.queue.trim()).tags(tags);
        if !self.priority.trim().is_empty() {
            job = job.priority(self.priority.parse()?);
        }
        if !self.max_attempts.trim().is_empty() {
            let error = |_| Error::invalid("max_attempts", "must be a whole number, at least 1");
            job = job.max_attempts(self.max_attempts.trim().parse().map_err(error)?);
        }
        if let Some(timeout) = optional_duration("timeout", &self.timeout)? {
            job = job.timeout(timeout);
        }
        if let Some(keep) = optional_duration("keep", &self.keep)? {
            job = job.keep(keep);
        }
        let rule = CronRule::new(self.name.trim(), self.pattern.trim(), job)?.tz(self.tz.trim());
        let rule = rule.missed(self.missed.parse::<Missed>()?).overlap(self.overlap.parse::<Overlap>()?);
        Ok(rule.jitter(optional_duration("jitter", &self.jitter)?.unwrap_or_default()))
    }
}

pub(super) fn optional_duration(field: &'static str, text: &str) -> Result<Option<Duration>, Error> {
    if text.trim().is_empty() {
        return Ok(None);
    }
    let error = || Error::invalid(field, "write a duration such as 30s, 5m or 3d");
    parse_duration(text).map(Some).ok_or_else(error)
}

/// Formats a duration for a field, exactly.
pub(super) fn format_duration(time: Duration) -> String {
    let millis = time.as_millis();
    let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms")];
    let unit = units.into_iter().find(|(size, _)| millis > 0 && millis.is_multiple_of(*size));
    unit.map_or_else(|| "0s".to_owned(), |(size, name)| format!("{}{name}", millis / size))
}

/// `GET /cron/new`: the form, with a preview of its next runs.
pub(super) async fn form(
    State(app): AppState,
    identity: Identity,
    Query(form): Query<RuleForm>,
    layout: Layout,
) -> PageResult {
    identity.require(Role::Operator)?;
    let mut form = form;
    if !form.like.is_empty() {
        let found = app.duly.crons().get(&form.like).await?;
        let record = found.ok_or_else(|| Error::not_found("cron rule", &form.like))?;
        form = RuleForm::from_record(&record, layout.can_see_args());
    }
    let form = form.with_defaults(&layout);
    render(&form_page(layout, form, String::new()))
}

fn form_page(layout: Layout, form: RuleForm, error: String) -> RuleFormPage {
    let layout = layout.with_title("/cron", if form.is_edit() { "Change a rule" } else { "New rule" });
    let schedule =
        if form.pattern.trim().is_empty() { None } else { Some(Schedule::parse(form.pattern.trim(), form.tz.trim())) };
    let (description, runs, bad) = match schedule {
        None => (String::new(), Vec::new(), String::new()),
        Some(Ok(schedule)) => (schedule.describe(), next_runs(&layout, &schedule), String::new()),
        Some(Err(error)) => (String::new(), Vec::new(), error.to_string()),
    };
    // An error that prevented saving is shown once, above the form.
    let schedule_error = if error.is_empty() { bad } else { String::new() };
    let queues = layout.counts.iter().map(|counts| counts.queue.clone()).take(SUGGESTED_QUEUES_MAX).collect();
    RuleFormPage { layout, form, queues, description, runs, schedule_error, error }
}

/// `POST /cron`
pub(super) async fn save(
    State(app): AppState,
    identity: Identity,
    note: AuditNote,
    layout: Layout,
    Form(form): Form<RuleForm>,
) -> PageResult {
    note.set_target(form.name.trim());
    identity.require(Role::Operator)?;
    match save_rule(&app, &identity, &form).await {
        Ok(record) => {
            let path = format!("/cron/rule/{}", display::url_encode(&record.rule.name));
            redirect_with_flash(&layout, &path, "rule", None, &record.rule.name)
        }
        // The form keeps the input, and shows the error.
        Err(problem) if problem.status.is_client_error() => {
            let form = form.with_defaults(&layout);
            render_with_status(
                problem.status,
                &form_page(layout, form, problem.detail.trim_start_matches('/').to_owned()),
            )
        }
        Err(problem) => Err(problem),
    }
}

/// Saves the rule of a form if the stored rule has not changed since the form was opened.
async fn save_rule(app: &App, identity: &Identity, form: &RuleForm) -> Result<CronRecord> {
    super::check_kind(app, &form.kind)?;
    let name = form.name.trim();
    let queue = if form.queue.trim().is_empty() { DEFAULT_QUEUE } else { form.queue.trim() };
    let queues = app.queue_count_limit.reserve(&app.duly, identity, [queue]).await?;
    let existing = app.duly.crons().get(name).await?;
    let rule = form.to_rule()?;
    let expected = match form.original == name {
        true => Some(form.etag.clone()),
        false => existing.as_ref().map(etag::for_cron),
    };
    let condition = |found: Option<&CronRecord>| match found.map(etag::for_cron) == expected {
        true => Ok(()),
        false => Err(Error::conflict(
            ConflictKind::Changed,
            format!(
                "rule {name} was changed or removed since you opened it, so nothing was saved; \
             open it again and repeat your change"
            ),
        )),
    };
    let saved = app.duly.crons().put_if(rule, condition).await?;
    queues.confirm();
    Ok(saved)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_in_fields_are_exact() {
        for (millis, text) in
            [(0, "0s"), (1, "1ms"), (1_500, "1500ms"), (90_000, "90s"), (3_600_000, "1h"), (604_800_000, "7d")]
        {
            let time = Duration::from_millis(millis);
            assert_eq!(format_duration(time), text);
            assert_eq!(parse_duration(text), Some(time));
        }
    }
}
