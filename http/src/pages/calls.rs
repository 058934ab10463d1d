//! The methods of all nodes, and a ping.

use std::collections::BTreeMap;
use std::time::Duration;

use askama::Template;
use axum::Form;
use axum::extract::State;
use serde::Deserialize;

use super::display;
use super::layout::Layout;
use super::{PageResult, render};
use crate::audit::AuditNote;
use crate::identity::Identity;
use crate::server::{App, AppState};
use duly::admin::Role;
use duly::{Clock, NodeId};

/// The timeout of a ping.
const REPLY_TIMEOUT: Duration = Duration::from_secs(2);
/// The most nodes and the most methods on the page.
const ROWS_MAX: usize = 500;

#[derive(Template)]
#[template(path = "calls.html")]
struct CallsPage {
    layout: Layout,
    methods: Vec<(String, Vec<(String, String)>)>,
    nodes: Vec<CalledNodeRow>,
}

struct CalledNodeRow {
    id: String,
    short: String,
    host: String,
    pid: u32,
    methods: usize,
    /// The result of a ping.
    ping: String,
    has_replied: bool,
}

/// `GET /calls`
pub(super) async fn list(State(app): AppState, layout: Layout) -> PageResult {
    render_calls(&app, layout, None).await
}

#[derive(Deserialize)]
pub(super) struct PingForm {
    node: String,
}

/// `POST /calls`: pings a node.
pub(super) async fn ping(
    State(app): AppState,
    identity: Identity,
    note: AuditNote,
    layout: Layout,
    Form(form): Form<PingForm>,
) -> PageResult {
    note.set_target(&form.node);
    identity.require(Role::Pusher)?;
    let id: NodeId = form.node.parse()?;
    let started = Clock::system().monotonic();
    let reply = app.duly.call("duly.ping", &()).node(id).timeout(REPLY_TIMEOUT).reply::<serde_json::Value>().await;
    let took = display::duration(Clock::system().monotonic().saturating_sub(started));
    let result = match reply {
        Ok(reply) => (format!("replied in {took}, version {}", reply["version"].as_str().unwrap_or("unknown")), true),
        Err(error) => (error.to_string(), false),
    };
    render_calls(&app, layout, Some((id, result))).await
}

async fn render_calls(app: &App, layout: Layout, pinged: Option<(NodeId, (String, bool))>) -> PageResult {
    let layout = layout.with_title("/calls", "Calls");
    let mut methods: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    let mut rows = Vec::new();
    for node in app.duly.nodes().list().await?.into_iter().filter(|node| node.alive).take(ROWS_MAX) {
        let id = node.id.to_string();
        for method in &node.methods {
            methods.entry(method.clone()).or_default().push((id.clone(), node.host.clone()));
        }
        let (ping, has_replied) = match &pinged {
            Some((id, result)) if *id == node.id => result.clone(),
            _ => (String::new(), false),
        };
        let (short, methods) = (display::short_id(&id), node.methods.len());
        rows.push(CalledNodeRow { id, short, host: node.host, pid: node.pid, methods, ping, has_replied });
    }
    let methods = methods.into_iter().take(ROWS_MAX).collect();
    render(&CallsPage { layout, methods, nodes: rows })
}
