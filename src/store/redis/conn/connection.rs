//! One connection to one server: opened on first use, dropped on failure, and reconnected by the next request.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Arg, AsyncConnectionConfig, Cmd, PushInfo, PushKind, RedisError, Value};
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::clock;
use crate::store::redis::conn::abandoned;
use crate::store::redis::conn::abandoned::ClientId;
use crate::store::redis::conn::connector::{CONNECT_TIMEOUT, Connector, REPLY_TIMEOUT};
use crate::store::redis::conn::inline_driver::ConnectionDriver;
use crate::store::redis::conn::pending_replies::PendingReplies;
use crate::store::redis::url::ServerAddress;
use crate::sync::LockExt;

/// First backoff after a failed connect; doubles up to the maximum.
const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_millis(500);

/// Minimum span between the first and the last unanswered request before the connection counts as dead.
const UNANSWERED_SPAN_MIN: Duration = Duration::from_secs(1);

/// Idle time after which pending requests no longer count towards the liveness check.
const LIVENESS_IDLE_MAX: Duration = Duration::from_secs(10);

/// Numbers the connections of this process across all servers, so that no two have the same generation.
static LAST_GENERATION: AtomicU64 = AtomicU64::new(0);

/// Receives the messages that the server pushes without a request.
pub(crate) type ServerPushHandler = Arc<dyn Fn(PushInfo) + Send + Sync>;

pub(crate) struct ServerConnection {
    address: ServerAddress,
    connector: Arc<Connector>,
    /// The name of the connection in the server's `CLIENT LIST`, if any.
    name: Option<String>,
    /// The runtime that drives the connection; `None` means the runtime of the first request.
    runtime: Option<Handle>,
    push_handler: Option<ServerPushHandler>,
    state: Mutex<ConnectionState>,
    connect_lock: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct ConnectionState {
    driven: Option<DrivenConnection>,
    /// The requests in flight.
    pending_replies: Arc<PendingReplies>,
    /// Identifies this connection among its successors and the connections to other servers.
    generation: u64,
    /// The server's id of this connection, if it reports one.
    client_id: Option<ClientId>,
    /// The last abandoned connection, which may still deliver requests to the server.
    abandoned: Option<ClientId>,
    /// When a reply last arrived, on a connection with subscriptions.
    last_received: Option<Instant>,
    /// When the first and the last unanswered requests were sent, on this connection or its predecessors.
    unanswered_span: Option<(Instant, Instant)>,
    /// The server is no longer used.
    is_retired: bool,
    connect_failures: u32,
    /// Number of connect attempts, and the error of the last one if it failed.
    connect_attempts: u64,
    last_error: Option<RedisError>,
    next_attempt_at: Option<Instant>,
}

impl ConnectionState {
    /// Stops using the connection.
    fn abandon(&mut self) {
        self.driven = None;
        self.abandoned = self.client_id.take().or(self.abandoned);
    }
}

/// A connection and its inline driver; without one the client crate's own task drives it.
#[derive(Clone)]
struct DrivenConnection {
    connection: MultiplexedConnection,
    driver: Option<Arc<ConnectionDriver>>,
}

impl DrivenConnection {
    /// Runs a request on the connection.
    async fn run<T>(&mut self, request: impl AsyncFnOnce(&mut MultiplexedConnection) -> T) -> T {
        let request = request(&mut self.connection);
        match &self.driver {
            Some(driver) => driver.drive_request(request).await,
            None => request.await,
        }
    }
}

/// A connection that is ready for use.
struct OpenConnection {
    driven: DrivenConnection,
    generation: u64,
    pending_replies: Arc<PendingReplies>,
}

/// Why no reply arrived.
pub(crate) enum ReplyLost {
    /// The server is unreachable; nothing was sent.
    NotSent(RedisError),
    /// The server returned an error, or nothing after the request was sent.
    AfterSend(RedisError),
}

impl ReplyLost {
    pub(crate) fn into_error(self) -> RedisError {
        match self {
            ReplyLost::NotSent(error) | ReplyLost::AfterSend(error) => error,
        }
    }
}

impl ServerConnection {
    pub(crate) fn new(
        address: ServerAddress,
        connector: Arc<Connector>,
        runtime: Option<Handle>,
        push_handler: Option<ServerPushHandler>,
    ) -> Self {
        ServerConnection {
            address,
            connector,
            name: None,
            runtime,
            push_handler,
            state: Mutex::default(),
            connect_lock: tokio::sync::Mutex::default(),
        }
    }

