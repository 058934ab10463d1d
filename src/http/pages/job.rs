//! One job: what it carries, what has become of it, why it is not running, and what can be done about that.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use askama::Template;
use axum::Form;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use serde::Deserialize;

use super::frame::Frame;
use super::pretty::{self, Pretty, SHOWN_BYTES, SHOWN_BYTES_MAX};
use super::show::{self, Moment};
use super::{Answer, done, no_deed, page as answer, render};
use crate::admin::token::Role;
use crate::error::Error;
use crate::http::problem::Problem;
use crate::http::server::App;
use crate::http::who::Who;
use crate::job::push::Due;
use crate::job::{JobId, Record, State as JobState};
use crate::node::NodeRecord;
use crate::store::Edit;

#[derive(Template)]
#[template(path = "job.html")]
struct Job {
    page: Frame,
    record: Record,
    queue_path: String,
    kind_query: String,
    why: String,
    args: Option<Pretty>,
    args_bytes: String,
    whole: bool,
    result: Option<Pretty>,
    steps: Vec<Step>,
    progress: Option<Progress>,
    log: Vec<(Moment, u32, String)>,
    holder: Option<Holder>,
    due: Moment,
    pushed: Moment,
    ended: Option<Moment>,
    timeout: String,
    keep: String,
}

/// One moment of a job's life.
struct Step {
    /// A state, for its colour.
    class: &'static str,
    what: String,
    at: Option<Moment>,
    node: String,
    node_short: String,
    text: String,
}

struct Progress {
    percent: u32,
    note: String,
    at: Moment,
}

struct Holder {
    id: String,
    short: String,
    host: String,
    pid: u32,
    alive: bool,
}

#[derive(Deserialize, Default)]
pub(super) struct Asked {
    /// `all` shows long args whole.
    #[serde(default)]
    args: String,
}

async fn find(app: &App, id: &str) -> Result<Record, Problem> {
    let id: JobId = id.parse().map_err(|_| missing(id))?;
    app.duly.get(id).await?.ok_or_else(|| missing(&id.to_string()))
}

fn missing(id: &str) -> Problem {
    let detail = format!(
        "there is no job {}: it is done and no longer kept, was removed, or was never pushed here",
        show::short(id)
    );
    Problem::new(StatusCode::NOT_FOUND, "not_found", detail)
}

/// `GET /jobs/{id}`
pub(super) async fn show(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    Query(asked): Query<Asked>,
    page: Frame,
) -> Answer {
    let record = find(&app, &id).await?;
    let page = page.titled("/jobs", format!("{} {}", record.job.kind, show::short(&id)));
    let whole = asked.args == "all";
    let why = app.duly.why(record.job.id).await.map(|why| why.to_string()).unwrap_or_default();
    let holder = match record.node {
        Some(node) => {
            let nodes = app.duly.nodes().await.unwrap_or_default();
            nodes.iter().find(|known| known.id == node).map(Holder::of)
        }
        None => None,
    };
    let progress = record.progress.as_ref().map(|progress| Progress {
        percent: (progress.done * 100.0) as u32,
        note: progress.note.clone(),
        at: page.moment(progress.at),
    });
    let seen = page.sees_args();
    let most = if whole { SHOWN_BYTES_MAX } else { SHOWN_BYTES };
    let lines = record.log.iter().map(|line| (page.moment(line.at), line.attempt, line.line.clone()));
    let view = Job {
        queue_path: show::encode(&record.job.queue),
        kind_query: show::encode(
            &crate::Filter { kind: Some(record.job.kind.clone()), ..Default::default() }.to_string(),
        ),
        why,
        args: seen.then(|| pretty::pretty(&record.job.args, most)),
        args_bytes: show::bytes(record.job.args.len() as u64),
        whole,
        result: record.result.as_deref().filter(|_| seen).map(|result| pretty::pretty(result, most)),
        steps: steps(&page, &record),
        progress,
        log: if seen { lines.collect() } else { Vec::new() },
        holder,
        due: page.moment(record.due),
        pushed: page.moment(record.job.pushed),
        ended: record.ended.map(|ended| page.moment(ended)),
        timeout: show::span(record.job.timeout),
        keep: show::span(record.job.keep),
        record,
        page,
    };
    render(&view)
}

impl Holder {
    fn of(node: &NodeRecord) -> Holder {
        let id = node.id.to_string();
        Holder { short: show::short(&id), id, host: node.host.clone(), pid: node.pid, alive: node.alive }
    }
}

/// A job's life so far, and the next moment of it that is known.
fn steps(page: &Frame, record: &Record) -> Vec<Step> {
    let plain = |class, what: String, at: Option<SystemTime>| Step {
        class,
        what,
        at: at.map(|at| page.moment(at)),
        node: String::new(),
        node_short: String::new(),
        text: String::new(),
    };
    let mut steps = vec![plain("", "pushed".to_owned(), Some(record.job.pushed))];
    for failure in &record.failures {
        let node = failure.node.to_string();
        steps.push(Step {
            class: "t-dead",
            what: format!("attempt {} failed", failure.attempt),
            at: Some(page.moment(failure.at)),
            node_short: show::short(&node),
            node,
            text: failure.error.clone(),
        });
    }
    let next = record.attempts.saturating_add(1);
    steps.push(match record.state {
        JobState::Scheduled => plain("t-scheduled", format!("attempt {next} is due"), Some(record.due)),
        JobState::Ready => plain("t-ready", format!("attempt {next} is ready"), Some(record.due)),
        JobState::Running => plain("t-running", format!("attempt {next} runs"), None),
        JobState::Done => plain("t-done", "done".to_owned(), record.ended),
        JobState::Dead => plain("t-dead", "given up".to_owned(), record.ended),
    });
    steps
}

