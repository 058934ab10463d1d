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
use duly::admin::QueueCounts;
use duly::job::FilterTime;
use duly::{Duly, Filter, JobId, JobRecord, State as JobState};

/// The interval between two looks at the store.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Each look goes back this far behind the last end that was seen: ends may become visible out of order.
const OVERLAP_US: i64 = 2_000_000;
/// The most new ends of one state that one look reads, or that a resumed stream sends.
const ENDS_MAX: usize = 5_000;
const PAGE_SIZE: usize = 200;
/// The most looks with ends that wait for a slow listener.
const QUEUED_LOOKS_MAX: usize = 8;
/// The most looks in a row that leave out cancelled jobs because the number of them is the same.
const SKIPPED_LOOKS_MAX: usize = 10;

/// The states of jobs that have ended.
const END_STATES: [JobState; 3] = [JobState::Done, JobState::Dead, JobState::Cancelled];

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

/// The ends that one look has found, in their order.
type EndBatch = Arc<[EndItem]>;

/// The channel to the listeners of job events.
pub(crate) struct JobEvents {
    is_polling: Mutex<bool>,
    sender: broadcast::Sender<EndBatch>,
}

impl Default for JobEvents {
    fn default() -> Self {
        JobEvents { is_polling: Mutex::default(), sender: broadcast::channel(QUEUED_LOOKS_MAX).0 }
    }
}

impl JobEvents {
    /// Subscribes a listener, and starts to look for ends unless that runs already.
    fn subscribe(self: &Arc<Self>, duly: &Duly) -> broadcast::Receiver<EndBatch> {
        let mut is_polling = self.is_polling.lock_unpoisoned();
        let receiver = self.sender.subscribe();
        if !std::mem::replace(&mut is_polling, true) {
            tokio::spawn(poll_ends(self.clone(), duly.clone(), unix_micros(duly.now())));
        }
        receiver
    }

    fn send(&self, items: Vec<EndItem>) {
        if !items.is_empty() {
            // An error means that there is no listener.
            let _ = self.sender.send(items.into());
        }
    }
}

type Ends = BTreeMap<EndKey, Arc<JobEnd>>;

/// Returns about `max` matching jobs that have ended, and whether there are more.
async fn list_ends(duly: &Duly, mut filter: Filter, max: usize) -> duly::Result<(Ends, bool)> {
    let mut ends = Ends::new();
    filter.limit = PAGE_SIZE;
    for _ in 0..max.div_ceil(PAGE_SIZE) {
        let page = duly.jobs().list(filter.clone()).await?;
        let found = page.jobs.iter().filter_map(JobEnd::new);
        ends.extend(found.map(|end| (end.key, Arc::new(end))));
        filter.cursor = page.next_cursor;
        if filter.cursor.is_none() {
            break;
        }
    }
    Ok((ends, filter.cursor.is_some()))
}

