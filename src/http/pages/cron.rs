//! Cron: rules that push a job at each time of a pattern. Their next runs, and a form to make and change them.

use std::sync::Arc;

use askama::Template;
use axum::Form;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use serde::Deserialize;

use super::frame::Frame;
use super::job::length;
use super::pretty::{self, Pretty};
use super::show::{self, Moment};
use super::{Answer, done, no_deed, page as answer, render};
use crate::admin::token::Role;
use crate::cron::{CronRule, Missed, Overlap, Schedule};
use crate::error::Error;
use crate::http::etag;
use crate::http::problem::Problem;
use crate::http::server::App;
use crate::http::who::Who;
use crate::job::push::{DEFAULT_QUEUE, Push};
use crate::store::CronRecord;

/// Next runs that are shown.
const RUNS: usize = 5;
/// Most rules on the page.
const ROWS_MAX: usize = 1_000;

#[derive(Template)]
#[template(path = "crons.html")]
struct Crons {
    page: Frame,
    rows: Vec<Row>,
    left_out: usize,
}

struct Row {
    name: String,
    path: String,
    pattern: String,
    words: String,
    tz: String,
    kind: String,
    queue: String,
    paused: bool,
    held: bool,
    next: Option<Moment>,
    last: Option<Moment>,
    last_job: String,
}

impl Row {
    fn of(page: &Frame, record: &CronRecord) -> Row {
        let rule = &record.rule;
        Row {
            path: show::encode(&rule.name),
            name: rule.name.clone(),
            words: rule.schedule().map(|schedule| schedule.in_words()).unwrap_or_default(),
            pattern: rule.pattern.clone(),
            tz: rule.tz.clone(),
            kind: rule.kind.clone(),
            queue: rule.queue.clone(),
            paused: record.paused,
            held: record.held,
            next: record.next.map(|next| page.moment(next)),
            last: record.last.map(|last| page.moment(last)),
            last_job: record.last_job().map(|id| id.to_string()).unwrap_or_default(),
        }
    }
}

/// A run to come.
struct Run {
    shown: String,
    at: Moment,
    /// What changing clocks do to it.
    odd: &'static str,
}

fn runs(page: &Frame, schedule: &Schedule) -> Vec<Run> {
    let next = schedule.after(page.now).take(RUNS);
    next.map(|at| Run { shown: schedule.shown(at), at: page.moment(at), odd: schedule.oddity(at).unwrap_or_default() })
        .collect()
}

/// `GET /cron`
pub(super) async fn list(State(app): State<Arc<App>>, page: Frame) -> Answer {
    let page = page.titled("/cron", "Cron");
    let rules = app.duly.crons().await?;
    let left_out = rules.len().saturating_sub(ROWS_MAX);
    let rows = rules.iter().take(ROWS_MAX).map(|record| Row::of(&page, record)).collect();
    render(&Crons { page, rows, left_out })
}

#[derive(Template)]
#[template(path = "cron.html")]
struct One {
    page: Frame,
    row: Row,
    runs: Vec<Run>,
    args: Option<Pretty>,
    missed: String,
    overlap: String,
    jitter: String,
    priority: String,
    jobs_query: String,
}

/// `GET /cron/rule/{name}`
pub(super) async fn show(State(app): State<Arc<App>>, Path(name): Path<String>, page: Frame) -> Answer {
    let record = app.duly.cron_get(&name).await?.ok_or(Error::NotFound { what: "cron rule", name })?;
    let page = page.titled("/cron", format!("Rule {}", record.rule.name));
    let rule = &record.rule;
    let next = if record.paused {
        Vec::new()
    } else {
        rule.schedule().map(|schedule| runs(&page, &schedule)).unwrap_or_default()
    };
    let like =
        crate::Filter { kind: Some(rule.kind.clone()), queue: Some(rule.queue.clone()), ..crate::Filter::default() };
    let view = One {
        row: Row::of(&page, &record),
        runs: next,
        args: page.sees_args().then(|| pretty::pretty(&rule.args, pretty::SHOWN_BYTES)),
        missed: rule.missed.to_string(),
        overlap: rule.overlap.to_string(),
        jitter: if rule.jitter.is_zero() { "none".to_owned() } else { show::span(rule.jitter) },
        priority: rule.priority.to_string(),
        jobs_query: show::encode(&like.to_string()),
        page,
    };
    render(&view)
}

