//! Cron rules: their next and past runs, and their actions.

use askama::Template;
use axum::Form;
use axum::extract::{Path, State};
use serde::Deserialize;

use super::confirm::Confirmation;
use super::display::{self, Moment};
use super::json_format::{self, FormattedJson};
use super::layout::Layout;
use super::{PageResult, redirect_with_flash, render, unknown_action};
use crate::api::check_command_rule;
use crate::audit::AuditNote;
use crate::identity::Identity;
use crate::server::{App, AppState};
use duly::admin::Role;
use duly::cron::{CronRecord, Schedule};
use duly::{Error, State as JobState};

/// The number of next runs on a page.
const RUNS: usize = 5;
/// The number of past runs on a page.
const PAST_RUNS: usize = 10;
/// The most characters of an error in a list of runs.
const ERROR_CHARS_MAX: usize = 200;
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
pub(super) struct NextRun {
    pub shown: String,
    pub at: Moment,
    /// The effect of a daylight saving change on the tick.
    pub dst_note: &'static str,
}

pub(super) fn next_runs(layout: &Layout, schedule: &Schedule) -> Vec<NextRun> {
    let next = schedule.ticks_after(layout.now).take(RUNS);
    next.map(|at| NextRun {
        shown: schedule.format_in_zone(at),
        at: layout.moment(at),
        dst_note: schedule.dst_note(at).unwrap_or_default(),
    })
    .collect()
}

/// A past tick, and its job if the store has it.
struct PastRun {
    shown: String,
    at: Moment,
    job: Option<PastJob>,
}

struct PastJob {
    id: String,
    state: JobState,
    ended: Option<Moment>,
    error: String,
}

/// Returns the newest ticks up to the last that fired, with their jobs: the id of a job follows from its tick.
async fn past_runs(app: &App, layout: &Layout, record: &CronRecord, schedule: &Schedule) -> Vec<PastRun> {
    let Some(last) = record.last else {
        return Vec::new();
    };
    let ticks = std::iter::once(last).chain(schedule.ticks_before(last)).take(PAST_RUNS);
    let runs = ticks.map(|tick| async move {
        let job = app.duly.jobs().get(record.job_of_tick(tick)).await.ok().flatten().map(|job| PastJob {
            id: job.job.id.to_string(),
            state: job.state,
            ended: job.ended.map(|ended| layout.moment(ended)),
            error: job
                .failures
                .last()
                .filter(|_| job.state != JobState::Done)
                .map(|failure| display::truncate(&failure.error, ERROR_CHARS_MAX))
                .unwrap_or_default(),
        });
        PastRun { shown: schedule.format_in_zone(tick), at: layout.moment(tick), job }
    });
    futures_util::future::join_all(runs).await
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
    past: Vec<PastRun>,
    args: Option<FormattedJson>,
    max_attempts: u32,
    timeout: String,
    keep: String,
    tags: Vec<String>,
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
    let (next, past) = match rule.schedule() {
        Ok(schedule) => {
            let next = if record.paused { Vec::new() } else { next_runs(&layout, &schedule) };
            (next, past_runs(&app, &layout, &record, &schedule).await)
        }
        Err(_) => (Vec::new(), Vec::new()),
    };
    let filter = duly::Filter::all().kind(rule.kind.clone()).queue(rule.queue.clone());
    let view = RulePage {
        removal: confirm_removal(&rule.name),
        row: RuleRow::new(&layout, &record),
        runs: next,
        past,
        max_attempts: rule.max_attempts,
        timeout: display::duration(rule.timeout),
        keep: rule.keep.map_or("as the store is set".to_owned(), display::duration),
        tags: rule.tags.clone(),
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
