//! Streams of events: how many somebody has, how long they last, and that they end with the right to them.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt, stream};
use tokio::time::{Sleep, sleep};

use super::problem::Problem;
use super::proof::Proof;
use super::server::App;
use super::who::Who;

/// How often a line is sent although nothing happens, so that nobody in between cuts it off;
/// and how often it is looked whether who listens still may.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// The longest that a stream lasts: whoever still wants to know asks again, as browsers do by themselves.
pub(super) const STREAM_MAX: Duration = Duration::from_secs(3_600);
/// One name has at most this part of the server's connections for streams, but so many in any case.
const SHARE: usize = 8;
const SHARE_MIN: usize = 4;

/// How many streams are open, by name. Names that have none are not in it.
#[derive(Default)]
pub(crate) struct Streams(Mutex<HashMap<String, usize>>);

impl Streams {
    fn open(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream that may be opened: it counts until this is dropped.
pub(crate) struct Place {
    app: Arc<App>,
    name: String,
    proof: Proof,
}

impl Place {
    /// A place for one more stream of this name; refused if it has enough.
    pub(crate) fn take(app: &Arc<App>, who: &Who, proof: Proof) -> Result<Self, Problem> {
        let max = (app.options.connections / SHARE).max(SHARE_MIN);
        let mut open = app.streams.open();
        let has = open.get(&who.name).copied().unwrap_or(0);
        // Where everybody is let in, all have the same name: what they share is the business of the service around.
        if has >= max && !app.options.open {
            let detail = format!("{} has {max} streams open: close one, or listen with a token of its own", who.name);
            return Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, "too_many", detail).retry_after(1));
        }
        open.insert(who.name.clone(), has + 1);
        Ok(Place { app: app.clone(), name: who.name.clone(), proof })
    }

    /// Answers with these events, until they or the longest time are over, or who listens is not let in any more:
    /// looked at before each event, and now and then while nothing happens.
    pub(crate) fn answer(self, events: impl Stream<Item = Event> + Send + 'static) -> Response {
        let start = Open { place: self, events: Box::pin(events), over: Box::pin(sleep(STREAM_MAX)) };
        let told = stream::unfold(start, |mut open| async move {
            let event = open.next().await?;
            Some((Ok::<_, Infallible>(event), open))
        });
        Sse::new(told).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.app.streams.open();
        match open.get_mut(&self.name) {
            Some(has) if *has > 1 => *has -= 1,
            _ => {
                open.remove(&self.name);
            }
        }
    }
}

/// A stream under way.
struct Open<S> {
    place: Place,
    events: Pin<Box<S>>,
    over: Pin<Box<Sleep>>,
}

impl<S: Stream<Item = Event>> Open<S> {
    async fn next(&mut self) -> Option<Event> {
        loop {
            let event = tokio::select! {
                event = self.events.next() => Some(event?),
                () = &mut self.over => return None,
                () = sleep(KEEP_ALIVE) => None,
            };
            if !self.place.proof.holds(&self.place.app).await {
                return None;
            }
            if event.is_some() {
                return event;
            }
        }
    }
}