#[derive(Template)]
#[template(path = "cron_form.html")]
struct Page {
    page: Frame,
    wish: Wish,
    words: String,
    runs: Vec<Run>,
    wrong: String,
}

/// What is in the form.
#[derive(Deserialize, Clone, Default)]
#[serde(default)]
pub(super) struct Wish {
    name: String,
    pattern: String,
    tz: String,
    kind: String,
    queue: String,
    args: String,
    missed: String,
    overlap: String,
    jitter: String,
    /// A rule to begin from.
    like: String,
    /// The rule that it changes, and the state in which it was seen; empty for a new one.
    of: String,
    seen: String,
}

impl Wish {
    fn of(record: &CronRecord, sees_args: bool) -> Wish {
        let rule = &record.rule;
        Wish {
            name: rule.name.clone(),
            pattern: rule.pattern.clone(),
            tz: rule.tz.clone(),
            kind: rule.kind.clone(),
            queue: rule.queue.clone(),
            args: if sees_args { rule.args.clone() } else { String::new() },
            missed: rule.missed.to_string(),
            overlap: rule.overlap.to_string(),
            jitter: if rule.jitter.is_zero() { String::new() } else { format!("{}ms", rule.jitter.as_millis()) },
            like: String::new(),
            of: rule.name.clone(),
            seen: etag::of_cron(record),
        }
    }

    /// It changes a rule that is there.
    fn changes(&self) -> bool {
        !self.of.is_empty()
    }

    fn filled(mut self, page: &Frame) -> Wish {
        let fill = |field: &mut String, with: &str| {
            if field.is_empty() {
                with.clone_into(field);
            }
        };
        fill(&mut self.tz, &page.zone_name);
        fill(&mut self.queue, DEFAULT_QUEUE);
        fill(&mut self.args, "{}");
        fill(&mut self.missed, "once");
        fill(&mut self.overlap, "allow");
        self
    }

    /// The rule that is meant. What the form does not show stays as it is in the rule that it begins from.
    fn rule(&self, from: Option<&CronRule>) -> Result<CronRule, Error> {
        let job = Push::new(self.kind.trim(), self.args.trim()).queue(self.queue.trim());
        let mut rule = CronRule::new(self.name.trim(), self.pattern.trim(), job)?;
        if let Some(from) = from {
            let CronRule { priority, max_attempts, timeout, keep, .. } = *from;
            rule = CronRule { priority, max_attempts, timeout, keep, tags: from.tags.clone(), ..rule };
        }
        rule = rule.tz(self.tz.trim()).missed(self.missed.parse::<Missed>()?).overlap(self.overlap.parse::<Overlap>()?);
        if self.jitter.trim().is_empty() {
            return Ok(rule);
        }
        let wrong = || Error::invalid("jitter", "write a length of time, such as 30s or 5m");
        Ok(rule.jitter(length(&self.jitter).ok_or_else(wrong)?))
    }
}

/// `GET /cron/new`: the form, with the next runs of what is in it.
pub(super) async fn form(State(app): State<Arc<App>>, who: Who, Query(asked): Query<Wish>, page: Frame) -> Answer {
    who.may(Role::Operator)?;
    let mut wish = asked;
    if !wish.like.is_empty() {
        let found = app.duly.cron_get(&wish.like).await?;
        let record = found.ok_or_else(|| Error::NotFound { what: "cron rule", name: wish.like.clone() })?;
        wish = Wish::of(&record, page.sees_args());
    }
    let wish = wish.filled(&page);
    render(&view(page, wish, String::new()))
}

