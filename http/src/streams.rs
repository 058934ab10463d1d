//! Streams of server-sent events: limits their number and their length, and ends them with the credential.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt, stream};
use tokio::time::{Sleep, sleep};

use super::credential::Credential;
use super::identity::Identity;
use super::problem::Result;
use super::server::App;
use super::waits::{WaitKind, WaitSlot};

/// The interval of keep-alive comments, which stop proxies from closing the connection, and of credential checks on an
/// idle stream.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// The longest duration of a stream; browsers reconnect on their own.
pub(super) const STREAM_MAX: Duration = Duration::from_secs(3_600);

/// A stream that counts as one until it is dropped.
pub(crate) struct StreamSlot {
    app: Arc<App>,
    credential: Credential,
    _wait: WaitSlot,
}

impl StreamSlot {
    /// Takes a slot for one more stream of this client; a 429 if it has too many.
    pub(crate) fn acquire(app: &Arc<App>, identity: &Identity, credential: Credential) -> Result<Self> {
        let wait = WaitSlot::acquire(app, identity, &credential, WaitKind::Watch)?;
        Ok(StreamSlot { app: app.clone(), credential, _wait: wait })
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
