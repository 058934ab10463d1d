//! Dead jobs, grouped by what they died of: retry or remove a whole group, or look at it.

use std::sync::Arc;

use askama::Template;
use axum::extract::State;

use super::display::{self, Moment};
use super::layout::Layout;
use super::{PageResult, render};
use crate::server::App;
use duly::DeadGroup;
use duly::State as JobState;

/// Most groups on the page, the largest first.
const GROUPS_MAX: usize = 200;
/// As much of an error as a row shows.
const ERROR_CHARS_MAX: usize = 300;

#[derive(Template)]
#[template(path = "dead.html")]
struct DeadPage {
    layout: Layout,
    groups: Vec<Group>,
    left_out: usize,
}

/// Dead jobs that died of the same.
pub(super) struct Group {
    pub queue: String,
    pub kind: String,
    pub error: String,
    pub count: u64,
    pub oldest: Moment,
    pub newest: Moment,
    /// The filter that means them, and the same as a part of an address.
    pub filter: String,
    pub query: String,
}

impl Group {
    /// The largest of these groups.
    pub(super) fn list(layout: &Layout, groups: Vec<DeadGroup>, max: usize) -> Vec<Group> {
        groups.into_iter().take(max).map(|group| Group::new(layout, group)).collect()
    }

    fn new(layout: &Layout, group: DeadGroup) -> Group {
        let filter = duly::Filter {
            state: Some(JobState::Dead),
            queue: Some(group.queue.clone()),
            group: Some(group.id),
            ..duly::Filter::default()
        };
        let filter = filter.to_string();
        Group {
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
pub(super) async fn show(State(app): State<Arc<App>>, layout: Layout) -> PageResult {
    let layout = layout.with_title("/dead", "Dead jobs");
    let groups = app.duly.dead_groups(None).await?;
    let left_out = groups.len().saturating_sub(GROUPS_MAX);
    let groups = Group::list(&layout, groups, GROUPS_MAX);
    render(&DeadPage { layout, groups, left_out })
}