    /// Sets the name of the connection in `CLIENT LIST`.
    pub(crate) fn with_name(self, name: String) -> Self {
        ServerConnection { name: Some(name), ..self }
    }

    pub(crate) fn address(&self) -> &ServerAddress {
        &self.address
    }

    /// Sends one command and waits for its reply.
    pub(crate) async fn send(self: &Arc<Self>, cmd: &Cmd) -> Result<Value, ReplyLost> {
        self.note_request();
        self.send_untracked(cmd).await
    }

    /// Like [`ServerConnection::send`] if several servers are asked: a cancelled wait is no evidence against this one.
    pub(crate) async fn send_untracked(self: &Arc<Self>, cmd: &Cmd) -> Result<Value, ReplyLost> {
        let OpenConnection { driven: mut connection, generation, pending_replies } =
            self.get_or_connect().await.map_err(ReplyLost::NotSent)?;
        let is_unsubscribe = is_unsubscribe(cmd);
        if is_unsubscribe {
            pending_replies.expect_unsubscribe();
        }
        let request = connection.run(async |to| to.send_packed_command(cmd).await);
        let reply = pending_replies.wait_for_reply(self.runtime.as_ref(), command_bytes(cmd), request).await;
        let reply = reply.and_then(Value::extract_error);
        if is_unsubscribe && reply.is_err() {
            pending_replies.cancel_expected_unsubscribe();
        }
        self.check_reply(reply, generation)
    }

    /// Sends commands that no other command may interleave, and returns the reply to each.
    pub(crate) async fn send_pipeline(self: &Arc<Self>, pipe: &redis::Pipeline) -> Result<Vec<Value>, ReplyLost> {
        self.note_request();
        let OpenConnection { driven: mut connection, generation, pending_replies } =
            self.get_or_connect().await.map_err(ReplyLost::NotSent)?;
        let request = connection.run(async |to| to.send_packed_commands(pipe, 0, pipe.len()).await);
        let bytes = pipe.cmd_iter().map(command_bytes).sum();
        let reply = pending_replies.wait_for_reply(self.runtime.as_ref(), bytes, request).await;
        self.check_reply(reply, generation)
    }

    fn check_reply<T>(&self, reply: Result<T, RedisError>, generation: u64) -> Result<T, ReplyLost> {
        {
            let mut state = self.state();
            state.unanswered_span = None;
            if self.push_handler.is_some() && reply.is_ok() {
                state.last_received = Some(clock::monotonic_now());
            }
        }
        reply.map_err(|error| {
            // A connection that timed out may be half dead: the next request opens a new one.
            if error.is_io_error() || error.is_timeout() || error.is_unrecoverable_error() {
                self.abandon_generation(generation);
            }
            ReplyLost::AfterSend(error)
        })
    }

    /// Returns the generation of the open connection, or 0 if there is none or the server has closed it.
    pub(crate) fn generation(&self) -> u64 {
        let state = self.state();
        if state.driven.is_some() && !state.pending_replies.is_closed() { state.generation } else { 0 }
    }

    /// Records a request before it is sent, so that it counts even if the caller cancels it.
    ///
    /// A heartbeat gives up before the reply timeout. If a proxy accepts data for a dead server, such a caller would
    /// keep using the dead connection for ever. After unanswered requests over a long enough span, the next one
    /// reconnects.
    fn note_request(&self) {
        let now = clock::monotonic_now();
        let mut state = self.state();
        let is_dead = |(first, last): &mut (Instant, Instant)| {
            now - *first >= REPLY_TIMEOUT && *last - *first >= UNANSWERED_SPAN_MIN
        };
        if state.unanswered_span.take_if(is_dead).is_some() {
            state.abandon();
        }
        state.unanswered_span.get_or_insert((now, now)).1 = now;
    }

