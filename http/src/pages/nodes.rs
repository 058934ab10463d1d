//! Nodes: their queues, their running jobs, quiet and stop.

use std::time::Duration;

use askama::Template;
use axum::Form;
use axum::extract::{Path, State};
use serde::Deserialize;
use serde_json::json;

use super::confirm::Confirmation;
use super::display::{self, Moment};
use super::layout::Layout;
use super::{PageResult, redirect_with_flash, render, unknown_action, utilisation};
use crate::audit::AuditNote;
use crate::identity::Identity;
use crate::problem::Result;
use crate::server::{App, AppState};
use duly::NodeId;
use duly::admin::NodeRecord;
use duly::admin::Role;
use duly::admin::RunningJob;
use duly::{ConflictKind, Error};

/// The timeout for a reply; without one the page shows no running jobs.
const REPLY_TIMEOUT: Duration = Duration::from_secs(2);
/// The most nodes on the page, those with a current lease first.
const ROWS_MAX: usize = 500;
/// The most queue names in a row.
const QUEUES_MAX: usize = 6;

#[derive(Template)]
#[template(path = "nodes.html")]
struct NodesPage {
    layout: Layout,
    nodes: Vec<NodeRow>,
    left_out: usize,
}

/// A node in a list.
pub(super) struct NodeRow {
    pub id: String,
    pub short: String,
    pub host: String,
    pub pid: u32,
    pub alive: bool,
    pub quiet: bool,
    pub queues: Vec<String>,
    pub queues_left_out: usize,
    /// How many of its slots are in use.
    pub utilisation: String,
    pub joined: Moment,
}

impl NodeRow {
    pub(super) fn new(layout: &Layout, node: &NodeRecord) -> NodeRow {
        let id = node.id.to_string();
        NodeRow {
            short: display::short_id(&id),
            id,
            host: node.host.clone(),
            pid: node.pid,
            alive: node.alive,
            quiet: node.profile.quiet,
            queues: node.queues.iter().take(QUEUES_MAX).cloned().collect(),
            queues_left_out: node.queues.len().saturating_sub(QUEUES_MAX),
            utilisation: utilisation::describe(node.held, node.profile.slots),
            joined: layout.moment(node.joined),
        }
    }
}

/// `GET /nodes`
pub(super) async fn list(State(app): AppState, layout: Layout) -> PageResult {
    let layout = layout.with_title("/nodes", "Nodes");
    let mut nodes = app.duly.nodes().list().await?;
    nodes.sort_by_key(|node| (!node.alive, node.joined, node.id));
    let left_out = nodes.len().saturating_sub(ROWS_MAX);
    let nodes = nodes.iter().take(ROWS_MAX).map(|node| NodeRow::new(&layout, node)).collect();
    render(&NodesPage { layout, nodes, left_out })
}

#[derive(Template)]
#[template(path = "node.html")]
struct NodePage {
    layout: Layout,
    row: NodeRow,
    stop: Confirmation,
    all_queues: Vec<(String, String, String)>,
    kinds: String,
    methods: Vec<String>,
    running: Vec<RunningJobRow>,
    /// The reason why the running jobs are unknown.
    no_reply: String,
    version: String,
}

struct RunningJobRow {
    id: String,
    short: String,
    kind: String,
    queue: String,
    attempt: u32,
    since: String,
    percent: Option<u32>,
    cancel: Confirmation,
}

fn parse_id(id: &str) -> Result<NodeId> {
    Ok(id.parse::<NodeId>()?)
}

