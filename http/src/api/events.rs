//! Server-sent events about queues and nodes.
//!
//! One task polls the store every second for all listeners, and stops with the last of them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
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
use crate::problem::{Problem, Result};
use crate::server::{App, AppState};
use crate::streams::StreamSlot;
use crate::sync::LockExt;
use crate::views::{QueueView, unix_micros};
use duly::{Clock, Duly};

/// The interval between two polls of the store.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The most events that are kept for listeners that reconnect or are slow.
const EVENTS_MAX: usize = 256;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(events))
}

/// A change of a queue or of the number of nodes.
#[derive(Clone)]
struct Change {
    /// The event number; only the last change of a snapshot has one.
    number: Option<u64>,
    /// The changed queue; `None` for nodes.
    queue: Option<String>,
    name: &'static str,
    data: Arc<str>,
}

/// The recent changes, and the channel to the listeners.
pub(crate) struct Events {
    log: Mutex<EventLog>,
    sender: broadcast::Sender<Change>,
}

struct EventLog {
    /// The number of the most recent change.
    last: u64,
    /// The most recent changes, numbered without gaps.
    changes: VecDeque<Change>,
    /// The JSON of each queue and of the nodes at the last poll.
    queues: BTreeMap<String, Arc<str>>,
    nodes: Option<Arc<str>>,
    polling: bool,
}

impl Default for Events {
    fn default() -> Self {
        // Numbers start at the current time, so that a number of an earlier process is never valid here.
        let last = u64::try_from(unix_micros(Clock::system().now())).unwrap_or(0);
        let (changes, queues) = (VecDeque::new(), BTreeMap::new());
        let log = EventLog { last, changes, queues, nodes: None, polling: false };
        Events { log: Mutex::new(log), sender: broadcast::channel(EVENTS_MAX).0 }
    }
}

impl EventLog {
    /// Returns the changes after this number; `None` if it is from an earlier process, or too old.
    fn since(&self, after: u64) -> Option<VecDeque<Change>> {
        let oldest = self.last - self.changes.len() as u64;
        let is_known = (oldest..=self.last).contains(&after);
        is_known.then(|| self.changes.iter().filter(|change| change.number > Some(after)).cloned().collect())
    }

    /// Returns the current state of all queues that match the filter. Only the last change has a number, that of the
    /// most recent change: a listener that is disconnected before it requests the whole snapshot again.
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
        self.log.lock_unpoisoned()
    }

    /// Subscribes a listener. With a number, it first receives the changes since then, or a snapshot if they are
    /// unknown.
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
        // An error means that there is no listener.
        let _ = self.sender.send(change);
    }

    async fn publish_changes(&self, duly: &Duly) -> duly::Result<()> {
        let views: Vec<QueueView> = duly.queues().counts().await?.iter().map(QueueView::from).collect();
        let alive = duly.nodes().list().await?.iter().filter(|node| node.alive).count();
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

/// Selects the changes that a listener receives: those of one queue, or all.
struct EventFilter(Option<String>);

impl EventFilter {
    fn matches(&self, change: &Change) -> bool {
        self.0.is_none() || self.0 == change.queue
    }
}

/// A subscriber of the event stream.
struct Listener {
    events: Arc<Events>,
    receiver: broadcast::Receiver<Change>,
    /// Changes to deliver before those of the channel.
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

    /// Replaces the backlog of a listener that was too slow by a snapshot.
    fn catch_up(&mut self) {
        let log = self.events.log();
        self.receiver = self.events.sender.subscribe();
        self.backlog = log.snapshot(&self.filter);
    }
}

/// Polls the store until the last listener is gone.
async fn poll_store(events: Arc<Events>, duly: Duly) {
    loop {
        if let Err(error) = events.publish_changes(&duly).await {
            tracing::warn!(%error, "no events: the store does not respond");
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
    /// Only this queue.
    queue: Option<String>,
}

/// Stream changes
///
/// Server-sent events: `queue` with the counts of a changed queue, `nodes` with the number of nodes. With
/// `Last-Event-ID`, the stream starts with the changes since then, or with all queues if they are unknown. A slow
/// client also receives all queues again. The stream ends after an hour: reconnect. One client may use at most an
/// eighth of the server's connections for streams and waits.
#[utoipa::path(get, path = "/events", tag = "events", operation_id = "streamEvents",
    params(EventParams, ("Last-Event-ID" = Option<u64>, Header, description = "continue after this event")),
    responses((status = 200, description = "the stream", content_type = "text/event-stream", body = String), Problems))]
async fn events(
    State(app): AppState,
    identity: Identity,
    credential: Credential,
    headers: HeaderMap,
    QueryParams(params): QueryParams<EventParams>,
) -> Result<Response> {
    let after = match headers.get("last-event-id").map(|id| id.to_str().ok().and_then(|id| id.parse().ok())) {
        Some(None) => return Err(Problem::invalid("Last-Event-ID", "must be the number of an event")),
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