fn time_of(micros: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// The search for new ends in one state.
struct EndScan {
    state: JobState,
    /// The last end that was found, or the time at which the search began.
    newest: i64,
    /// The ends that were sent and that the next look finds again.
    sent: BTreeSet<EndKey>,
    /// The number of jobs in each queue at the last look that read them.
    counts: Vec<(String, u64)>,
    skipped: usize,
    /// Some ends were not sent, and the listeners do not know it yet.
    is_missed: bool,
}

impl EndScan {
    fn new(state: JobState, newest: i64) -> Self {
        EndScan { state, newest, sent: BTreeSet::new(), counts: Vec::new(), skipped: 0, is_missed: false }
    }

    /// Starts again at the current time if the clock of the store was set back.
    fn restart_if_set_back(&mut self, now: i64) {
        if now < self.newest - OVERLAP_US {
            (self.newest, self.skipped, self.is_missed) = (now, SKIPPED_LOOKS_MAX, true);
            self.sent.clear();
        }
    }

    /// Returns whether there may be new ends. A store need not have an order for the ends of cancelled jobs, so that a
    /// look reads all of them.
    fn may_have_new(&mut self, counts: &[(String, u64)]) -> bool {
        if self.state != JobState::Cancelled {
            return true;
        }
        let is_same = self.counts == counts;
        let is_skipped = is_same && (counts.is_empty() || self.skipped < SKIPPED_LOOKS_MAX);
        self.skipped = if is_skipped { self.skipped + 1 } else { 0 };
        !is_skipped
    }

    /// Returns the new ends.
    async fn look(&mut self, duly: &Duly, queues: &[QueueCounts]) -> duly::Result<Ends> {
        let counts = queues.iter().map(|queue| (queue.queue.clone(), queue.count_in(self.state)));
        let counts: Vec<(String, u64)> = counts.filter(|(_, count)| *count > 0).collect();
        let now = unix_micros(duly.now());
        self.restart_if_set_back(now);
        if !self.may_have_new(&counts) {
            return Ok(Ends::new());
        }
        let mut filter = Filter::all().state(self.state);
        filter.since = Some(FilterTime::At(time_of(self.newest - OVERLAP_US)));
        // Later ends are from before the clock was set back.
        filter.until = Some(FilterTime::At(time_of(now + OVERLAP_US)));
        let (mut ends, is_cut) = list_ends(duly, filter, ENDS_MAX + self.sent.len()).await?;
        ends.retain(|key, _| self.sent.insert(*key));
        self.newest = ends.last_key_value().map_or(self.newest, |(key, _)| self.newest.max(key.0));
        self.sent = self.sent.split_off(&EndKey(self.newest - OVERLAP_US, JobId::from_bytes([0; 16])));
        (self.counts, self.is_missed) = (counts, self.is_missed || is_cut);
        Ok(ends)
    }
}

/// Looks for new ends in all states.
async fn look_for_ends(duly: &Duly, scans: &mut [EndScan]) -> duly::Result<Vec<EndItem>> {
    let queues = duly.queues().counts().await?;
    let (mut all, mut is_missed) = (Ends::new(), false);
    for scan in scans {
        match scan.look(duly, &queues).await {
            Ok(ends) => all.extend(ends),
            Err(error) => tracing::warn!(%error, state = %scan.state, "no events of jobs: the store does not respond"),
        }
        is_missed |= std::mem::take(&mut scan.is_missed);
    }
    let missed = is_missed.then_some(EndItem::Missed);
    Ok(missed.into_iter().chain(all.into_values().map(EndItem::End)).collect())
}

/// Sends the ends of jobs from about this time on, until the last listener is gone.
async fn poll_ends(events: Arc<JobEvents>, duly: Duly, start: i64) {
    let mut scans = END_STATES.map(|state| EndScan::new(state, start));
    loop {
        match look_for_ends(&duly, &mut scans).await {
            Ok(items) => events.send(items),
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
    receiver: broadcast::Receiver<EndBatch>,
    filter: EndFilter,
    /// Ends from before the stream was resumed, then those of one look.
    backlog: VecDeque<EndItem>,
    /// The ends from before the stream was resumed: the channel may have them, too.
    resumed: BTreeSet<EndKey>,
}

impl EndListener {
    /// Lists the jobs that have ended after this event.
    async fn resume(&mut self, duly: &Duly, after: EndKey) -> duly::Result<()> {
        let (mut ends, mut is_cut) = (Ends::new(), false);
        if let Some(id) = self.filter.id {
            let found = duly.jobs().get(id).await?.filter(|record| record.state.is_final());
            ends.extend(found.as_ref().and_then(JobEnd::new).map(|end| (end.key, Arc::new(end))));
        } else {
            let mut filter = Filter::all();
            (filter.queue, filter.kind) = (self.filter.queue.clone(), self.filter.kind.clone());
            filter.since = Some(FilterTime::At(time_of(after.0)));
            for state in END_STATES {
                let (found, is_part) = list_ends(duly, filter.clone().state(state), ENDS_MAX).await?;
                ends.extend(found);
                is_cut |= is_part;
            }
        }
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
        loop {
            if let Some(item) = self.backlog.pop_front() {
                return Some(item);
            }
            match self.receiver.recv().await {
                Ok(batch) => batch.iter().for_each(|item| self.add(item)),
                Err(broadcast::error::RecvError::Lagged(_)) => return Some(EndItem::Missed),
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }

    /// Adds an item of a look to the backlog, unless it is filtered out or was sent when the stream was resumed.
    fn add(&mut self, item: &EndItem) {
        let is_wanted = match item {
            EndItem::End(end) => self.filter.matches(end) && !self.resumed.remove(&end.key),
            EndItem::Missed => true,
        };
        if is_wanted {
            self.backlog.push_back(item.clone());
        }
    }
}

/// Stream the ends of jobs
///
/// Server-sent events `done`, `dead` and `cancelled`, each with the job as JSON, within about a second. A done job that
/// is not kept, and a job that is removed, have no event. With `Last-Event-ID`, the stream starts with the jobs that have
/// ended since that event, on any server of the store, as long as they are kept; without it, with the jobs that end from
/// now on, and possibly some of the last two seconds. `missed` means that some events were left out: more than 5,000 jobs
/// of a state ended within a second or since that event, the client reads so slowly that eight looks with events wait
/// for it, or the clock of the store was set back; list the jobs instead. The stream ends after an hour: reconnect.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn end(at: i64, id: u8) -> (EndKey, Arc<JobEnd>) {
        let key = EndKey(at, JobId::from_bytes([id; 16]));
        let (kind, queue, data) = ("work".to_owned(), "mail".to_owned(), String::new());
        (key, Arc::new(JobEnd { key, kind, queue, state: JobState::Done, data }))
    }

    #[tokio::test]
    async fn listener_receives_all_ends_of_a_large_look() {
        let events = JobEvents::default();
        let filter = EndFilter { queue: None, kind: None, id: None };
        let (backlog, resumed) = (VecDeque::new(), BTreeSet::new());
        let mut listener = EndListener { receiver: events.sender.subscribe(), filter, backlog, resumed };
        let count = 3 * ENDS_MAX as i64;
        events.send((0..count).map(|at| EndItem::End(end(at, 1).1)).collect());
        for at in 0..count {
            let item = listener.next().await.expect("an item");
            assert!(matches!(item, EndItem::End(end) if end.key.0 == at), "{at}");
        }
        for at in 0..=QUEUED_LOOKS_MAX as i64 {
            events.send(vec![EndItem::End(end(at, 2).1)]);
        }
        assert!(matches!(listener.next().await, Some(EndItem::Missed)), "the listener is too slow");
    }

    #[test]
    fn search_restarts_when_the_clock_is_set_back() {
        let mut scan = EndScan::new(JobState::Done, 100_000_000);
        scan.sent.insert(end(100_000_000, 1).0);
        scan.restart_if_set_back(100_000_000 - OVERLAP_US);
        assert_eq!((scan.newest, scan.sent.len(), scan.is_missed), (100_000_000, 1, false), "within the overlap");
        scan.restart_if_set_back(40_000_000);
        assert_eq!((scan.newest, scan.sent.len(), scan.is_missed), (40_000_000, 0, true));
    }

    #[test]
    fn cancelled_jobs_are_read_only_after_a_change_and_now_and_then() {
        let counts = [("mail".to_owned(), 7)];
        let mut scan = EndScan::new(JobState::Cancelled, 0);
        assert!(!scan.may_have_new(&[]), "there are none");
        assert!(scan.may_have_new(&counts));
        scan.counts = counts.to_vec();
        for _ in 0..SKIPPED_LOOKS_MAX {
            assert!(!scan.may_have_new(&counts));
        }
        assert!(scan.may_have_new(&counts), "one may have come while another one has gone");
        assert!(!scan.may_have_new(&counts) && scan.may_have_new(&[("mail".to_owned(), 8)]));
        assert!(EndScan::new(JobState::Done, 0).may_have_new(&[]));
    }
}
