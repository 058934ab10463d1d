//! Jobs, by a filter that is the page's address.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use serde::Deserialize;

use super::frame::Frame;
use super::show::{self, Moment};
use super::{Answer, page as answer, render};
use crate::http::server::App;
use crate::job::filter::Filter;
use crate::job::{Record, State as JobState};

/// Jobs on one page.
const PAGE: usize = 50;
/// As much of its args as a row shows.
const ARGS_CHARS_MAX: usize = 120;

#[derive(Template)]
#[template(path = "jobs.html")]
struct Jobs {
    page: Frame,
    /// The filter as it was written.
    q: String,
    wrong: String,
    chips: Vec<Chip>,
    rows: Vec<Row>,
    looked: u64,
    next: String,
    first: String,
    /// Nothing was asked for and nothing is there.
    fresh: bool,
    table: Table,
}

/// How a table of jobs is shown.
pub(super) struct Table {
    /// Rows can be selected.
    pub picks: bool,
    /// What the moment of a row is.
    pub when: &'static str,
}

struct Chip {
    name: String,
    state: &'static str,
    query: String,
    count: String,
    current: bool,
}

/// A job in a list.
pub(super) struct Row {
    pub id: String,
    pub short: String,
    pub kind: String,
    pub queue: String,
    pub queue_path: String,
    pub state: JobState,
    pub args: String,
    pub error: String,
    pub attempts: String,
    pub priority: &'static str,
    pub tags: Vec<String>,
    pub when: Moment,
    pub what: &'static str,
}

impl Row {
    pub(super) fn of(page: &Frame, record: &Record) -> Row {
        let job = &record.job;
        let (when, what) = match record.state {
            JobState::Scheduled => (record.due, "due"),
            JobState::Ready => (record.due, "ready"),
            JobState::Running => (record.due, "due"),
            JobState::Done | JobState::Dead => (record.ended.unwrap_or(record.due), "ended"),
        };
        let id = job.id.to_string();
        Row {
            short: show::short(&id),
            id,
            kind: job.kind.clone(),
            queue: job.queue.clone(),
            queue_path: show::encode(&job.queue),
            state: record.state,
            args: if page.sees_args() { one_line(&job.args) } else { String::new() },
            error: record.failures.last().map(|failure| show::cut(&failure.error, ARGS_CHARS_MAX)).unwrap_or_default(),
            attempts: format!("{}/{}", record.attempts, job.max_attempts),
            priority: if job.priority == crate::Priority::Normal { "" } else { job.priority.as_str() },
            tags: job.tags.iter().take(3).cloned().collect(),
            when: page.moment(when),
            what,
        }
    }
}

/// Args in a row, with secrets hidden.
fn one_line(args: &str) -> String {
    let shown = super::pretty::pretty(args, 4 * ARGS_CHARS_MAX);
    let text: String = shown.pieces.iter().map(|piece| piece.text.as_str()).collect();
    let words: Vec<&str> = text.split_whitespace().collect();
    let line = words.join(" ").replace("{ ", "{").replace(" }", "}").replace("[ ", "[").replace(" ]", "]");
    show::cut(&line, ARGS_CHARS_MAX)
}

#[derive(Deserialize, Default)]
pub(super) struct Asked {
    #[serde(default)]
    q: String,
    #[serde(default)]
    cursor: String,
}

/// `GET /jobs?q=FILTER`
pub(super) async fn list(State(app): State<Arc<App>>, Query(asked): Query<Asked>, page: Frame) -> Answer {
    let mut page = page.titled("/jobs", "Jobs");
    page.query.clone_from(&asked.q);
    let (filter, wrong) = match asked.q.parse::<Filter>() {
        Ok(filter) if filter.looks_into_args() && !page.sees_args() => {
            (Filter::default(), "your role does not see args, so it cannot look for them".to_owned())
        }
        Ok(filter) => (filter, String::new()),
        Err(error) => (Filter::default(), error.to_string()),
    };
    let chips = chips(&page, &filter, wrong.is_empty());
    let first = format!("/jobs?q={}", show::encode(&asked.q));
    let mut view = Jobs {
        q: asked.q,
        chips,
        rows: Vec::new(),
        looked: 0,
        next: String::new(),
        first,
        fresh: page.counts.is_empty(),
        table: Table { picks: page.operates(), when: "When" },
        wrong,
        page,
    };
    if !view.wrong.is_empty() {
        return answer(StatusCode::UNPROCESSABLE_ENTITY, &view);
    }
    let cursor = Some(asked.cursor).filter(|cursor| !cursor.is_empty());
    let found = match app.duly.list(Filter { limit: PAGE, cursor, failures: true, ..filter }).await {
        Ok(found) => found,
        // A cursor from elsewhere, a queue that cannot be: told where it was written.
        Err(error @ crate::Error::Invalid { .. }) => {
            view.wrong = error.to_string();
            return answer(StatusCode::UNPROCESSABLE_ENTITY, &view);
        }
        Err(error) => return Err(error.into()),
    };
    view.rows = found.jobs.iter().map(|record| Row::of(&view.page, record)).collect();
    view.looked = found.looked;
    view.next = found.next.map(|next| format!("{}&cursor={}", view.first, show::encode(&next))).unwrap_or_default();
    render(&view)
}

/// The states as links: each keeps the rest of the filter.
fn chips(page: &Frame, filter: &Filter, right: bool) -> Vec<Chip> {
    let all = std::iter::once(None).chain(JobState::ALL.into_iter().map(Some));
    all.map(|state| {
        let query = Filter { state, ..filter.clone() }.to_string();
        Chip {
            name: state.map_or("all", JobState::as_str).to_owned(),
            state: state.map_or("", JobState::as_str),
            query: show::encode(&query),
            count: state.map(|state| show::count(page.total(state))).unwrap_or_default(),
            current: right && filter.state == state,
        }
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn args_are_one_line_without_their_secrets() {
        assert_eq!(one_line(r#"{"to":"ada","n":[1,2],"token":"x"}"#), r#"{"to": "ada", "n": [1, 2], "token": ••••••}"#);
        assert!(one_line(&format!("[{}1]", "1,".repeat(1_000))).ends_with('…'));
    }
}
