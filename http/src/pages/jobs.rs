//! The list of jobs that match a filter.

use askama::Template;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect};
use serde::Deserialize;

use super::display::{self, Moment};
use super::layout::Layout;
use super::{PageResult, render, render_with_status};
use crate::problem::Result;
use crate::server::{App, AppState};
use duly::Filter;
use duly::job::{IdPart, JobOrder};
use duly::{ConflictKind, Error, JobId, JobRecord, State as JobState};

/// The page size.
const PAGE_SIZE: usize = 50;
/// The most characters of the args in a row.
const ARGS_CHARS_MAX: usize = 120;

#[derive(Template)]
#[template(path = "jobs.html")]
struct JobsPage {
    layout: Layout,
    /// The filter as entered.
    q: String,
    error: String,
    /// Several jobs have ids that begin or end with the word that was searched: the filter for them.
    id_query: String,
    chips: Vec<Chip>,
    rows: Vec<JobRow>,
    scanned: u64,
    next: String,
    first: String,
    /// The store has no queue.
    is_empty: bool,
    table: JobTable,
    bulk: Vec<BulkButton>,
}

/// An action on the selected jobs, or on all that match.
pub(super) struct BulkButton {
    pub value: &'static str,
    pub label: &'static str,
    pub is_destructive: bool,
}

/// Returns the actions that change jobs of this state, or of any state.
fn bulk_buttons(layout: &Layout, state: Option<JobState>) -> Vec<BulkButton> {
    if !layout.can_operate() {
        return Vec::new();
    }
    let is = |states: &[JobState]| state.is_none_or(|state| states.contains(&state));
    let can_retry = is(&[JobState::Scheduled, JobState::Done, JobState::Dead, JobState::Cancelled]);
    // Other systems can only cancel running jobs.
    let can_cancel = state == Some(JobState::Running)
        || (layout.can_administer() && is(&[JobState::Scheduled, JobState::Ready, JobState::Running]));
    let button = |value, label, is_destructive| BulkButton { value, label, is_destructive };
    let retry = button("retry", if state == Some(JobState::Scheduled) { "Run now" } else { "Retry" }, false);
    let buttons = [
        can_retry.then_some(retry),
        can_cancel.then_some(button("cancel", "Cancel", true)),
        (state != Some(JobState::Running)).then_some(button("remove", "Remove", true)),
    ];
    buttons.into_iter().flatten().collect()
}

/// The options of a table of jobs.
pub(super) struct JobTable {
    /// Rows have a checkbox.
    pub selectable: bool,
    /// The header of the time column.
    pub time_header: &'static str,
    /// The address of the list sorted by that column, the other way around if it is sorted; empty if it cannot be.
    pub sort_url: String,
    /// How the list is sorted by that column, for `aria-sort`.
    pub sorted: &'static str,
}

impl JobTable {
    /// Returns the options of a list in this order; the header of its time column leads to `sort_url`.
    pub(super) fn new(selectable: bool, sort: ListSort, sort_url: String) -> JobTable {
        let time_header = match sort.order {
            Some(JobOrder::End) => "Ended",
            Some(JobOrder::Due) => "Due",
            _ => "When",
        };
        JobTable { selectable, time_header, sort_url, sorted: sort.direction() }
    }
}

struct Chip {
    name: String,
    state: &'static str,
    query: String,
    count: String,
    current: bool,
}

/// A job in a list.
pub(super) struct JobRow {
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
    pub time_label: &'static str,
}

