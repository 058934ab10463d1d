//! Queues: how deep, how fast, paused or not; pause, resume, limits, clear.

use std::sync::Arc;
use std::time::SystemTime;

use askama::Template;
use axum::Form;
use axum::extract::{Path, Query, State};
use serde::Deserialize;

use super::chart::{Chart, Spark};
use super::frame::Frame;
use super::graphs::{self, Range};
use super::{Answer, done, no_deed, render, show};
use crate::admin::token::Role;
use crate::http::problem::Problem;
use crate::http::server::App;
use crate::http::who::Who;
use crate::job::State as JobState;
use crate::store::{Limit, QueueCounts};

/// Most queues on the page, the deepest first; the rest is told of.
const ROWS_MAX: usize = 500;

#[derive(Template)]
#[template(path = "queues.html")]
struct Queues {
    page: Frame,
    rows: Vec<Row>,
    left_out: usize,
}

pub(super) struct Row {
    pub queue: String,
    pub path: String,
    pub paused: bool,
    pub moving: bool,
    pub counts: QueueCounts,
    /// How long its first ready job has waited.
    pub oldest: String,
    pub spark: Option<Spark>,
}

/// `GET /queues`
pub(super) async fn list(State(app): State<Arc<App>>, page: Frame) -> Answer {
    let page = page.titled("/queues", "Queues");
    let mut counts = page.counts.clone();
    let left_out = counts.len().saturating_sub(ROWS_MAX);
    if left_out > 0 {
        counts.sort_by_key(|queue| std::cmp::Reverse(queue.ready + queue.running + queue.dead));
        counts.truncate(ROWS_MAX);
    }
    counts.sort_by(|a, b| a.queue.cmp(&b.queue));
    let (mut sparks, now) = (graphs::sparks(&app.duly).await, app.duly.now());
    let rows = counts.into_iter().map(|counts| Row::of(sparks.remove(&counts.queue), counts, now)).collect();
    render(&Queues { page, rows, left_out })
}

impl Row {
    pub(super) fn of(spark: Option<Spark>, counts: QueueCounts, now: SystemTime) -> Row {
        let waited = |due| show::span(now.duration_since(due).unwrap_or_default());
        Row {
            oldest: counts.oldest.map_or("–".to_owned(), waited),
            path: show::encode(&counts.queue),
            queue: counts.queue.clone(),
            paused: counts.paused,
            moving: counts.moving.is_some(),
            counts,
            spark,
        }
    }
}

#[derive(Template)]
#[template(path = "queue.html")]
struct Queue {
    page: Frame,
    queue: String,
    path: String,
    counts: QueueCounts,
    range: Range,
    charts: Vec<Chart>,
    limits: Limits,
    nodes: Vec<super::nodes::Row>,
}

/// What is in the form of a queue's limits.
struct Limits {
    jobs: String,
    bytes: String,
}

#[derive(Deserialize, Default)]
pub(super) struct Asked {
    #[serde(default)]
    range: String,
}

/// `GET /queues/{queue}`
pub(super) async fn show(
    State(app): State<Arc<App>>,
    Path(queue): Path<String>,
    Query(asked): Query<Asked>,
    page: Frame,
) -> Answer {
    let page = page.titled("/queues", format!("Queue {queue}"));
    let Some(counts) = page.counts.iter().find(|counts| counts.queue == queue).cloned() else {
        return Err(crate::Error::NotFound { what: "queue", name: queue }.into());
    };
    let range = Range::of(&asked.range);
    let charts =
        graphs::charts(&app.duly, Some(&queue), range, counts.scheduled + counts.ready + counts.running).await?;
    let limits = Limits { jobs: shown(counts.limit.jobs), bytes: shown(counts.limit.bytes) };
    let nodes = app.duly.nodes().await?;
    let nodes = nodes.iter().filter(|node| node.queues.contains(&queue)).map(|node| super::nodes::Row::of(&page, node));
    let nodes = nodes.collect();
    render(&Queue { path: show::encode(&queue), page, queue, counts, range, charts, limits, nodes })
}

fn shown(limit: Option<u64>) -> String {
    limit.map(|limit| limit.to_string()).unwrap_or_default()
}

#[derive(Deserialize, Default)]
pub(super) struct Wish {
    #[serde(default)]
    jobs: String,
    #[serde(default)]
    bytes: String,
    /// The queue's name, typed by hand.
    #[serde(default)]
    name: String,
    #[serde(default)]
    next: String,
}

/// `POST /queues/{queue}/pause|resume|limit|clear`
pub(super) async fn act(
    State(app): State<Arc<App>>,
    Path((queue, deed)): Path<(String, String)>,
    who: Who,
    page: Frame,
    Form(wish): Form<Wish>,
) -> Answer {
    who.may(Role::Operator)?;
    let own = format!("/queues/{}", show::encode(&queue));
    let next = super::back_to(&wish.next, &own);
    match deed.as_str() {
        "pause" => {
            app.duly.pause(&queue).await?;
            done(&page, next, "paused", None, &queue)
        }
        "resume" => {
            app.duly.resume(&queue).await?;
            done(&page, next, "resumed", None, &queue)
        }
        "limit" => {
            let limit = Limit { jobs: number("jobs", &wish.jobs)?, bytes: number("bytes", &wish.bytes)? };
            app.duly.limit(&queue, limit).await?;
            done(&page, &own, "limited", None, &queue)
        }
        "clear" => {
            if wish.name != queue {
                return Err(Problem::invalid("name", format!("type the name of the queue, {queue}, to clear it")));
            }
            let cleared = app.duly.clear(&*queue).run().await?;
            done(&page, "/queues", "cleared", Some(cleared.done), &queue)
        }
        other => Err(no_deed(other)),
    }
}

fn number(field: &str, text: &str) -> Result<Option<u64>, Problem> {
    let digits: String = text.chars().filter(|c| !matches!(c, ',' | '_' | ' ')).collect();
    match digits.as_str() {
        "" => Ok(None),
        digits => {
            digits.parse().map(Some).map_err(|_| Problem::invalid(field, "a whole number, or nothing for no limit"))
        }
    }
}