#[derive(Deserialize, Default)]
pub(super) struct Wish {
    #[serde(default)]
    sure: String,
    /// When it is due: `10m`, `tomorrow`, as the command line has it.
    #[serde(default)]
    due: String,
}

#[derive(Template)]
#[template(path = "sure_one.html")]
struct Sure {
    page: Frame,
    id: String,
    deed: &'static str,
    title: String,
    words: &'static str,
}

/// `POST /jobs/{id}/retry|reschedule|cancel|remove`
pub(super) async fn act(
    State(app): State<Arc<App>>,
    Path((id, deed)): Path<(String, String)>,
    who: Who,
    page: Frame,
    Form(wish): Form<Wish>,
) -> Answer {
    who.may(Role::Operator)?;
    let job: JobId = id.parse().map_err(|_| missing(&id))?;
    let own = format!("/jobs/{job}");
    let short = show::short(&id);
    let page = page.titled("/jobs", "Sure?");
    let ask = |page: Frame, deed, title: String, words| render(&Sure { page, id: job.to_string(), deed, title, words });
    match deed.as_str() {
        "retry" => {
            app.duly.reschedule(job, Due::Now).await?;
            done(&page, &own, "retried", None, "")
        }
        "reschedule" => {
            app.duly.reschedule(job, due(&wish.due)?).await?;
            done(&page, &own, "rescheduled", None, "")
        }
        "cancel" if wish.sure.is_empty() => ask(page, "cancel", format!("Cancel job {short}?"), CANCEL),
        "cancel" => {
            app.duly.cancel(job).await?;
            done(&page, &own, "cancelled", None, "")
        }
        "remove" if wish.sure.is_empty() => ask(page, "remove", format!("Remove job {short}?"), REMOVE),
        "remove" => {
            app.duly.remove(job).await?;
            done(&page, "/jobs", "removed", None, "")
        }
        other => Err(no_deed(other)),
    }
}

/// What is said before a job is cancelled or removed; the script says the same.
const CANCEL: &str = "It is told to stop, and ends dead with the error \"cancelled\"; it is not retried.";
const REMOVE: &str = "It is gone for good, with its history.";

/// A due moment as people write it: a length of time from now.
fn due(text: &str) -> Result<Due, Problem> {
    let text = text.trim();
    if text.is_empty() || text == "now" {
        return Ok(Due::Now);
    }
    length(text)
        .map(Due::After)
        .ok_or_else(|| Problem::invalid("due", "write how long from now, such as 30s, 10m, 2h30m or 3d"))
}

/// `90s`, `10m`, `2h30m`, `3d`.
pub(super) fn length(text: &str) -> Option<Duration> {
    let span: jiff::Span = text.trim().parse().ok()?;
    let relative = jiff::SpanRelativeTo::days_are_24_hours();
    let length = span.to_duration(relative).ok()?;
    Duration::try_from(length).ok()
}

#[derive(Template)]
#[template(path = "job_edit.html")]
struct EditForm {
    page: Frame,
    id: String,
    short: String,
    kind: String,
    args: String,
    wrong: String,
}

/// `GET /jobs/{id}/edit`
pub(super) async fn edit(State(app): State<Arc<App>>, Path(id): Path<String>, who: Who, page: Frame) -> Answer {
    who.may(Role::Operator)?;
    let record = find(&app, &id).await?;
    let page = page.titled("/jobs", "Edit args");
    let args = laid_out(&record.job.args);
    render(&EditForm { page, short: show::short(&id), id, kind: record.job.kind, args, wrong: String::new() })
}

/// JSON to be edited: laid out, whole and with its secrets, as it is sent back.
fn laid_out(args: &str) -> String {
    let value: Result<&serde_json::value::RawValue, _> = serde_json::from_str(args);
    value.map_or_else(|_| args.to_owned(), |raw| raw.get().to_owned())
}

#[derive(Deserialize)]
pub(super) struct Edited {
    args: String,
}

/// `POST /jobs/{id}/edit`
pub(super) async fn save(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    who: Who,
    page: Frame,
    Form(edited): Form<Edited>,
) -> Answer {
    who.may(Role::Operator)?;
    let record = find(&app, &id).await?;
    super::may_be_pushed(&app, &record.job.kind)?;
    match app.duly.edit(record.job.id, Edit { args: Some(edited.args.clone()), ..Edit::default() }).await {
        Ok(()) => done(&page, &format!("/jobs/{}", record.job.id), "edited", None, ""),
        Err(error @ (Error::Invalid { .. } | Error::Conflict(_))) => {
            let page = page.titled("/jobs", "Edit args");
            let (short, kind, wrong) = (show::short(&id), record.job.kind, error.to_string());
            answer(StatusCode::UNPROCESSABLE_ENTITY, &EditForm { page, id, short, kind, args: edited.args, wrong })
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time_as_people_write_them() {
        let secs = |text| length(text).map(|time| time.as_secs());
        assert_eq!(secs("90s"), Some(90));
        assert_eq!(secs("2h30m"), Some(9_000));
        assert_eq!(secs("3d"), Some(259_200));
        assert_eq!(secs("-5m"), None);
        assert_eq!(secs("soon"), None);
        assert!(matches!(due("now"), Ok(Due::Now)));
        assert!(due("soon").is_err());
    }
}
