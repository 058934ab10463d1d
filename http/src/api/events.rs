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
use crate::credential::Credential;
use crate::identity::Identity;
use crate::json::QueryParams;
use crate::problem::Problem;
use crate::server::App;
use crate::streams::StreamSlot;
use crate::views::{QueueView, unix_micros};
use duly::{Clock, Duly};

/// How often the store is looked at.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How many events are kept for those who come back, and may wait for one who is slow.
const EVENTS_MAX: usize = 256;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(events))
}

/// Something that has changed.
#[derive(Clone)]
struct Change {
    /// Its number; none if it is a part of how everything is and not the last one.
    number: Option<u64>,
    /// Its queue, if it is about one.
    queue: Option<String>,
    name: &'static str,
    data: Arc<str>,
}

/// What has changed of late, and who wants to know.
pub(crate) struct Events {
    log: Mutex<EventLog>,
    sender: broadcast::Sender<Change>,
}

struct EventLog {
    /// Number of the newest change.
    last: u64,
    /// The newest changes, numbered without a gap.
    changes: VecDeque<Change>,
    /// What was message of each queue and of the nodes when last looked at.
    queues: BTreeMap<String, Arc<str>>,
    nodes: Option<Arc<str>>,
    polling: bool,
}

impl Default for Events {
    fn default() -> Self {
        // From the time of the start on: a number that an earlier process gave is never taken for one of this.
        let last = u64::try_from(unix_micros(Clock::system().now())).unwrap_or(0);
        let (changes, queues) = (VecDeque::new(), BTreeMap::new());
        let log = EventLog { last, changes, queues, nodes: None, polling: false };
        Events { log: Mutex::new(log), sender: broadcast::channel(EVENTS_MAX).0 }
    }
}

impl EventLog {
    /// What has changed after this number; `None` if that is not known: an earlier process gave it, or it is long ago.
    fn since(&self, after: u64) -> Option<VecDeque<Change>> {
        let oldest = self.last - self.changes.len() as u64;
        let is_known = (oldest..=self.last).contains(&after);
        is_known.then(|| self.changes.iter().filter(|change| change.number > Some(after)).cloned().collect())
    }

    /// How everything is, as far as it is wanted. The last of it has the number of the newest change:
    /// whoever was cut off before that asks for all of it again.
    fn snapshot(&self, filter: &EventFilter) -> VecDeque<Change> {
        let queue = |(queue, data): (&String, &Arc<str>)| Change::new("queue", Some(queue.clone()), data.clone());
        let nodes = self.nodes.iter().map(|data| Change::new("nodes", None, data.clone()));
        let all = self.queues.iter().map(queue).chain(nodes);
        let mut all: VecDeque<Change> = all.filter(|change| filter.matches(change)).collect();
        if let Some(last) = all.back_mut() {
            last.number = Some(self.last);
        }
        all
    }
}

impl Change {
    fn new(name: &'static str, queue: Option<String>, data: Arc<str>) -> Self {
        Change { number: None, queue, name, data }
    }

    fn event(&self) -> Event {
        let event = Event::default().event(self.name).data(&*self.data);
        match self.number {
            Some(number) => event.id(number.to_string()),
            None => event,
        }
    }
}

impl Events {
    fn log(&self) -> MutexGuard<'_, EventLog> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens from now on; with a number, after what has changed since that, or else after how everything is.
    fn listen(self: &Arc<Self>, duly: &Duly, filter: EventFilter, after: Option<u64>) -> Listener {
        let mut log = self.log();
        let receiver = self.sender.subscribe();
        if !std::mem::replace(&mut log.polling, true) {
            tokio::spawn(poll_store(self.clone(), duly.clone()));
        }
        let backlog = after.map(|after| log.since(after).unwrap_or_else(|| log.snapshot(&filter))).unwrap_or_default();
        Listener { events: self.clone(), receiver, backlog, filter }
    }

    fn publish(&self, log: &mut EventLog, change: Change) {
        log.last += 1;
        let change = Change { number: Some(log.last), ..change };
        if log.changes.len() == EVENTS_MAX {
            log.changes.pop_front();
        }
        log.changes.push_back(change.clone());
        // Nobody may be there.
        let _ = self.sender.send(change);
    }

