//! Who can be asked what, and whether they answer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use askama::Template;
use axum::Form;
use axum::extract::State;
use serde::Deserialize;

use super::frame::Frame;
use super::show;
use super::{Answer, render};
use crate::admin::token::Role;
use crate::clock::tick;
use crate::http::server::App;
use crate::http::who::Who;
use crate::node::NodeId;

/// How long an answer is waited for.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Most nodes and methods on the page.
const ROWS_MAX: usize = 500;

#[derive(Template)]
#[template(path = "calls.html")]
struct Calls {
    page: Frame,
    methods: Vec<(String, Vec<(String, String)>)>,
    nodes: Vec<Row>,
}

struct Row {
    id: String,
    short: String,
    host: String,
    pid: u32,
    methods: usize,
    /// What became of a ping, in words.
    ping: String,
    answered: bool,
}

/// `GET /calls`
pub(super) async fn list(State(app): State<Arc<App>>, page: Frame) -> Answer {
    look(&app, page, None).await
}

#[derive(Deserialize)]
pub(super) struct Wish {
    node: String,
}

/// `POST /calls`: asks a node whether it is there.
pub(super) async fn ping(State(app): State<Arc<App>>, who: Who, page: Frame, Form(wish): Form<Wish>) -> Answer {
    who.may(Role::Pusher)?;
    let id: NodeId = wish.node.parse()?;
    let asked = tick();
    let answer = app.duly.call("duly.ping", &()).node(id).timeout(ANSWER_MAX).reply::<serde_json::Value>().await;
    let took = show::span(asked.elapsed());
    let said = match answer {
        Ok(said) => (format!("answered in {took}, version {}", said["version"].as_str().unwrap_or("unknown")), true),
        Err(error) => (error.to_string(), false),
    };
    look(&app, page, Some((id, said))).await
}

async fn look(app: &App, page: Frame, pinged: Option<(NodeId, (String, bool))>) -> Answer {
    let page = page.titled("/calls", "Calls");
    let mut methods: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    let mut rows = Vec::new();
    for node in app.duly.nodes().await?.into_iter().filter(|node| node.alive).take(ROWS_MAX) {
        let id = node.id.to_string();
        for method in &node.methods {
            methods.entry(method.clone()).or_default().push((id.clone(), node.host.clone()));
        }
        let (ping, answered) = match &pinged {
            Some((who, said)) if *who == node.id => said.clone(),
            _ => (String::new(), false),
        };
        let (short, methods) = (show::short(&id), node.methods.len());
        rows.push(Row { id, short, host: node.host, pid: node.pid, methods, ping, answered });
    }
    let methods = methods.into_iter().take(ROWS_MAX).collect();
    render(&Calls { page, methods, nodes: rows })
}
