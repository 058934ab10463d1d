//! Server-sent events about jobs that have ended.
//!
//! One task lists the jobs that have ended since its last look, once a second for all listeners, and stops with the last
//! of them. Pushes, claims and settles have no extra cost. The number of an event is the time of the end and the id of
//! the job, so a stream can be resumed on another server of the store.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::response::sse::Event;
use futures_util::stream;
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Problems;
use crate::credential::Credential;
use crate::identity::Identity;
use crate::json::QueryParams;
use crate::openapi::JobStateName;
use crate::problem::{Problem, Result};
use crate::server::{App, AppState};
use crate::streams::StreamSlot;
use crate::sync::LockExt;
use crate::views::{rfc3339, unix_micros, unix_ms};
use duly::job::FilterTime;
use duly::{Duly, Filter, JobId, JobRecord, State as JobState};

/// The interval between two looks at the store.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Each look goes back this far behind the last end that was seen: ends may become visible out of order.
const OVERLAP_US: i64 = 2_000_000;
/// The most jobs of one state that one look reads, or that a resumed stream sends.
const ENDS_MAX: usize = 5_000;
const PAGE_SIZE: usize = 200;
/// The most events that wait for a slow listener.
const QUEUED_EVENTS_MAX: usize = 4_096;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(job_events))
}

/// When a job ended, in microseconds since 1970, and its id: the order and the numbers of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct EndKey(i64, JobId);

impl FromStr for EndKey {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (at, id) = text.split_once('-').ok_or(())?;
        Ok(EndKey(at.parse().map_err(drop)?, id.parse().map_err(drop)?))
    }
}

/// The end of a job.
#[derive(Serialize, ToSchema)]
#[schema(as = JobEvent)]
struct JobEventView {
    #[schema(format = "uuid")]
    id: String,
    kind: String,
    queue: String,
    /// `done`, `dead` or `cancelled`.
    #[schema(value_type = JobStateName)]
    state: &'static str,
    /// When it ended.
    ended: String,
    ended_ms: i64,
    /// The number of failed attempts.
    attempts: u32,
    max_attempts: u32,
    tags: Vec<String>,
}

/// A job that has ended.
struct JobEnd {
    key: EndKey,
    kind: String,
    queue: String,
    state: JobState,
    data: String,
}

impl JobEnd {
    fn new(record: &JobRecord) -> Option<Self> {
        let (job, ended) = (&record.job, record.ended?);
        let view = JobEventView {
            id: job.id.to_string(),
            kind: job.kind.clone(),
            queue: job.queue.clone(),
            state: record.state.as_str(),
            ended: rfc3339(ended),
            ended_ms: unix_ms(ended),
            attempts: record.attempts,
            max_attempts: job.max_attempts,
            tags: job.tags.clone(),
        };
        Some(JobEnd {
            key: EndKey(unix_micros(ended), job.id),
            kind: view.kind.clone(),
            queue: view.queue.clone(),
            state: record.state,
            data: serde_json::to_string(&view).unwrap_or_default(),
        })
    }

    fn event(&self) -> Event {
        let EndKey(at, id) = self.key;
        Event::default().event(self.state.as_str()).id(format!("{at}-{id}")).data(&self.data)
    }
}

/// A part of a stream.
#[derive(Clone)]
enum EndItem {
    End(Arc<JobEnd>),
    /// Some ends were not sent.
    Missed,
}

impl EndItem {
    fn event(&self) -> Event {
        match self {
            EndItem::End(end) => end.event(),
            EndItem::Missed => Event::default().event("missed").data("{}"),
        }
    }
}

/// The channel to the listeners of job events.
pub(crate) struct JobEvents {
    is_polling: Mutex<bool>,
    sender: broadcast::Sender<EndItem>,
}

impl Default for JobEvents {
    fn default() -> Self {
        JobEvents { is_polling: Mutex::default(), sender: broadcast::channel(QUEUED_EVENTS_MAX).0 }
    }
}

impl JobEvents {
    /// Subscribes a listener, and starts to look for ends unless that runs already.
    fn subscribe(self: &Arc<Self>, duly: &Duly) -> broadcast::Receiver<EndItem> {
        let mut is_polling = self.is_polling.lock_unpoisoned();
        let receiver = self.sender.subscribe();
        if !std::mem::replace(&mut is_polling, true) {
            tokio::spawn(poll_ends(self.clone(), duly.clone(), unix_micros(duly.now())));
        }
        receiver
    }
}

/// Returns the jobs that have ended since this time, and whether there are more than one look may read.
async fn ended_since(duly: &Duly, since: i64, filter: &Filter) -> duly::Result<(BTreeMap<EndKey, Arc<JobEnd>>, bool)> {
    let (mut ends, mut is_cut) = (BTreeMap::new(), false);
    for state in [JobState::Done, JobState::Dead, JobState::Cancelled] {
        let mut filter = filter.clone();
        (filter.state, filter.limit) = (Some(state), PAGE_SIZE);
        filter.since = Some(FilterTime::At(time_of(since)));
        for _ in 0..ENDS_MAX / PAGE_SIZE {
            let page = duly.jobs().list(filter.clone()).await?;
            let found = page.jobs.iter().filter_map(JobEnd::new);
            ends.extend(found.map(|end| (end.key, Arc::new(end))));
            filter.cursor = page.next_cursor;
            if filter.cursor.is_none() {
                break;
            }
        }
        is_cut |= filter.cursor.is_some();
    }
    Ok((ends, is_cut))
}