/// `GET /nodes/{id}`
pub(super) async fn show(State(app): AppState, Path(id): Path<String>, layout: Layout) -> PageResult {
    let id = parse_id(&id)?;
    let nodes = app.duly.nodes().list().await?;
    let Some(node) = nodes.iter().find(|node| node.id == id) else {
        return Err(Error::not_found("node", id).into());
    };
    let layout = layout.with_title("/nodes", format!("Node {}", display::short_id(&id.to_string())));
    let (running, no_reply, version) =
        if node.alive { query_node(&app, id).await } else { (Vec::new(), LEASE_OVER.to_owned(), String::new()) };
    let in_use = |queue: &String| {
        let held = node.held_by_queue.get(queue).copied().unwrap_or(0);
        utilisation::describe(held, node.profile.limits.get(queue).copied())
    };
    let all_queues = node.queues.iter().map(|queue| (queue.clone(), display::url_encode(queue), in_use(queue)));
    let kinds = node.profile.kinds.as_ref().map_or("any, or not reported".to_owned(), |kinds| kinds.join(", "));
    let (row, all_queues, methods) = (NodeRow::new(&layout, node), all_queues.collect(), node.methods.clone());
    let stop = confirm_stop(id);
    render(&NodePage { layout, row, stop, all_queues, kinds, methods, running, no_reply, version })
}

const LEASE_OVER: &str = "The node sends no heartbeats; other nodes take its jobs back.";

/// Asks a node for its running jobs and its version. The text is the reason if the jobs are unknown.
async fn query_node(app: &App, id: NodeId) -> (Vec<RunningJobRow>, String, String) {
    let jobs = app.duly.call("duly.jobs", &()).node(id).timeout(REPLY_TIMEOUT).reply::<Vec<RunningJob>>();
    let ping = app.duly.call("duly.ping", &()).node(id).timeout(REPLY_TIMEOUT).reply::<serde_json::Value>();
    let (jobs, ping) = tokio::join!(jobs, ping);
    let version = ping.ok().and_then(|reply| reply["version"].as_str().map(str::to_owned)).unwrap_or_default();
    match jobs {
        Ok(jobs) => (jobs.into_iter().map(RunningJobRow::new).collect(), String::new(), version),
        Err(error) => (Vec::new(), format!("The running jobs of the node are unknown: {error}"), version),
    }
}

impl RunningJobRow {
    fn new(job: RunningJob) -> RunningJobRow {
        let id = job.id.to_string();
        let cancel = super::job::confirm_cancel(&job.kind, &job.queue, job.id);
        RunningJobRow {
            short: display::short_id(&id),
            id,
            kind: job.kind,
            queue: job.queue,
            attempt: job.attempt,
            since: display::duration(Duration::from_millis(job.running_ms)),
            cancel,
            percent: job.progress.map(|done| (done.clamp(0.0, 1.0) * 100.0) as u32),
        }
    }
}

#[derive(Deserialize, Default)]
pub(super) struct NodeActionForm {
    #[serde(default)]
    confirm: String,
}

fn confirm_stop(id: NodeId) -> Confirmation {
    let explanation = "It finishes its running jobs, then its process ends. Other workers of its queues continue.";
    let question = format!("Stop node {}?", display::short_id(&id.to_string()));
    Confirmation::new(question, explanation, "Stop node", "Keep it")
}

/// `POST /nodes/{id}/quiet|resume|stop`
pub(super) async fn run_action(
    State(app): AppState,
    Path((id, action)): Path<(String, String)>,
    identity: Identity,
    note: AuditNote,
    layout: Layout,
    Form(form): Form<NodeActionForm>,
) -> PageResult {
    identity.require(Role::Operator)?;
    let id = parse_id(&id)?;
    let (method, args, flash_key) = match action.as_str() {
        "quiet" => ("duly.quiet", json!({ "on": true }), "quiet"),
        "resume" => ("duly.quiet", json!({ "on": false }), "node-resumed"),
        "stop" if form.confirm.is_empty() => {
            note.skip();
            let layout = layout.with_title("/nodes", "");
            return confirm_stop(id).page(layout, &format!("/nodes/{id}/stop"), &[], &format!("/nodes/{id}"));
        }
        "stop" => ("duly.stop", json!(null), "stopping"),
        other => return Err(unknown_action(other)),
    };
    let workers: u64 = app.duly.call(method, &args).node(id).timeout(REPLY_TIMEOUT).reply().await?;
    if workers == 0 {
        return Err(Error::conflict(
            ConflictKind::NoWorker,
            format!("node {id} runs no worker; choose a node that runs one"),
        )
        .into());
    }
    redirect_with_flash(&layout, &format!("/nodes/{id}"), flash_key, None, &id.to_string())
}
