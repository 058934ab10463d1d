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
use crate::client::Duly;
use crate::clock::Clock;
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
    /// Its number; none if it is a part of how everything is and not the last one.
    no: Option<u64>,
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

struct Kept {
    /// Number of the newest change.
    last: u64,
    /// The newest changes, numbered without a gap.
    changes: VecDeque<Change>,
    /// What was said of each queue and of the nodes when last looked at.
    queues: BTreeMap<String, Arc<str>>,
    nodes: Option<Arc<str>>,
    looking: bool,
}

impl Default for Events {
    fn default() -> Self {
        // From the time of the start on: a number that an earlier process gave is never taken for one of this.
        let last = u64::try_from(Clock::system().wall()).unwrap_or(0);
        let (changes, queues) = (VecDeque::new(), BTreeMap::new());
        let kept = Kept { last, changes, queues, nodes: None, looking: false };
        Events { kept: Mutex::new(kept), told: broadcast::channel(KEPT_MAX).0 }
    }
}

impl Kept {
    /// What has changed after this number; `None` if that is not known: an earlier process gave it, or it is long ago.
    fn since(&self, after: u64) -> Option<VecDeque<Change>> {
        let before_all = self.last - self.changes.len() as u64;
        let known = (before_all..=self.last).contains(&after);
        known.then(|| self.changes.iter().filter(|change| change.no > Some(after)).cloned().collect())
    }

    /// How everything is, as far as it is wanted. The last of it has the number of the newest change:
    /// whoever was cut off before that asks for all of it again.
    fn present(&self, wanted: &Wanted) -> VecDeque<Change> {
        let queue = |(queue, data): (&String, &Arc<str>)| Change::of("queue", Some(queue.clone()), data.clone());
        let nodes = self.nodes.iter().map(|data| Change::of("nodes", None, data.clone()));
        let all = self.queues.iter().map(queue).chain(nodes);
        let mut all: VecDeque<Change> = all.filter(|change| wanted.has(change)).collect();
        if let Some(last) = all.back_mut() {
            last.no = Some(self.last);
        }
        all
    }
}

impl Change {
    fn of(name: &'static str, queue: Option<String>, data: Arc<str>) -> Self {
        Change { no: None, queue, name, data }
    }

    fn event(&self) -> Event {
        let event = Event::default().event(self.name).data(&*self.data);
        match self.no {
            Some(no) => event.id(no.to_string()),
            None => event,
        }
    }
}

impl Events {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens from now on; with a number, after what has changed since that, or else after how everything is.
    fn listen(self: &Arc<Self>, duly: &Duly, wanted: Wanted, after: Option<u64>) -> Listener {
        let mut kept = self.kept();
        let told = self.told.subscribe();
        if !std::mem::replace(&mut kept.looking, true) {
            tokio::spawn(look(self.clone(), duly.clone()));
        }
        let first = after.map(|after| kept.since(after).unwrap_or_else(|| kept.present(&wanted))).unwrap_or_default();
        Listener { events: self.clone(), told, first, wanted }
    }

    fn tell(&self, kept: &mut Kept, change: Change) {
        kept.last += 1;
        let change = Change { no: Some(kept.last), ..change };
        if kept.changes.len() == KEPT_MAX {
            kept.changes.pop_front();
        }
        kept.changes.push_back(change.clone());
        // Nobody may be there.
        let _ = self.told.send(change);
    }

    async fn compare(&self, duly: &Duly) -> crate::Result<()> {
        let views: Vec<QueueView> = duly.counts().await?.iter().map(QueueView::of).collect();
        let alive = duly.nodes().await?.iter().filter(|node| node.alive).count();
        let said = |view: &QueueView| Arc::from(serde_json::to_string(view).unwrap_or_default());
        let queues: BTreeMap<String, Arc<str>> = views.iter().map(|view| (view.queue.clone(), said(view))).collect();
        let nodes: Arc<str> = format!("{{\"nodes\":{alive}}}").into();
        let mut kept = self.kept();
        let before = std::mem::replace(&mut kept.queues, queues.clone());
        for (queue, data) in queues.into_iter().filter(|(queue, data)| before.get(queue) != Some(data)) {
            self.tell(&mut kept, Change::of("queue", Some(queue), data));
        }
        if kept.nodes.as_ref() != Some(&nodes) {
            kept.nodes = Some(nodes.clone());
            self.tell(&mut kept, Change::of("nodes", None, nodes));
        }
        Ok(())
    }
}

/// What one listener wants to know of: one queue, or everything.
struct Wanted(Option<String>);

impl Wanted {
    fn has(&self, change: &Change) -> bool {
        self.0.is_none() || self.0 == change.queue
    }
}

/// Somebody who listens.
struct Listener {
    events: Arc<Events>,
    told: broadcast::Receiver<Change>,
    /// What comes before all that is told.
    first: VecDeque<Change>,
    wanted: Wanted,
}

impl Listener {
    async fn next(&mut self) -> Option<Change> {
        loop {
            let change = match self.first.pop_front() {
                Some(change) => change,
                None => match self.told.recv().await {
                    Ok(change) => change,
                    Err(broadcast::error::RecvError::Lagged(_)) => {
                        self.catch_up();
                        continue;
                    }
                    Err(broadcast::error::RecvError::Closed) => return None,
                },
            };
            if self.wanted.has(&change) {
                return Some(change);
            }
        }
    }

    /// More has happened than is kept for who is slow: on with how everything is, and what changes after that.
    fn catch_up(&mut self) {
        let kept = self.events.kept();
        self.told = self.events.told.subscribe();
        self.first = kept.present(&self.wanted);
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
/// With `Last-Event-ID`, those that came after it first; where they are not known any more, and for who is too slow,
/// all queues as they are now. Ends after an hour: ask again. One name has at most an eighth of the server's connections
/// for streams.
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
    let listener = app.events.listen(&app.duly, Wanted(params.queue), after);
    Ok(place.answer(stream::unfold(listener, |mut listener| async move {
        let change = listener.next().await?;
        Some((change.event(), listener))
    })))
}
