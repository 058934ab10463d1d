//! Cron rules: their next runs, and a form to create and edit them.

use askama::Template;
use axum::Form;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use serde::Deserialize;

use super::confirm::Confirmation;
use super::display::{self, Moment};
use super::job::parse_duration;
use super::json_format::{self, FormattedJson};
use super::layout::Layout;
use super::{PageResult, redirect_with_flash, render, render_with_status, unknown_action};
use crate::api::check_command_rule;
use crate::audit::AuditNote;
use crate::etag;
use crate::identity::Identity;
use crate::problem::{Problem, Result};
use crate::server::{App, AppState};
use duly::Push;
use duly::admin::Role;
use duly::bounds::DEFAULT_QUEUE;
use duly::cron::CronRecord;
use duly::cron::{CronRule, Missed, Overlap, Schedule};
use duly::{ConflictKind, Error};

/// The number of next runs on a page.
const RUNS: usize = 5;
/// The most rules on the page.
const ROWS_MAX: usize = 1_000;

#[derive(Template)]
#[template(path = "crons.html")]
struct RulesPage {
    layout: Layout,
    rows: Vec<RuleRow>,
    left_out: usize,
}

struct RuleRow {
    name: String,
    path: String,
    pattern: String,
    description: String,
    tz: String,
    kind: String,
    queue: String,
    paused: bool,
    held: bool,
    next: Option<Moment>,
    last: Option<Moment>,
    last_job: String,
}

impl RuleRow {
    fn new(layout: &Layout, record: &CronRecord) -> RuleRow {
        let rule = &record.rule;
        RuleRow {
            path: display::url_encode(&rule.name),
            name: rule.name.clone(),
            description: rule.schedule().map(|schedule| schedule.describe()).unwrap_or_default(),
            pattern: rule.pattern.clone(),
            tz: rule.tz.clone(),
            kind: rule.kind.clone(),
            queue: rule.queue.clone(),
            paused: record.paused,
            held: record.waiting,
            next: record.next.map(|next| layout.moment(next)),
            last: record.last.map(|last| layout.moment(last)),
            last_job: record.last_job().map(|id| id.to_string()).unwrap_or_default(),
        }
    }
}

/// A future tick.
struct NextRun {
    shown: String,
    at: Moment,
    /// The effect of a daylight saving change on the tick.
    dst_note: &'static str,
}

fn next_runs(layout: &Layout, schedule: &Schedule) -> Vec<NextRun> {
    let next = schedule.ticks_after(layout.now).take(RUNS);
    next.map(|at| NextRun {
        shown: schedule.format_in_zone(at),
        at: layout.moment(at),
        dst_note: schedule.dst_note(at).unwrap_or_default(),
    })
    .collect()
}

/// `GET /cron`
pub(super) async fn list(State(app): AppState, layout: Layout) -> PageResult {
    let layout = layout.with_title("/cron", "Cron");
    let rules = app.duly.crons().list().await?;
    let left_out = rules.len().saturating_sub(ROWS_MAX);
    let rows = rules.iter().take(ROWS_MAX).map(|record| RuleRow::new(&layout, record)).collect();
    render(&RulesPage { layout, rows, left_out })
}

#[derive(Template)]
#[template(path = "cron.html")]
struct RulePage {
    layout: Layout,
    row: RuleRow,
    removal: Confirmation,
    runs: Vec<NextRun>,
    args: Option<FormattedJson>,
    missed: String,
    overlap: String,
    jitter: String,
    priority: String,
    jobs_query: String,
}

/// `GET /cron/rule/{name}`
pub(super) async fn show(State(app): AppState, Path(name): Path<String>, layout: Layout) -> PageResult {
    let record = app.duly.crons().get(&name).await?.ok_or_else(|| Error::not_found("cron rule", name))?;
    let layout = layout.with_title("/cron", format!("Rule {}", record.rule.name));
    let rule = &record.rule;
    let next = if record.paused {
        Vec::new()
    } else {
        rule.schedule().map(|schedule| next_runs(&layout, &schedule)).unwrap_or_default()
    };
    let filter = duly::Filter::all().kind(rule.kind.clone()).queue(rule.queue.clone());
    let view = RulePage {
        removal: confirm_removal(&rule.name),
        row: RuleRow::new(&layout, &record),
        runs: next,
        args: layout.can_see_args().then(|| json_format::format_json(&rule.args, json_format::SHOWN_BYTES)),
        missed: rule.missed.to_string(),
        overlap: rule.overlap.to_string(),
        jitter: if rule.jitter.is_zero() { "none".to_owned() } else { display::duration(rule.jitter) },
        priority: rule.priority.to_string(),
        jobs_query: display::url_encode(&filter.to_string()),
        layout,
    };
    render(&view)
}

