//! Nodes: who is there, what they can take on, what they run; quiet, stop.

use std::sync::Arc;
use std::time::Duration;

use askama::Template;
use axum::Form;
use axum::extract::{Path, State};
use serde::Deserialize;
use serde_json::json;

use super::frame::Frame;
use super::show::{self, Moment};
use super::{Answer, done, no_deed, render};
use crate::admin::token::Role;
use crate::error::Error;
use crate::http::problem::Problem;
use crate::http::server::App;
use crate::http::who::Who;
use crate::node::{NodeId, NodeRecord};
use crate::peers::Running;

/// A node that does not answer by then is shown without what it runs.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Most nodes on the page: those that live first.
const ROWS_MAX: usize = 500;
/// Most names of queues in a row.
const QUEUES_MAX: usize = 6;

#[derive(Template)]
#[template(path = "nodes.html")]
struct Nodes {
    page: Frame,
    nodes: Vec<Row>,
    left_out: usize,
}

/// A node in a list.
pub(super) struct Row {
    pub id: String,
    pub short: String,
    pub host: String,
    pub pid: u32,
    pub alive: bool,
    pub quiet: bool,
    pub queues: Vec<String>,
    pub queues_left_out: usize,
    pub held: u64,
    pub slots: String,
    pub joined: Moment,
}

impl Row {
    pub(super) fn of(page: &Frame, node: &NodeRecord) -> Row {
        let id = node.id.to_string();
        Row {
            short: show::short(&id),
            id,
            host: node.host.clone(),
            pid: node.pid,
            alive: node.alive,
            quiet: node.takes.quiet,
            queues: node.queues.iter().take(QUEUES_MAX).cloned().collect(),
            queues_left_out: node.queues.len().saturating_sub(QUEUES_MAX),
            held: node.held,
            slots: node.takes.slots.map(|slots| format!(" of {}", show::count(slots))).unwrap_or_default(),
            joined: page.moment(node.joined),
        }
    }
}

/// `GET /nodes`
pub(super) async fn list(State(app): State<Arc<App>>, page: Frame) -> Answer {
    let page = page.titled("/nodes", "Nodes");
    let mut nodes = app.duly.nodes().await?;
    nodes.sort_by_key(|node| (!node.alive, node.joined, node.id));
    let left_out = nodes.len().saturating_sub(ROWS_MAX);
    let nodes = nodes.iter().take(ROWS_MAX).map(|node| Row::of(&page, node)).collect();
    render(&Nodes { page, nodes, left_out })
}

#[derive(Template)]
#[template(path = "node.html")]
struct Node {
    page: Frame,
    row: Row,
    all_queues: Vec<(String, String, String)>,
    kinds: String,
    methods: Vec<String>,
    running: Vec<Runs>,
    /// Why it has not said what it runs.
    silent: String,
    version: String,
}

struct Runs {
    id: String,
    short: String,
    kind: String,
    queue: String,
    attempt: u32,
    since: String,
    percent: Option<u32>,
}

fn id_of(id: &str) -> Result<NodeId, Problem> {
    Ok(id.parse::<NodeId>()?)
}

/// `GET /nodes/{id}`
pub(super) async fn show(State(app): State<Arc<App>>, Path(id): Path<String>, page: Frame) -> Answer {
    let id = id_of(&id)?;
    let nodes = app.duly.nodes().await?;
    let Some(node) = nodes.iter().find(|node| node.id == id) else {
        return Err(Error::NotFound { what: "node", name: id.to_string() }.into());
    };
    let page = page.titled("/nodes", format!("Node {}", show::short(&id.to_string())));
    let (running, silent, version) =
        if node.alive { asked(&app, id).await } else { (Vec::new(), GONE.to_owned(), String::new()) };
    let limits = |queue: &String| node.takes.limits.get(queue).map(|limit| format!(" of {limit}")).unwrap_or_default();
    let held = |queue: &String| node.holds.get(queue).copied().unwrap_or(0);
    let all_queues = node
        .queues
        .iter()
        .map(|queue| (queue.clone(), show::encode(queue), format!("{}{}", held(queue), limits(queue))));
    let kinds = node.takes.kinds.as_ref().map_or("any, or not told".to_owned(), |kinds| kinds.join(", "));
    let (row, all_queues, methods) = (Row::of(&page, node), all_queues.collect(), node.methods.clone());
    render(&Node { page, row, all_queues, kinds, methods, running, silent, version })
}

const GONE: &str = "The node gives no sign of life; what it held is taken back by others.";

/// What a node says of itself: the jobs it runs, why it says nothing, its version.
async fn asked(app: &App, id: NodeId) -> (Vec<Runs>, String, String) {
    let jobs = app.duly.call("duly.jobs", &()).node(id).timeout(ANSWER_MAX).reply::<Vec<Running>>();
    let ping = app.duly.call("duly.ping", &()).node(id).timeout(ANSWER_MAX).reply::<serde_json::Value>();
    let (jobs, ping) = tokio::join!(jobs, ping);
    let version = ping.ok().and_then(|said| said["version"].as_str().map(str::to_owned)).unwrap_or_default();
    match jobs {
        Ok(jobs) => (jobs.into_iter().map(Runs::of).collect(), String::new(), version),
        Err(error) => (Vec::new(), format!("The node has not said what it runs: {error}"), version),
    }
}

impl Runs {
    fn of(job: Running) -> Runs {
        let id = job.id.to_string();
        Runs {
            short: show::short(&id),
            id,
            kind: job.kind,
            queue: job.queue,
            attempt: job.attempt,
            since: show::span(Duration::from_millis(job.running_ms)),
            percent: job.progress.map(|done| (done.clamp(0.0, 1.0) * 100.0) as u32),
        }
    }
}

#[derive(Deserialize, Default)]
pub(super) struct Wish {
    #[serde(default)]
    sure: String,
}

#[derive(Template)]
#[template(path = "sure_node.html")]
struct Sure {
    page: Frame,
    id: String,
    short: String,
}

/// `POST /nodes/{id}/quiet|loud|stop`
pub(super) async fn act(
    State(app): State<Arc<App>>,
    Path((id, deed)): Path<(String, String)>,
    who: Who,
    page: Frame,
    Form(wish): Form<Wish>,
) -> Answer {
    who.may(Role::Operator)?;
    let id = id_of(&id)?;
    let (method, args, did) = match deed.as_str() {
        "quiet" => ("duly.quiet", json!({ "on": true }), "quiet"),
        "loud" => ("duly.quiet", json!({ "on": false }), "loud"),
        "stop" if wish.sure.is_empty() => {
            let page = page.titled("/nodes", "Sure?");
            return render(&Sure { page, short: show::short(&id.to_string()), id: id.to_string() });
        }
        "stop" => ("duly.stop", json!(null), "stopping"),
        other => return Err(no_deed(other)),
    };
    let told: u64 = app.duly.call(method, &args).node(id).timeout(ANSWER_MAX).reply().await?;
    if told == 0 {
        return Err(Error::Conflict(format!("node {id} runs no worker")).into());
    }
    done(&page, &format!("/nodes/{id}"), did, None, &id.to_string())
}
