//! Scheduled jobs: a histogram of the next hour, and the list.

use std::time::Duration;

use askama::Template;
use axum::extract::{Query, State};
use serde::Deserialize;

use super::jobs::{JobRow, JobTable, ListSort};
use super::layout::Layout;
use super::{PageResult, display, render};
use crate::server::AppState;
use crate::views::unix_micros;
use duly::Filter;
use duly::State as JobState;
use duly::job::{FilterTime, JobOrder};

/// The page size.
const PAGE_SIZE: usize = 50;
/// The most jobs in the histogram; the page shows if there are more.
const HISTOGRAM_JOBS_MAX: usize = 200;
/// The bars of the histogram, one per minute.
const BARS: usize = 60;
/// The height of the histogram.
const HEIGHT: usize = 64;

#[derive(Template)]
#[template(path = "scheduled.html")]
struct ScheduledPage {
    layout: Layout,
    bars: Vec<Bar>,
    in_hour: usize,
    /// There are more jobs than the histogram counts.
    more: bool,
    q: &'static str,
    rows: Vec<JobRow>,
    next: String,
    table: JobTable,
}

struct Bar {
    x: usize,
    y: usize,
    height: usize,
    label: String,
}

#[derive(Deserialize, Default)]
pub(super) struct ScheduledParams {
    #[serde(default)]
    cursor: String,
    /// Not empty: the last one first.
    #[serde(default)]
    reverse: String,
}

/// `GET /scheduled`
pub(super) async fn show(State(app): AppState, Query(params): Query<ScheduledParams>, layout: Layout) -> PageResult {
    let layout = layout.with_title("/scheduled", "Scheduled");
    let all = Filter::all().state(JobState::Scheduled);
    let hour = all.clone().until(FilterTime::In(Duration::from_secs(3_600))).limit(HISTOGRAM_JOBS_MAX);
    let soon = app.duly.jobs().list(hour).await?;
    let cursor = Some(params.cursor).filter(|cursor| !cursor.is_empty());
    let order = app.duly.supports("admin").then_some(JobOrder::Due);
    let sort = ListSort { order, is_reversed: order.is_some() && !params.reverse.is_empty() };
    let all = all.order(sort.order).reverse(sort.is_reversed);
    let found = app.duly.jobs().list(all.limit(PAGE_SIZE).cursor(cursor).with_details()).await?;
    let reverse = if sort.is_reversed { "&reverse=1" } else { "" };
    let dues: Vec<i64> = soon.jobs.iter().map(|record| unix_micros(record.due) - unix_micros(layout.now)).collect();
    let rows = found.jobs.iter().map(|record| JobRow::new(&layout, record)).collect();
    let next = found
        .next_cursor
        .map(|next| format!("/scheduled?cursor={}{reverse}", display::url_encode(&next)))
        .unwrap_or_default();
    let sort_url = match (sort.order, sort.is_reversed) {
        (None, _) => "",
        (Some(_), false) => "/scheduled?reverse=1",
        (Some(_), true) => "/scheduled",
    };
    let table = JobTable::new(layout.can_operate(), sort, sort_url.to_owned());
    let (in_hour, more) = (soon.jobs.len(), soon.next_cursor.is_some());
    render(&ScheduledPage { bars: bars(&dues), in_hour, more, q: "state:scheduled", rows, next, table, layout })
}

/// Returns a bar for each minute from now with due jobs.
fn bars(dues: &[i64]) -> Vec<Bar> {
    let mut counts = [0usize; BARS];
    for due in dues {
        let minute = usize::try_from(due.max(&0) / 60_000_000).unwrap_or(usize::MAX);
        if let Some(count) = counts.get_mut(minute) {
            *count += 1;
        }
    }
    let top = counts.iter().copied().max().unwrap_or(0).max(1);
    let bar = |(at, count): (usize, &usize)| {
        let height = if *count == 0 { 0 } else { (HEIGHT * count / top).max(4) };
        let label = format!("in {at} min: {}", display::plural(*count as u64, "job"));
        Bar { x: at * 10, y: HEIGHT - height, height, label }
    };
    counts.iter().enumerate().filter(|(_, count)| **count > 0).map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_at_their_minute() {
        let bars = bars(&[0, 59_000_000, 61_000_000, -5, 3_599_000_000, 3_600_000_000]);
        let shown: Vec<(usize, usize)> = bars.iter().map(|bar| (bar.x, bar.height)).collect();
        assert_eq!(shown, [(0, 64), (10, 21), (590, 21)], "what is due in an hour is beyond the strip");
        assert!(bars.iter().all(|bar| bar.y + bar.height == HEIGHT));
    }
}