    /// Returns whether a recent request has been unanswered for this long.
    pub(crate) fn is_unresponsive(&self, duration: Duration) -> bool {
        let now = clock::monotonic_now();
        self.state()
            .unanswered_span
            .is_some_and(|(first, last)| now - first >= duration && now - last < LIVENESS_IDLE_MAX)
    }

    /// Returns whether the last connect failed.
    pub(crate) fn has_connect_failures(&self) -> bool {
        self.state().connect_failures > 0
    }

    /// Returns the time since anything arrived on a connection with subscriptions, or `None` if it is closed.
    pub(crate) fn time_since_received(&self) -> Option<Duration> {
        let state = self.state();
        state.last_received.filter(|_| state.driven.is_some()).map(|received| clock::monotonic_now() - received)
    }

    /// Drops the connection; the next request opens a new one.
    pub(crate) fn reset(&self) {
        self.state().abandon();
    }

    /// Drops the connection if it is still this generation.
    pub(crate) fn abandon_generation(&self, generation: u64) {
        let mut state = self.state();
        if state.generation == generation {
            state.abandon();
        }
    }

    /// Opens no more connections; requests in flight complete. Returns the abandoned connection that its successor must
    /// have the server close.
    pub(crate) fn retire(&self) -> Option<ClientId> {
        let mut state = self.state();
        state.is_retired = true;
        state.driven = None;
        state.abandoned
    }

    /// Has the server close this connection, which a retired predecessor has abandoned, before the first request.
    pub(crate) fn with_abandoned(self, abandoned: Option<ClientId>) -> Self {
        self.state().abandoned = abandoned;
        self
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.state().is_retired
    }

    fn state(&self) -> MutexGuard<'_, ConnectionState> {
        self.state.lock_unpoisoned()
    }

    fn open_connection(&self) -> Option<OpenConnection> {
        let state = self.state();
        let ConnectionState { generation, pending_replies, .. } = &*state;
        let open = |connection| OpenConnection {
            driven: connection,
            generation: *generation,
            pending_replies: pending_replies.clone(),
        };
        state.driven.clone().map(open)
    }

    /// Fails if the server has closed the connection: a request sent on it would be lost without a trace. The server
    /// may also have lost its role, so the caller sees this error once before the next request reconnects.
    fn check_not_closed(&self) -> Result<(), RedisError> {
        let mut state = self.state();
        if state.driven.is_some() && state.pending_replies.is_closed() {
            state.abandon();
            return Err(std::io::Error::from(std::io::ErrorKind::BrokenPipe).into());
        }
        Ok(())
    }

    async fn get_or_connect(self: &Arc<Self>) -> Result<OpenConnection, RedisError> {
        self.check_not_closed()?;
        if let Some(open) = self.open_connection() {
            return Ok(open);
        }
        let before = self.state().connect_attempts;
        // A task connects, because the caller may not be polled for a long time while others wait for the connection.
        // On the store's runtime it also continues while a handler blocks this one.
        let connection = self.clone();
        let connecting = async move { connection.connect_unless_tried(before).await };
        let connecting = match &self.runtime {
            Some(runtime) => runtime.spawn(connecting),
            None => tokio::spawn(connecting),
        };
        connecting.await.unwrap_or_else(|join_error| Err(std::io::Error::other(join_error).into()))
    }

