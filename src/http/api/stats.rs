//! How much there is of everything.

use std::sync::Arc;

use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Problems;
use crate::http::problem::Problem;
use crate::http::server::App;
use crate::http::view::QueueView;
use crate::http::who::Who;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(stats))
}

/// How much there is of everything.
#[derive(Serialize, ToSchema)]
struct Stats {
    /// All queues together; its name is empty.
    total: QueueView,
    queues: Vec<QueueView>,
    /// Nodes whose lease runs.
    nodes: usize,
    /// What this store survives, in one sentence.
    durability: String,
    version: &'static str,
}

/// How much there is of everything
#[utoipa::path(get, path = "/stats", tag = "stats", responses((status = 200, body = Stats), Problems))]
async fn stats(State(app): State<Arc<App>>, _: Who) -> Result<axum::Json<Stats>, Problem> {
    let queues: Vec<QueueView> = app.duly.counts().await?.iter().map(QueueView::of).collect();
    let nodes = app.duly.nodes().await?.iter().filter(|node| node.alive).count();
    let durability = app.duly.health().await?.durability;
    let sum = |of: fn(&QueueView) -> u64| queues.iter().map(of).sum();
    let total = QueueView {
        queue: String::new(),
        paused: false,
        moving: false,
        scheduled: sum(|queue| queue.scheduled),
        ready: sum(|queue| queue.ready),
        running: sum(|queue| queue.running),
        done: sum(|queue| queue.done),
        dead: sum(|queue| queue.dead),
    };
    Ok(axum::Json(Stats { total, queues, nodes, durability, version: env!("CARGO_PKG_VERSION") }))
}
