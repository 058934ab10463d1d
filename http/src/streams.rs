//! Streams of server-sent events: limits their number per client and their length, and ends them with the credential.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::http::StatusCode;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt, stream};
use tokio::time::{Sleep, sleep};

use super::credential::Credential;
use super::identity::Identity;
use super::problem::{Problem, Result};
use super::server::App;

use crate::sync::LockExt;

/// The interval of keep-alive comments, which stop proxies from closing the connection, and of credential checks on an
/// idle stream.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// The longest duration of a stream; browsers reconnect on their own.
pub(super) const STREAM_MAX: Duration = Duration::from_secs(3_600);
/// One client may use one part in eight of the server's connections for streams, but always four.
const CONNECTION_SHARE: usize = 8;
const STREAMS_MIN: usize = 4;

/// The number of open streams by client name, without the clients that have none.
#[derive(Default)]
pub(crate) struct Streams(Mutex<HashMap<String, usize>>);

impl Streams {
    fn counts(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.0.lock_unpoisoned()
    }
}

/// The right to one stream. It counts until it is dropped.
pub(crate) struct StreamSlot {
    app: Arc<App>,
    name: String,
    credential: Credential,
}

impl StreamSlot {
    /// Takes a slot for one more stream of this client; a 429 if it has too many.
    pub(crate) fn acquire(app: &Arc<App>, identity: &Identity, credential: Credential) -> Result<Self> {
        let max = (app.options.connections / CONNECTION_SHARE).max(STREAMS_MIN);
        let mut counts = app.streams.counts();
        let open = counts.get(&identity.name).copied().unwrap_or(0);
        // Without authentication all clients have the same name: the service around must limit them.
        if open >= max && !app.options.open {
            let name = &identity.name;
            let detail = format!("{name} has {max} streams open: close one, or listen with a token of its own");
            return Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, "too_many", detail).retry_after(1));
        }
        counts.insert(identity.name.clone(), open + 1);
        Ok(StreamSlot { app: app.clone(), name: identity.name.clone(), credential })
    }

    /// Returns a response with these events. It ends with them, after [`STREAM_MAX`], or when the credential is no longer
    /// valid, which is checked before each event and every [`KEEP_ALIVE`].
    pub(crate) fn respond(self, events: impl Stream<Item = Event> + Send + 'static) -> Response {
        let state = EventStream { slot: self, events: Box::pin(events), timeout: Box::pin(sleep(STREAM_MAX)) };
        let checked = stream::unfold(state, |mut state| async move {
            let event = state.next().await?;
            Some((Ok::<_, Infallible>(event), state))
        });
        Sse::new(checked).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response()
    }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        let mut counts = self.app.streams.counts();
        match counts.get_mut(&self.name) {
            Some(open) if *open > 1 => *open -= 1,
            _ => {
                counts.remove(&self.name);
            }
        }
    }
}

/// An open stream.
struct EventStream<S> {
    slot: StreamSlot,
    events: Pin<Box<S>>,
    timeout: Pin<Box<Sleep>>,
}

impl<S: Stream<Item = Event>> EventStream<S> {
    async fn next(&mut self) -> Option<Event> {
        loop {
            let event = tokio::select! {
                event = self.events.next() => Some(event?),
                () = &mut self.timeout => return None,
                () = sleep(KEEP_ALIVE) => None,
            };
            if !self.slot.credential.is_valid(&self.slot.app).await {
                return None;
            }
            if event.is_some() {
                return event;
            }
        }
    }
}