impl JobRow {
    pub(super) fn new(layout: &Layout, record: &JobRecord) -> JobRow {
        let job = &record.job;
        let (when, time_label) = match record.state {
            JobState::Scheduled => (record.due, "due"),
            JobState::Ready => (record.due, "ready"),
            JobState::Running => (record.due, "due"),
            _ => (record.ended.unwrap_or(record.due), "ended"),
        };
        let id = job.id.to_string();
        JobRow {
            short: display::short_id(&id),
            id,
            kind: job.kind.clone(),
            queue: job.queue.clone(),
            queue_path: display::url_encode(&job.queue),
            state: record.state,
            args: if layout.can_see_args() { one_line(&job.args) } else { String::new() },
            error: record
                .failures
                .last()
                .map(|failure| display::truncate(&failure.error, ARGS_CHARS_MAX))
                .unwrap_or_default(),
            attempts: format!("{}/{}", record.attempts_made(), job.max_attempts),
            priority: if job.priority == duly::Priority::Normal { "" } else { job.priority.as_str() },
            tags: job.tags.iter().take(3).cloned().collect(),
            when: layout.moment(when),
            time_label,
        }
    }
}

/// Formats args in one line, with secrets masked.
fn one_line(args: &str) -> String {
    let formatted = super::json_format::format_json(args, 4 * ARGS_CHARS_MAX);
    let text: String = formatted.spans.iter().map(|span| span.text.as_str()).collect();
    let words: Vec<&str> = text.split_whitespace().collect();
    let line = words.join(" ").replace("{ ", "{").replace(" }", "}").replace("[ ", "[").replace(" ]", "]");
    display::truncate(&line, ARGS_CHARS_MAX)
}

#[derive(Deserialize, Default)]
pub(super) struct JobsParams {
    #[serde(default)]
    q: String,
    #[serde(default)]
    cursor: String,
    /// `end` or `due`; `none` for the order of the queues.
    #[serde(default)]
    sort: String,
    /// Not empty: the other way around.
    #[serde(default)]
    reverse: String,
}

/// The order of a list, from its address and its filter.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct ListSort {
    pub order: Option<JobOrder>,
    pub is_reversed: bool,
}

impl ListSort {
    /// Lists of dead and scheduled jobs are sorted unless the address says otherwise.
    fn new(app: &App, params: &JobsParams, filter: &Filter) -> duly::Result<ListSort> {
        let order = match params.sort.as_str() {
            "none" => None,
            "" if !app.duly.supports("admin") => None,
            "" => match filter.state {
                Some(JobState::Dead) => Some(JobOrder::End),
                Some(JobState::Scheduled) => Some(JobOrder::Due),
                _ => None,
            },
            name => Some(name.parse()?),
        };
        Ok(ListSort { order, is_reversed: order.is_some() && !params.reverse.is_empty() })
    }

    /// Returns the parameters of the address of this order.
    pub(super) fn parameters(self) -> String {
        let order = self.order.map_or("none", JobOrder::as_str);
        format!("sort={order}{}", if self.is_reversed { "&reverse=1" } else { "" })
    }

    /// Returns the order to which the header of the time column leads; `None` if jobs of this state have none.
    fn next(self, state: Option<JobState>) -> Option<ListSort> {
        let order = match state {
            None => JobOrder::End,
            Some(state) => JobOrder::ALL.into_iter().find(|order| order.states().contains(&state))?,
        };
        let is_reversed = self.order == Some(order) && !self.is_reversed;
        Some(ListSort { order: Some(order), is_reversed })
    }

    /// Returns the value of `aria-sort`.
    pub(super) fn direction(self) -> &'static str {
        match self.order {
            None => "none",
            Some(order) if (order == JobOrder::End) == self.is_reversed => "ascending",
            Some(_) => "descending",
        }
    }
}