fn view(page: Frame, wish: Wish, wrong: String) -> Page {
    let page = page.titled("/cron", if wish.changes() { "Change a rule" } else { "New rule" });
    let schedule =
        if wish.pattern.trim().is_empty() { None } else { Some(Schedule::parse(wish.pattern.trim(), wish.tz.trim())) };
    let (words, runs, bad) = match schedule {
        None => (String::new(), Vec::new(), String::new()),
        Some(Ok(schedule)) => (schedule.in_words(), runs(&page, &schedule), String::new()),
        Some(Err(error)) => (String::new(), Vec::new(), error.to_string()),
    };
    let wrong = if wrong.is_empty() { bad } else { wrong };
    Page { page, wish, words, runs, wrong }
}

/// `POST /cron`
pub(super) async fn save(State(app): State<Arc<App>>, who: Who, page: Frame, Form(wish): Form<Wish>) -> Answer {
    who.may(Role::Operator)?;
    super::may_be_pushed(&app, &wish.kind)?;
    match put(&app, &wish).await {
        Ok(record) => {
            done(&page, &format!("/cron/rule/{}", show::encode(&record.rule.name)), "rule", None, &record.rule.name)
        }
        Err(error @ (Error::Store { .. } | Error::Unknown { .. } | Error::Timeout { .. })) => Err(Problem::from(error)),
        Err(error) => {
            let conflict = matches!(error, Error::Conflict(_));
            let status = if conflict { StatusCode::CONFLICT } else { StatusCode::UNPROCESSABLE_ENTITY };
            let wish = wish.filled(&page);
            answer(status, &view(page, wish, error.to_string()))
        }
    }
}

/// Keeps the rule of a form, if the one in its place is still as it was when it was looked at.
async fn put(app: &App, wish: &Wish) -> Result<CronRecord, Error> {
    let name = wish.name.trim();
    let there = app.duly.cron_get(name).await?;
    // Under another name it makes a copy.
    let from = match &there {
        None if wish.changes() => app.duly.cron_get(&wish.of).await?,
        _ => there.clone(),
    };
    let rule = wish.rule(from.as_ref().map(|record| &record.rule))?;
    let seen = match wish.of == name {
        true => Some(wish.seen.clone()),
        false => there.as_ref().map(etag::of_cron),
    };
    let admit = |found: Option<&CronRecord>| match found.map(etag::of_cron) == seen {
        true => Ok(()),
        false => Err(Error::Conflict(format!(
            "somebody has changed or removed rule {name} since you began: nothing was saved. \
             Look at it again, and change it from there"
        ))),
    };
    app.duly.put_cron_over(rule, admit).await
}

#[derive(Deserialize, Default)]
pub(super) struct Sent {
    #[serde(default)]
    sure: String,
    #[serde(default)]
    next: String,
}

#[derive(Template)]
#[template(path = "sure_cron.html")]
struct Sure {
    page: Frame,
    name: String,
    path: String,
}

/// `POST /cron/{name}/pause|resume|trigger|remove`
pub(super) async fn act(
    State(app): State<Arc<App>>,
    Path((name, deed)): Path<(String, String)>,
    who: Who,
    page: Frame,
    Form(sent): Form<Sent>,
) -> Answer {
    who.may(Role::Operator)?;
    let own = format!("/cron/rule/{}", show::encode(&name));
    let next = super::back_to(&sent.next, &own);
    match deed.as_str() {
        "pause" => {
            app.duly.pause_cron(&name).await?;
            done(&page, next, "rule-paused", None, &name)
        }
        "resume" => {
            app.duly.resume_cron(&name).await?;
            done(&page, next, "rule-resumed", None, &name)
        }
        "trigger" => {
            let pushed = app.duly.trigger_cron(&name).await?;
            let deed = if pushed.is_new() { "triggered" } else { "there" };
            done(&page, &format!("/jobs/{}", pushed.id()), deed, None, &name)
        }
        "remove" if sent.sure.is_empty() => {
            render(&Sure { page: page.titled("/cron", "Sure?"), path: show::encode(&name), name })
        }
        "remove" => {
            app.duly.remove_cron(&name).await?;
            done(&page, "/cron", "rule-removed", None, &name)
        }
        other => Err(no_deed(other)),
    }
}
