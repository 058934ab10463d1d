//! Dead jobs, grouped by error: retry or remove a whole group.

use askama::Template;
use axum::extract::State;

use super::display::{self, Moment};
use super::layout::Layout;
use super::{PageResult, render};
use crate::server::AppState;
use duly::State as JobState;
use duly::admin::DeadGroup;

/// The most groups on the page, largest first.
const GROUPS_MAX: usize = 200;
/// The most characters of an error in a row.
const ERROR_CHARS_MAX: usize = 300;

#[derive(Template)]
#[template(path = "dead.html")]
struct DeadPage {
    layout: Layout,
    groups: Vec<GroupRow>,
    left_out: usize,
}

/// Dead jobs of one kind with the same error.
pub(super) struct GroupRow {
    pub queue: String,
    pub kind: String,
    pub error: String,
    pub count: u64,
    pub oldest: Moment,
    pub newest: Moment,
    /// The filter for these jobs, plain and URL-encoded.
    pub filter: String,
    pub query: String,
}

impl GroupRow {
    /// Returns the largest of these groups.
    pub(super) fn list(layout: &Layout, groups: Vec<DeadGroup>, max: usize) -> Vec<GroupRow> {
        groups.into_iter().take(max).map(|group| GroupRow::new(layout, group)).collect()
    }

    fn new(layout: &Layout, group: DeadGroup) -> GroupRow {
        let filter = duly::Filter::all().state(JobState::Dead).queue(group.queue.clone()).group(group.id);
        let filter = filter.to_string();
        GroupRow {
            query: display::url_encode(&filter),
            filter,
            error: display::truncate(&group.error, ERROR_CHARS_MAX),
            count: group.count,
            oldest: layout.moment(group.oldest),
            newest: layout.moment(group.newest),
            queue: group.queue,
            kind: group.kind,
        }
    }
}

/// `GET /dead`
pub(super) async fn show(State(app): AppState, layout: Layout) -> PageResult {
    let layout = layout.with_title("/dead", "Dead jobs");
    let groups = app.duly.jobs().dead_groups(None).await?;
    let left_out = groups.len().saturating_sub(GROUPS_MAX);
    let groups = GroupRow::list(&layout, groups, GROUPS_MAX);
    render(&DeadPage { layout, groups, left_out })
}