    /// Opens a connection, unless another caller has tried since `before` attempts.
    async fn connect_unless_tried(&self, before: u64) -> Result<OpenConnection, RedisError> {
        let _one_at_a_time = self.connect_lock.lock().await;
        if let Some(open) = self.open_connection() {
            return Ok(open);
        }
        // A caller that waited while another one failed to connect returns the same error.
        let failed_meanwhile = {
            let state = self.state();
            state.last_error.clone().filter(|_| state.connect_attempts != before)
        };
        if let Some(error) = failed_meanwhile {
            return Err(error);
        }
        if self.state().is_retired {
            return Err(retired_error());
        }
        let wait = self.state().next_attempt_at;
        if let Some(deadline) = wait {
            tokio::time::sleep_until(deadline).await;
        }
        let pending_replies = Arc::<PendingReplies>::default();
        let connected = self.connect_and_identify(&pending_replies).await;
        let mut state = self.state();
        state.connect_attempts += 1;
        match connected {
            // Retired during the connect: the server may no longer be the master.
            Ok(_) if state.is_retired => Err(retired_error()),
            Ok((connection, id)) => {
                (state.client_id, state.abandoned) = (id, None);
                state.generation = LAST_GENERATION.fetch_add(1, Ordering::Relaxed) + 1;
                state.connect_failures = 0;
                state.last_error = None;
                state.next_attempt_at = None;
                state.pending_replies = pending_replies.clone();
                state.driven = Some(connection.clone());
                Ok(OpenConnection { driven: connection, generation: state.generation, pending_replies })
            }
            Err(error) => {
                let ceiling = BACKOFF_MIN.saturating_mul(1 << state.connect_failures.min(8)).min(BACKOFF_MAX);
                state.connect_failures += 1;
                state.last_error = Some(error.clone());
                state.next_attempt_at = Some(clock::monotonic_now() + ceiling.mul_f64(0.5 + fastrand::f64() / 2.0));
                Err(error)
            }
        }
    }

    /// Opens a connection, sets its name, and returns its id. The abandoned predecessor is closed by then.
    async fn connect_and_identify(
        &self,
        pending_replies: &Arc<PendingReplies>,
    ) -> Result<(DrivenConnection, Option<ClientId>), RedisError> {
        let deadline = clock::monotonic_now() + CONNECT_TIMEOUT;
        let mut connection = self.open(pending_replies).await?;
        let Some(name) = &self.name else {
            return Ok((connection, None));
        };
        let abandoned_id = self.state().abandoned;
        let identifying =
            connection.run(async |to| abandoned::identify_and_close_abandoned(to, name, abandoned_id).await);
        let timed_out = |_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into());
        let id = tokio::time::timeout_at(deadline, identifying).await.unwrap_or_else(timed_out)?;
        Ok((connection, id))
    }

    async fn open(&self, pending_replies: &Arc<PendingReplies>) -> Result<DrivenConnection, RedisError> {
        let config = with_push_handler(self.connector.config(), self.push_handler.clone(), pending_replies.clone());
        // Without subscriptions data arrives only for a waiting request, so that request can drive the connection.
        let drives_inline = self.runtime.is_none() && self.push_handler.is_none();
        if drives_inline && let Some(connected) = self.connector.connect_inline(&self.address, &config).await {
            return connected
                .map(|(connection, driver)| DrivenConnection { connection, driver: Some(Arc::new(driver)) });
        }
        let connection = self.connector.connect(&self.address, &config).await?;
        Ok(DrivenConnection { connection, driver: None })
    }
}

fn retired_error() -> RedisError {
    std::io::Error::other("the server is no longer in use: another one has taken over").into()
}

/// Returns whether the command unsubscribes from a channel.
fn is_unsubscribe(cmd: &Cmd) -> bool {
    matches!(cmd.args_iter().next(), Some(redis::Arg::Simple(b"SUNSUBSCRIBE")))
}

/// Returns the approximate size of a command.
fn command_bytes(cmd: &Cmd) -> u64 {
    let of = |arg: Arg<&[u8]>| if let Arg::Simple(bytes) = arg { bytes.len() as u64 } else { 0 };
    cmd.args_iter().map(of).sum()
}

