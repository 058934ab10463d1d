//! Events: what changes, as it changes, by SSE.
//!
//! One look at the store a second serves everybody who listens, and none is taken while nobody does.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::response::sse::Event;
use futures_util::stream;
use serde::Deserialize;
use tokio::sync::broadcast;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Problems;
use crate::duly::Duly;
use crate::http::json::Params;
use crate::http::problem::Problem;
use crate::http::proof::Proof;
use crate::http::server::App;
use crate::http::streams::Place;
use crate::http::view::QueueView;
use crate::http::who::Who;

/// How often the store is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// How many events are kept for those who come back, and may wait for one who is slow.
const KEPT_MAX: usize = 256;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(events))
}

/// Something that has changed.
#[derive(Clone)]
struct Change {
    no: u64,
    /// Its queue, if it is about one.
    queue: Option<String>,
    name: &'static str,
    data: Arc<str>,
}

/// What has changed of late, and who wants to know.
pub(crate) struct Events {
    kept: Mutex<Kept>,
    told: broadcast::Sender<Change>,
}

#[derive(Default)]
struct Kept {
    last: u64,
    changes: VecDeque<Change>,
    queues: BTreeMap<String, QueueView>,
    nodes: usize,
    looking: bool,
}

impl Default for Events {
    fn default() -> Self {
        Events { kept: Mutex::default(), told: broadcast::channel(KEPT_MAX).0 }
    }
}

impl Events {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens from now on, after what is kept behind this number.
    fn listen(self: &Arc<Self>, duly: &Duly, after: Option<u64>) -> (Vec<Change>, broadcast::Receiver<Change>) {
        let mut kept = self.kept();
        let receiver = self.told.subscribe();
        if !std::mem::replace(&mut kept.looking, true) {
            tokio::spawn(look(self.clone(), duly.clone()));
        }
        let missed = match after {
            Some(after) => kept.changes.iter().filter(|change| change.no > after).cloned().collect(),
            None => Vec::new(),
        };
        (missed, receiver)
    }

    fn tell(&self, kept: &mut Kept, name: &'static str, queue: Option<String>, data: String) {
        kept.last += 1;
        let change = Change { no: kept.last, queue, name, data: data.into() };
        if kept.changes.len() == KEPT_MAX {
            kept.changes.pop_front();
        }
        kept.changes.push_back(change.clone());
        // Nobody may be there.
        let _ = self.told.send(change);
    }

    async fn compare(&self, duly: &Duly) -> crate::Result<()> {
        let queues: Vec<QueueView> = duly.counts().await?.iter().map(QueueView::of).collect();
        let nodes = duly.nodes().await?.iter().filter(|node| node.alive).count();
        let mut kept = self.kept();
        for queue in queues {
            if kept.queues.get(&queue.queue) == Some(&queue) {
                continue;
            }
            let data = serde_json::to_string(&queue).unwrap_or_default();
            self.tell(&mut kept, "queue", Some(queue.queue.clone()), data);
            kept.queues.insert(queue.queue.clone(), queue);
        }
        if kept.nodes != nodes {
            kept.nodes = nodes;
            self.tell(&mut kept, "nodes", None, format!("{{\"nodes\":{nodes}}}"));
        }
        Ok(())
    }
}

/// Looks until nobody listens any more.
async fn look(events: Arc<Events>, duly: Duly) {
    loop {
        if let Err(error) = events.compare(&duly).await {
            tracing::warn!(%error, "no events: the store does not answer");
        }
        tokio::time::sleep(LOOK).await;
        let mut kept = events.kept();
        if events.told.receiver_count() == 0 {
            kept.looking = false;
            return;
        }
    }
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct EventParams {
    /// Only about this queue.
    queue: Option<String>,
}

/// What changes, as it changes
///
/// Server-sent events: `queue` with the counts of a queue that has changed, `nodes` with how many there are.
/// With `Last-Event-ID`, those that came after it first, as far as they are kept.
/// Ends after an hour: ask again. One name has at most an eighth of the server's connections for streams.
#[utoipa::path(get, path = "/events", tag = "events",
    params(EventParams, ("Last-Event-ID" = Option<u64>, Header, description = "go on after this one")),
    responses((status = 200, content_type = "text/event-stream", body = String), Problems))]
async fn events(
    State(app): State<Arc<App>>,
    who: Who,
    proof: Proof,
    headers: HeaderMap,
    Params(params): Params<EventParams>,
) -> Result<Response, Problem> {
    let after = match headers.get("last-event-id").map(|id| id.to_str().ok().and_then(|id| id.parse().ok())) {
        Some(None) => return Err(Problem::invalid("Last-Event-ID", "is the number of an event")),
        Some(after) => after,
        None => None,
    };
    let place = Place::take(&app, &who, proof)?;
    let (missed, receiver) = app.events.listen(&app.duly, after);
    let wanted = move |change: &Change| match (&params.queue, &change.queue) {
        (Some(wanted), Some(queue)) => wanted == queue,
        (Some(_), None) => false,
        (None, _) => true,
    };
    let start = (VecDeque::from(missed), receiver, wanted);
    let events = stream::unfold(start, |(mut missed, mut receiver, wanted)| async move {
        loop {
            let change = match missed.pop_front() {
                Some(change) => change,
                None => match receiver.recv().await {
                    Ok(change) => change,
                    // Too slow: what comes next is newer anyway.
                    Err(broadcast::error::RecvError::Lagged(_)) => continue,
                    Err(broadcast::error::RecvError::Closed) => return None,
                },
            };
            if wanted(&change) {
                let event = Event::default().id(change.no.to_string()).event(change.name).data(&*change.data);
                return Some((event, (missed, receiver, wanted)));
            }
        }
    });
    Ok(place.answer(events))
}
