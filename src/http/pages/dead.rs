//! Dead jobs, grouped by what they died of: retry or remove a whole group, or look at it.

use std::sync::Arc;

use askama::Template;
use axum::extract::State;

use super::frame::Frame;
use super::show::{self, Moment};
use super::{Answer, render};
use crate::http::server::App;
use crate::job::State as JobState;
use crate::store::DeadGroup;

/// Most groups on the page, the largest first.
const GROUPS_MAX: usize = 200;
/// As much of an error as a row shows.
const ERROR_CHARS_MAX: usize = 300;

#[derive(Template)]
#[template(path = "dead.html")]
struct Dead {
    page: Frame,
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
    pub(super) fn all(page: &Frame, groups: Vec<DeadGroup>, most: usize) -> Vec<Group> {
        groups.into_iter().take(most).map(|group| Group::of(page, group)).collect()
    }

    fn of(page: &Frame, group: DeadGroup) -> Group {
        let filter = crate::Filter {
            state: Some(JobState::Dead),
            queue: Some(group.queue.clone()),
            group: Some(group.id),
            ..crate::Filter::default()
        };
        let filter = filter.to_string();
        Group {
            query: show::encode(&filter),
            filter,
            error: show::cut(&group.error, ERROR_CHARS_MAX),
            count: group.count,
            oldest: page.moment(group.oldest),
            newest: page.moment(group.newest),
            queue: group.queue,
            kind: group.kind,
        }
    }
}

/// `GET /dead`
pub(super) async fn show(State(app): State<Arc<App>>, page: Frame) -> Answer {
    let page = page.titled("/dead", "Dead jobs");
    let groups = app.duly.dead_groups(None).await?;
    let left_out = groups.len().saturating_sub(GROUPS_MAX);
    let groups = Group::all(&page, groups, GROUPS_MAX);
    render(&Dead { page, groups, left_out })
}