/// Adds the handler for pushed messages. The end of the connection is pushed too, so every connection has a handler.
fn with_push_handler(
    config: AsyncConnectionConfig,
    push_handler: Option<ServerPushHandler>,
    pending_replies: Arc<PendingReplies>,
) -> AsyncConnectionConfig {
    config.set_push_sender(move |info: PushInfo| -> Result<(), std::convert::Infallible> {
        match info.kind {
            PushKind::SUnsubscribe => pending_replies.note_unsubscribe(),
            PushKind::Disconnection => pending_replies.mark_closed(),
            _ => {}
        }
        if let Some(push_handler) = &push_handler {
            push_handler(info);
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::store::redis::url::RedisUrl;

    const HELLO: &str = "%1\r\n$5\r\nproto\r\n:3\r\n";

    /// A server that pushes `unasked` before each reply.
    async fn serve_with_unsolicited_push(mut client: TcpStream, unasked: &str) {
        let mut request = vec![0; 4096];
        while let Ok(read @ 1..) = client.read(&mut request).await {
            let request = String::from_utf8_lossy(&request[..read]);
            let reply = match &*request {
                hello if hello.contains("HELLO") => HELLO.to_owned(),
                unsubscribe if unsubscribe.contains("SUNSUBSCRIBE") => "-MOVED 1 127.0.0.1:1\r\n".to_owned(),
                _ => format!("{unasked}+yes\r\n"),
            };
            client.write_all(reply.as_bytes()).await.expect("is read");
        }
    }

    /// Requests with a timeout shorter than the reply timeout, as heartbeats have.
    #[tokio::test]
    async fn unresponsive_connection_is_replaced_despite_short_timeouts() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("is bound").port();
        tokio::spawn(async move {
            let (mut dead_client, _) = listener.accept().await.expect("connects");
            let mut request = vec![0; 4096];
            let _ = dead_client.read(&mut request).await;
            dead_client.write_all(HELLO.as_bytes()).await.expect("is read");
            let (live_client, _) = listener.accept().await.expect("connects again");
            serve_with_unsolicited_push(live_client, "").await;
        });
        let url = RedisUrl::parse(&format!("redis://127.0.0.1:{port}")).expect("a URL").expect("of a server");
        let connector =
            Arc::new(Connector::new(&url, &crate::store::StoreOptions::default()).expect("no certificates"));
        let connection = Arc::new(ServerConnection::new(url.hosts[0].clone(), connector, None, None));
        let ping = redis::cmd("PING");
        let short_request =
            async || tokio::time::timeout(Duration::from_millis(50), connection.send(&ping)).await.is_ok();
        assert!(!short_request().await && !short_request().await, "the server does not reply");
        let (first, last) = connection.state().unanswered_span.expect("requests were sent");
        connection.state().unanswered_span = Some((first - REPLY_TIMEOUT, last - REPLY_TIMEOUT + UNANSWERED_SPAN_MIN));
        assert!(tokio::time::timeout(REPLY_TIMEOUT, connection.send(&ping)).await.is_ok_and(|reply| reply.is_ok()));
    }

    #[tokio::test]
    async fn unsolicited_unsubscribe_is_not_taken_for_a_reply() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("is bound").port();
        tokio::spawn(async move {
            for unasked in [">3\r\n$12\r\nsunsubscribe\r\n$1\r\na\r\n:0\r\n", ""] {
                let (client, _) = listener.accept().await.expect("connects");
                tokio::spawn(serve_with_unsolicited_push(client, unasked));
            }
        });
        let url = RedisUrl::parse(&format!("redis://127.0.0.1:{port}")).expect("a URL").expect("of a server");
        let connector =
            Arc::new(Connector::new(&url, &crate::store::StoreOptions::default()).expect("no certificates"));
        let connection = Arc::new(ServerConnection::new(url.hosts[0].clone(), connector, None, Some(Arc::new(|_| ()))));
        let ping = redis::cmd("PING");
        // A rejected SUNSUBSCRIBE does not announce an unsubscribe push.
        assert!(matches!(connection.send(redis::cmd("SUNSUBSCRIBE").arg("a")).await, Err(ReplyLost::AfterSend(_))));
        assert!(matches!(connection.send(&ping).await, Err(ReplyLost::AfterSend(error)) if error.is_io_error()));
        assert!(matches!(connection.send(&ping).await, Ok(Value::SimpleString(yes)) if yes == "yes"));
    }
}