    async fn publish_changes(&self, duly: &Duly) -> duly::Result<()> {
        let views: Vec<QueueView> = duly.counts().await?.iter().map(QueueView::new).collect();
        let alive = duly.nodes().await?.iter().filter(|node| node.alive).count();
        let to_json = |view: &QueueView| Arc::from(serde_json::to_string(view).unwrap_or_default());
        let queues: BTreeMap<String, Arc<str>> = views.iter().map(|view| (view.queue.clone(), to_json(view))).collect();
        let nodes: Arc<str> = format!("{{\"nodes\":{alive}}}").into();
        let mut log = self.log();
        let previous = std::mem::replace(&mut log.queues, queues.clone());
        for (queue, data) in queues.into_iter().filter(|(queue, data)| previous.get(queue) != Some(data)) {
            self.publish(&mut log, Change::new("queue", Some(queue), data));
        }
        if log.nodes.as_ref() != Some(&nodes) {
            log.nodes = Some(nodes.clone());
            self.publish(&mut log, Change::new("nodes", None, nodes));
        }
        Ok(())
    }
}

/// What one listener wants to know of: one queue, or everything.
struct EventFilter(Option<String>);

impl EventFilter {
    fn matches(&self, change: &Change) -> bool {
        self.0.is_none() || self.0 == change.queue
    }
}

/// Somebody who listens.
struct Listener {
    events: Arc<Events>,
    receiver: broadcast::Receiver<Change>,
    /// What comes before all that is told.
    backlog: VecDeque<Change>,
    filter: EventFilter,
}

impl Listener {
    async fn next(&mut self) -> Option<Change> {
        loop {
            let change = match self.backlog.pop_front() {
                Some(change) => change,
                None => match self.receiver.recv().await {
                    Ok(change) => change,
                    Err(broadcast::error::RecvError::Lagged(_)) => {
                        self.catch_up();
                        continue;
                    }
                    Err(broadcast::error::RecvError::Closed) => return None,
                },
            };
            if self.filter.matches(&change) {
                return Some(change);
            }
        }
    }

    /// More has happened than is kept for who is slow: on with how everything is, and what changes after that.
    fn catch_up(&mut self) {
        let log = self.events.log();
        self.receiver = self.events.sender.subscribe();
        self.backlog = log.snapshot(&self.filter);
    }
}

/// Looks until nobody listens any more.
async fn poll_store(events: Arc<Events>, duly: Duly) {
    loop {
        if let Err(error) = events.publish_changes(&duly).await {
            tracing::warn!(%error, "no events: the store does not answer");
        }
        tokio::time::sleep(POLL_INTERVAL).await;
        let mut log = events.log();
        if events.sender.receiver_count() == 0 {
            log.polling = false;
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
/// With `Last-Event-ID`, those that came after it first; where they are not known any more, and for who is too slow,
/// all queues as they are now. Ends after an hour: ask again. One name has at most an eighth of the server's connections
/// for streams.
#[utoipa::path(get, path = "/events", tag = "events",
    params(EventParams, ("Last-Event-ID" = Option<u64>, Header, description = "go on after this one")),
    responses((status = 200, content_type = "text/event-stream", body = String), Problems))]
async fn events(
    State(app): State<Arc<App>>,
    identity: Identity,
    credential: Credential,
    headers: HeaderMap,
    QueryParams(params): QueryParams<EventParams>,
) -> Result<Response, Problem> {
    let after = match headers.get("last-event-id").map(|id| id.to_str().ok().and_then(|id| id.parse().ok())) {
        Some(None) => return Err(Problem::invalid("Last-Event-ID", "is the number of an event")),
        Some(after) => after,
        None => None,
    };
    let slot = StreamSlot::acquire(&app, &identity, credential)?;
    let listener = app.events.listen(&app.duly, EventFilter(params.queue), after);
    Ok(slot.respond(stream::unfold(listener, |mut listener| async move {
        let change = listener.next().await?;
        Some((change.event(), listener))
    })))
}