fn time_of(micros: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// Sends the ends of jobs from about this time on, until the last listener is gone.
async fn poll_ends(events: Arc<JobEvents>, duly: Duly, mut newest: i64) {
    let mut sent = BTreeSet::new();
    loop {
        match ended_since(&duly, newest - OVERLAP_US, &Filter::default()).await {
            Ok((ends, is_cut)) => {
                if is_cut {
                    let _ = events.sender.send(EndItem::Missed);
                }
                for (key, end) in ends {
                    if sent.insert(key) {
                        newest = newest.max(key.0);
                        // An error means that there is no listener.
                        let _ = events.sender.send(EndItem::End(end));
                    }
                }
                sent = sent.split_off(&EndKey(newest - OVERLAP_US, JobId::from_bytes([0; 16])));
            }
            Err(error) => tracing::warn!(%error, "no events of jobs: the store does not respond"),
        }
        tokio::time::sleep(POLL_INTERVAL).await;
        let mut is_polling = events.is_polling.lock_unpoisoned();
        if events.sender.receiver_count() == 0 {
            *is_polling = false;
            return;
        }
    }
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct JobEventParams {
    /// Only jobs of this queue.
    queue: Option<String>,
    /// Only jobs of this kind.
    kind: Option<String>,
    /// Only this job.
    id: Option<String>,
}

/// Selects the ends that a listener receives.
struct EndFilter {
    queue: Option<String>,
    kind: Option<String>,
    id: Option<JobId>,
}

impl EndFilter {
    fn matches(&self, end: &JobEnd) -> bool {
        self.queue.as_ref().is_none_or(|queue| *queue == end.queue)
            && self.kind.as_ref().is_none_or(|kind| *kind == end.kind)
            && self.id.is_none_or(|id| id == end.key.1)
    }
}

/// A subscriber of the stream.
struct EndListener {
    receiver: broadcast::Receiver<EndItem>,
    filter: EndFilter,
    /// Ends from before the stream was resumed.
    backlog: VecDeque<EndItem>,
    /// The ends in the backlog: the channel may have them, too.
    resumed: BTreeSet<EndKey>,
}

impl EndListener {
    /// Lists the jobs that have ended after this event.
    async fn resume(&mut self, duly: &Duly, after: EndKey) -> duly::Result<()> {
        let mut filter = Filter::default();
        (filter.queue, filter.kind) = (self.filter.queue.clone(), self.filter.kind.clone());
        let (ends, is_cut) = ended_since(duly, after.0, &filter).await?;
        if is_cut {
            self.backlog.push_back(EndItem::Missed);
        }
        let missed = ends.into_values().filter(|end| end.key > after && self.filter.matches(end));
        for end in missed.collect::<Vec<_>>() {
            self.resumed.insert(end.key);
            self.backlog.push_back(EndItem::End(end));
        }
        Ok(())
    }

    async fn next(&mut self) -> Option<EndItem> {
        if let Some(item) = self.backlog.pop_front() {
            return Some(item);
        }
        loop {
            match self.receiver.recv().await {
                Ok(EndItem::End(end)) if !self.filter.matches(&end) || self.resumed.remove(&end.key) => {}
                Ok(item) => return Some(item),
                Err(broadcast::error::RecvError::Lagged(_)) => return Some(EndItem::Missed),
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }
}

/// Stream the ends of jobs
///
/// Server-sent events `done`, `dead` and `cancelled`, each with the job as JSON, within about a second. A done job that
/// is not kept, and a job that is removed, have no event. With `Last-Event-ID`, the stream starts with the jobs that have
/// ended since that event, on any server of the store, as long as they are kept; without it, with those of the last two
/// seconds. `missed` means that some events were
/// left out: more than 5,000 jobs of a state ended at once, or the client is too slow; list the jobs instead. The stream
/// ends after an hour: reconnect.
#[utoipa::path(get, path = "/events/jobs", tag = "events", operation_id = "streamJobEvents",
    params(JobEventParams, ("Last-Event-ID" = Option<String>, Header, description = "continue after this event")),
    responses((status = 200, description = "the stream", content_type = "text/event-stream", body = JobEventView), Problems))]
async fn job_events(
    State(app): AppState,
    identity: Identity,
    credential: Credential,
    headers: HeaderMap,
    QueryParams(params): QueryParams<JobEventParams>,
) -> Result<Response> {
    let after = headers.get("last-event-id").map(|id| id.to_str().ok().and_then(|id| id.parse::<EndKey>().ok()));
    if after == Some(None) {
        return Err(Problem::invalid("Last-Event-ID", "must be the id of an event of this stream"));
    }
    let id = params.id.map(|id| id.parse().map_err(|_| Problem::invalid("id", "must be the id of a job")));
    let filter = EndFilter { queue: params.queue, kind: params.kind, id: id.transpose()? };
    let slot = StreamSlot::acquire(&app, &identity, credential)?;
    let receiver = app.job_events.subscribe(&app.duly);
    let mut listener = EndListener { receiver, filter, backlog: VecDeque::new(), resumed: BTreeSet::new() };
    if let Some(after) = after.flatten() {
        listener.resume(&app.duly, after).await?;
    }
    Ok(slot.respond(stream::unfold(listener, |mut listener| async move {
        let item = listener.next().await?;
        Some((item.event(), listener))
    })))
}