/// `GET /jobs?q=FILTER`
pub(super) async fn list(State(app): AppState, Query(params): Query<JobsParams>, layout: Layout) -> PageResult {
    let mut layout = layout.with_title("/jobs", "Jobs");
    layout.query.clone_from(&params.q);
    let id_query = match find_searched_id(&app, &params.q).await? {
        SearchedId::Job(id) => return Ok(Redirect::to(&format!("{}/jobs/{id}", layout.root)).into_response()),
        SearchedId::Several => format!("id:{}", params.q.trim()),
        SearchedId::None => String::new(),
    };
    let (filter, error) = match params.q.parse::<Filter>() {
        Ok(filter) if filter.uses_args() && !layout.can_see_args() => {
            (Filter::default(), "your role cannot see args, so it cannot search them".to_owned())
        }
        Ok(filter) => (filter, String::new()),
        Err(error) => (Filter::default(), error.to_string()),
    };
    let chips = chips(&layout, &filter, error.is_empty());
    let bulk = bulk_buttons(&layout, filter.state);
    let (sort, error) = match ListSort::new(&app, &params, &filter) {
        Ok(sort) => (sort, error),
        Err(wrong) => (ListSort { order: None, is_reversed: false }, wrong.to_string()),
    };
    let list_url = format!("/jobs?q={}", display::url_encode(&params.q));
    let is_default = params.sort.is_empty() && params.reverse.is_empty();
    let first = if is_default { list_url.clone() } else { format!("{list_url}&{}", sort.parameters()) };
    let sort_url = sort.next(filter.state).filter(|_| app.duly.supports("admin"));
    let sort_url = sort_url.map(|next| format!("{list_url}&{}", next.parameters())).unwrap_or_default();
    let table = JobTable::new(!bulk.is_empty(), sort, sort_url);
    let mut view = JobsPage {
        q: params.q,
        id_query: display::url_encode(&id_query),
        chips,
        rows: Vec::new(),
        scanned: 0,
        next: String::new(),
        first,
        is_empty: layout.counts.is_empty(),
        table,
        bulk,
        error,
        layout,
    };
    if !view.error.is_empty() {
        return render_with_status(StatusCode::UNPROCESSABLE_ENTITY, &view);
    }
    let cursor = Some(params.cursor).filter(|cursor| !cursor.is_empty());
    let found = match app
        .duly
        .jobs()
        .list(filter.limit(PAGE_SIZE).cursor(cursor).order(sort.order).reverse(sort.is_reversed).with_details())
        .await
    {
        Ok(found) => found,
        // An invalid cursor or queue name: shown next to the filter.
        Err(error @ Error::Invalid { .. }) => {
            view.error = error.to_string();
            return render_with_status(StatusCode::UNPROCESSABLE_ENTITY, &view);
        }
        Err(error) => return Err(error.into()),
    };
    view.rows = found.jobs.iter().map(|record| JobRow::new(&view.layout, record)).collect();
    view.scanned = found.scanned;
    view.next = found
        .next_cursor
        .map(|next| format!("{}&cursor={}", view.first, display::url_encode(&next)))
        .unwrap_or_default();
    render(&view)
}

/// The jobs whose id was entered into the search box.
enum SearchedId {
    Job(JobId),
    Several,
    None,
}

/// Finds the job if the search is an id or a part of one. Such a word may also be a text to search for.
async fn find_searched_id(app: &App, query: &str) -> Result<SearchedId> {
    let jobs = app.duly.jobs();
    if jobs.parse_id(query.trim()).is_err() && query.trim().parse::<IdPart>().is_err() {
        return Ok(SearchedId::None);
    }
    match jobs.find_id(query).await {
        Ok(id) if jobs.get(id).await?.is_some() => Ok(SearchedId::Job(id)),
        Ok(_) | Err(Error::NotFound { .. } | Error::Unsupported { .. }) => Ok(SearchedId::None),
        Err(Error::Conflict { kind: ConflictKind::Ambiguous, .. }) => Ok(SearchedId::Several),
        Err(error) => Err(error.into()),
    }
}

/// Returns a link per state, which keeps the rest of the filter.
fn chips(layout: &Layout, filter: &Filter, is_valid: bool) -> Vec<Chip> {
    let all = std::iter::once(None).chain(JobState::ALL.into_iter().map(Some));
    all.map(|state| {
        let query = filter.clone().state(state).to_string();
        Chip {
            name: state.map_or("all", JobState::as_str).to_owned(),
            state: state.map_or("", JobState::as_str),
            query: display::url_encode(&query),
            count: state.map(|state| display::count(layout.total(state))).unwrap_or_default(),
            current: is_valid && filter.state == state,
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