#[derive(Template)]
#[template(path = "cron_form.html")]
struct RuleFormPage {
    layout: Layout,
    form: RuleForm,
    description: String,
    runs: Vec<NextRun>,
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
            jitter: if rule.jitter.is_zero() { String::new() } else { format!("{}ms", rule.jitter.as_millis()) },
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
        self
    }

    /// Returns the rule of the form. Settings that the form does not show come from `base`.
    fn to_rule(&self, base: Option<&CronRule>) -> Result<CronRule, Error> {
        let job = Push::new(self.kind.trim(), self.args.trim()).queue(self.queue.trim());
        let mut rule = CronRule::new(self.name.trim(), self.pattern.trim(), job)?;
        if let Some(base) = base {
            (rule.priority, rule.max_attempts) = (base.priority, base.max_attempts);
            (rule.timeout, rule.keep) = (base.timeout, base.keep);
            rule.tags.clone_from(&base.tags);
        }
        rule = rule.tz(self.tz.trim()).missed(self.missed.parse::<Missed>()?).overlap(self.overlap.parse::<Overlap>()?);
        if self.jitter.trim().is_empty() {
            return Ok(rule);
        }
        let error = || Error::invalid("jitter", "write a duration such as 30s or 5m");
        Ok(rule.jitter(parse_duration(&self.jitter).ok_or_else(error)?))
    }
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
    let error = if error.is_empty() { bad } else { error };
    RuleFormPage { layout, form, description, runs, error }
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
    super::check_kind(&app, &form.kind)?;
    let queue = if form.queue.trim().is_empty() { DEFAULT_QUEUE } else { form.queue.trim() };
    let queues = app.queue_count_limit.reserve(&app.duly, &identity, [queue]).await?;
    match save_rule(&app, &form).await {
        Ok(record) => {
            queues.confirm();
            let path = format!("/cron/rule/{}", display::url_encode(&record.rule.name));
            redirect_with_flash(&layout, &path, "rule", None, &record.rule.name)
        }
        Err(error) => {
            let status = match &error {
                Error::Invalid { .. } => StatusCode::UNPROCESSABLE_ENTITY,
                Error::Conflict { kind: ConflictKind::Changed | ConflictKind::Moving, .. } => StatusCode::CONFLICT,
                // Another form does not help.
                _ => return Err(Problem::from(error)),
            };
            let form = form.with_defaults(&layout);
            render_with_status(status, &form_page(layout, form, error.to_string()))
        }
    }
}

/// Saves the rule of a form if the stored rule has not changed since the form was opened.
async fn save_rule(app: &App, form: &RuleForm) -> Result<CronRecord, Error> {
    let name = form.name.trim();
    let existing = app.duly.crons().get(name).await?;
    // A new name creates a copy of the edited rule.
    let base = match &existing {
        None if form.is_edit() => app.duly.crons().get(&form.original).await?,
        _ => existing.clone(),
    };
    let rule = form.to_rule(base.as_ref().map(|record| &record.rule))?;
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
    app.duly.crons().put_if(rule, condition).await
}

#[derive(Deserialize, Default)]
pub(super) struct RuleActionForm {
    #[serde(default)]
    confirm: String,
    #[serde(default)]
    next: String,
}

fn confirm_removal(name: &str) -> Confirmation {
    let explanation = "It pushes no further jobs. Jobs that it has pushed stay.";
    Confirmation::new(format!("Remove rule {name}?"), explanation, "Remove rule", "Keep it")
}

/// `POST /cron/{name}/pause|resume|trigger|remove`
pub(super) async fn run_action(
    State(app): AppState,
    Path((name, action)): Path<(String, String)>,
    identity: Identity,
    note: AuditNote,
    layout: Layout,
    Form(form): Form<RuleActionForm>,
) -> PageResult {
    identity.require(Role::Operator)?;
    let own = format!("/cron/rule/{}", display::url_encode(&name));
    let next = super::local_path_or(&form.next, &own);
    match action.as_str() {
        "pause" => {
            app.duly.crons().pause(&name).await?;
            redirect_with_flash(&layout, next, "rule-paused", None, &name)
        }
        "resume" => {
            check_command_rule(&app, &name).await?;
            app.duly.crons().resume(&name).await?;
            redirect_with_flash(&layout, next, "rule-resumed", None, &name)
        }
        "trigger" => {
            check_command_rule(&app, &name).await?;
            let pushed = app.duly.crons().trigger(&name).await?;
            let action = if pushed.is_new() { "triggered" } else { "there" };
            redirect_with_flash(&layout, &format!("/jobs/{}", pushed.id()), action, None, &name)
        }
        "remove" if form.confirm.is_empty() => {
            note.skip();
            let action = format!("/cron/{}/remove", display::url_encode(&name));
            confirm_removal(&name).page(layout.with_title("/cron", ""), &action, &[], &own)
        }
        "remove" => {
            app.duly.crons().remove(&name).await?;
            redirect_with_flash(&layout, "/cron", "rule-removed", None, &name)
        }
        other => Err(unknown_action(other)),
    }
}
