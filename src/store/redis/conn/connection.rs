//! One connection to one server: made when it is needed, dropped when it fails, never given up.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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

/// The first wait after a server could not be reached; doubles up to the longest.
const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_millis(500);

/// Asked at least twice, so far apart, and never answered: the connection leads nowhere.
const UNANSWERED_SPAN_MIN: Duration = Duration::from_secs(1);

/// Who has asked nothing for so long does not want to know any more.
const LIVENESS_IDLE_MAX: Duration = Duration::from_secs(10);

/// Counts the connections of this process, to whatever server: no two are ever taken for the same.
static LAST_GENERATION: AtomicU64 = AtomicU64::new(0);

/// What receives messages that nobody asked for.
pub(crate) type ServerPushHandler = Arc<dyn Fn(PushInfo) + Send + Sync>;

pub(crate) struct ServerConnection {
    address: ServerAddress,
    connector: Arc<Connector>,
    /// What the connection is called in the server's list of them, if anything.
    name: Option<String>,
    /// Where the connection is driven, if not where it is first used.
    runtime: Option<Handle>,
    push_handler: Option<ServerPushHandler>,
    state: Mutex<ConnectionState>,
    connect_lock: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct ConnectionState {
    driven: Option<DrivenConnection>,
    /// What it has been asked.
    pending_replies: Arc<PendingReplies>,
    /// Which connection this is, so that one that failed is not mistaken for its successor, nor for one to another server.
    generation: u64,
    /// Which one it is to the server, where that says so.
    client_id: Option<ClientId>,
    /// The last that was given up, which may have something to say yet.
    abandoned: Option<ClientId>,
    /// When it was last heard of, if it listens.
    last_received: Option<Instant>,
    /// When the first and the last was asked of what is not answered, on whatever connection.
    unanswered_span: Option<(Instant, Instant)>,
    /// The server is not to be used any more.
    is_retired: bool,
    connect_failures: u32,
    /// How often a connection was tried, and why the last try failed.
    connect_attempts: u64,
    last_error: Option<RedisError>,
    next_attempt_at: Option<Instant>,
}

impl ConnectionState {
    /// The connection is not to be used any more.
    fn abandon(&mut self) {
        self.driven = None;
        self.abandoned = self.client_id.take().or(self.abandoned);
    }
}

/// A connection, and what drives it, where that is not left to the client.
#[derive(Clone)]
struct DrivenConnection {
    connection: MultiplexedConnection,
    driver: Option<Arc<ConnectionDriver>>,
}

impl DrivenConnection {
    /// Carries out a request over it.
    async fn run<T>(&mut self, request: impl AsyncFnOnce(&mut MultiplexedConnection) -> T) -> T {
        let asked = request(&mut self.connection);
        match &self.driver {
            Some(driven) => driven.drive_request(asked).await,
            None => asked.await,
        }
    }
}

/// A connection that can be used.
struct OpenConnection {
    driven: DrivenConnection,
    generation: u64,
    pending_replies: Arc<PendingReplies>,
}

/// Why there is no answer.
pub(crate) enum ReplyLost {
    /// The server could not be reached: nothing was sent.
    NotSent(RedisError),
    /// The server's word, or silence after the request was sent.
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
        home: Option<Handle>,
        listener: Option<ServerPushHandler>,
    ) -> Self {
        ServerConnection {
            address,
            connector,
            name: None,
            runtime: home,
            push_handler: listener,
            state: Mutex::default(),
            connect_lock: tokio::sync::Mutex::default(),
        }
    }

    /// Its connections are called this.
    pub(crate) fn with_name(self, name: String) -> Self {
        ServerConnection { name: Some(name), ..self }
    }

    pub(crate) fn address(&self) -> &ServerAddress {
        &self.address
    }

    /// Sends one command and waits for its answer.
    pub(crate) async fn send(self: &Arc<Self>, cmd: &Cmd) -> Result<Value, ReplyLost> {
        self.note_request();
        self.send_untracked(cmd).await
    }

    /// The same where others are asked too: that it was given up for one of those tells nothing of this server.
    pub(crate) async fn send_untracked(self: &Arc<Self>, cmd: &Cmd) -> Result<Value, ReplyLost> {
        let OpenConnection { driven: mut connection, generation, pending_replies: answers } =
            self.get_or_connect().await.map_err(ReplyLost::NotSent)?;
        let farewell = is_unsubscribe(cmd);
        if farewell {
            answers.expect_unsubscribe();
        }
        let request = connection.run(async |to| to.send_packed_command(cmd).await);
        let answer = answers.wait_for_reply(self.runtime.as_ref(), command_bytes(cmd), request).await;
        let answer = answer.and_then(Value::extract_error);
        if farewell && answer.is_err() {
            answers.cancel_expected_unsubscribe();
        }
        self.check_reply(answer, generation)
    }

    /// Sends commands that nothing may come between, and answers each.
    pub(crate) async fn send_pipeline(self: &Arc<Self>, pipe: &redis::Pipeline) -> Result<Vec<Value>, ReplyLost> {
        self.note_request();
        let OpenConnection { driven: mut connection, generation, pending_replies: answers } =
            self.get_or_connect().await.map_err(ReplyLost::NotSent)?;
        let request = connection.run(async |to| to.send_packed_commands(pipe, 0, pipe.len()).await);
        let bytes = pipe.cmd_iter().map(command_bytes).sum();
        let answer = answers.wait_for_reply(self.runtime.as_ref(), bytes, request).await;
        self.check_reply(answer, generation)
    }

    fn check_reply<T>(&self, answer: Result<T, RedisError>, generation: u64) -> Result<T, ReplyLost> {
        {
            let mut current = self.state();
            current.unanswered_span = None;
            if self.push_handler.is_some() && answer.is_ok() {
                current.last_received = Some(clock::monotonic_now());
            }
        }
        answer.map_err(|error| {
            // A connection that was silent for too long may be half dead: the next request gets a new one.
            if error.is_io_error() || error.is_timeout() || error.is_unrecoverable_error() {
                self.abandon_generation(generation);
            }
            ReplyLost::AfterSend(error)
        })
    }

    /// Which connection is in use; 0 if there is none.
    pub(crate) fn generation(&self) -> u64 {
        let current = self.state();
        if current.driven.is_some() { current.generation } else { 0 }
    }

    /// Before anything is sent, so that it is known also if whoever asks gives up.
    ///
    /// Whoever gives up each time before an answer counts as missing, as a beat does, would go on for ever with a server that is
    /// gone, where something between takes what is sent to it. So who has asked in vain for long gets a new connection.
    fn note_request(&self) {
        let now = clock::monotonic_now();
        let mut current = self.state();
        let in_vain = |(first, last): &mut (Instant, Instant)| {
            now - *first >= REPLY_TIMEOUT && *last - *first >= UNANSWERED_SPAN_MIN
        };
        if current.unanswered_span.take_if(in_vain).is_some() {
            current.abandon();
        }
        current.unanswered_span.get_or_insert((now, now)).1 = now;
    }

    /// Whether something was asked so long ago, and nothing was answered since; as long as somebody still wants to know.
    pub(crate) fn is_unresponsive(&self, for_long: Duration) -> bool {
        let now = clock::monotonic_now();
        self.state()
            .unanswered_span
            .is_some_and(|(first, last)| now - first >= for_long && now - last < LIVENESS_IDLE_MAX)
    }

    /// Whether the last connection could not be made.
    pub(crate) fn has_connect_failures(&self) -> bool {
        self.state().connect_failures > 0
    }

    /// How long nothing has been heard on a connection that listens; `None` if there is none.
    pub(crate) fn time_since_received(&self) -> Option<Duration> {
        let current = self.state();
        current.last_received.filter(|_| current.driven.is_some()).map(|heard| clock::monotonic_now() - heard)
    }

    /// The next request makes a new connection.
    pub(crate) fn reset(&self) {
        self.state().abandon();
    }

    /// Forgets the connection, if it is still this one.
    pub(crate) fn abandon_generation(&self, generation: u64) {
        let mut current = self.state();
        if current.generation == generation {
            current.abandon();
        }
    }

    /// No connection is made any more; requests under way end as they will.
    pub(crate) fn retire(&self) {
        let mut current = self.state();
        current.is_retired = true;
        current.driven = None;
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.state().is_retired
    }

    fn state(&self) -> MutexGuard<'_, ConnectionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_connection(&self) -> Option<OpenConnection> {
        let current = self.state();
        let ConnectionState { generation, pending_replies: answers, .. } = &*current;
        let live = |connection| OpenConnection {
            driven: connection,
            generation: *generation,
            pending_replies: answers.clone(),
        };
        current.driven.clone().map(live)
    }

    /// What is sent on a connection that has ended is lost, and nobody would know that it was never sent. And whoever was there
    /// may not be what it was: the next request makes a new one only after it was told.
    fn check_not_closed(&self) -> Result<(), RedisError> {
        let mut current = self.state();
        if current.driven.is_some() && current.pending_replies.is_closed() {
            current.abandon();
            return Err(std::io::Error::from(std::io::ErrorKind::BrokenPipe).into());
        }
        Ok(())
    }

    async fn get_or_connect(self: &Arc<Self>) -> Result<OpenConnection, RedisError> {
        self.check_not_closed()?;
        if let Some(live) = self.open_connection() {
            return Ok(live);
        }
        let before = self.state().connect_attempts;
        // A task makes it: whoever asks may not be polled for long, and nobody else should have to wait for that.
        // Driven at home, it goes on although this runtime may be held up by a rude handler.
        let lane = self.clone();
        let made = async move { lane.connect_unless_tried(before).await };
        let made = match &self.runtime {
            Some(home) => home.spawn(made),
            None => tokio::spawn(made),
        };
        made.await.unwrap_or_else(|gone| Err(std::io::Error::other(gone).into()))
    }

    /// Makes a connection, unless somebody has since so many were tried.
    async fn connect_unless_tried(&self, before: u64) -> Result<OpenConnection, RedisError> {
        let _one_at_a_time = self.connect_lock.lock().await;
        if let Some(live) = self.open_connection() {
            return Ok(live);
        }
        // Whoever waited while another tried in vain has his answer.
        let meanwhile = {
            let current = self.state();
            current.last_error.clone().filter(|_| current.connect_attempts != before)
        };
        if let Some(error) = meanwhile {
            return Err(error);
        }
        if self.state().is_retired {
            return Err(retired_error());
        }
        let wait = self.state().next_attempt_at;
        if let Some(until) = wait {
            tokio::time::sleep_until(until).await;
        }
        let answers = Arc::<PendingReplies>::default();
        let connected = self.connect_and_identify(&answers).await;
        let mut current = self.state();
        current.connect_attempts += 1;
        match connected {
            // Left while it was being connected to: whoever it is now, nobody may speak to it as the master.
            Ok(_) if current.is_retired => Err(retired_error()),
            Ok((connection, id)) => {
                (current.client_id, current.abandoned) = (id, None);
                current.generation = LAST_GENERATION.fetch_add(1, Ordering::Relaxed) + 1;
                current.connect_failures = 0;
                current.last_error = None;
                current.next_attempt_at = None;
                current.pending_replies = answers.clone();
                current.driven = Some(connection.clone());
                Ok(OpenConnection { driven: connection, generation: current.generation, pending_replies: answers })
            }
            Err(error) => {
                let ceiling = BACKOFF_MIN.saturating_mul(1 << current.connect_failures.min(8)).min(BACKOFF_MAX);
                current.connect_failures += 1;
                current.last_error = Some(error.clone());
                current.next_attempt_at = Some(clock::monotonic_now() + ceiling.mul_f64(0.5 + fastrand::f64() / 2.0));
                Err(error)
            }
        }
    }

    /// A connection that the server knows by its name, and as what it counts it. The last one has nothing more to say by then.
    async fn connect_and_identify(
        &self,
        answers: &Arc<PendingReplies>,
    ) -> Result<(DrivenConnection, Option<ClientId>), RedisError> {
        let until = clock::monotonic_now() + CONNECT_TIMEOUT;
        let mut line = self.open(answers).await?;
        let Some(name) = &self.name else {
            return Ok((line, None));
        };
        let given_up = self.state().abandoned;
        let introduced = line.run(async |to| abandoned::identify_and_close_abandoned(to, name, given_up).await);
        let late = |_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into());
        let id = tokio::time::timeout_at(until, introduced).await.unwrap_or_else(late)?;
        Ok((line, id))
    }

    async fn open(&self, answers: &Arc<PendingReplies>) -> Result<DrivenConnection, RedisError> {
        let config = with_push_handler(self.connector.config(), self.push_handler.clone(), answers.clone());
        // Where nothing comes that nobody waits for, whoever waits can drive it.
        let waited_for = self.runtime.is_none() && self.push_handler.is_none();
        if waited_for && let Some(connected) = self.connector.connect_inline(&self.address, &config).await {
            return connected
                .map(|(connection, driven)| DrivenConnection { connection, driver: Some(Arc::new(driven)) });
        }
        let connection = self.connector.connect(&self.address, &config).await?;
        Ok(DrivenConnection { connection, driver: None })
    }
}

fn retired_error() -> RedisError {
    std::io::Error::other("the server was left for another one").into()
}

/// Whether the server is asked to say nothing more on a channel.
fn is_unsubscribe(cmd: &Cmd) -> bool {
    matches!(cmd.args_iter().next(), Some(redis::Arg::Simple(b"SUNSUBSCRIBE")))
}

/// About how much a command has to say.
fn command_bytes(cmd: &Cmd) -> u64 {
    let of = |arg: Arg<&[u8]>| if let Arg::Simple(bytes) = arg { bytes.len() as u64 } else { 0 };
    cmd.args_iter().map(of).sum()
}

/// What comes without being asked for: that the connection has ended, also if nobody listens to anything else.
fn with_push_handler(
    config: AsyncConnectionConfig,
    listener: Option<ServerPushHandler>,
    answers: Arc<PendingReplies>,
) -> AsyncConnectionConfig {
    config.set_push_sender(move |info: PushInfo| -> Result<(), std::convert::Infallible> {
        match info.kind {
            PushKind::SUnsubscribe => answers.note_unsubscribe(),
            PushKind::Disconnection => answers.mark_closed(),
            _ => {}
        }
        if let Some(listener) = &listener {
            listener(info);
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

    /// A server that takes leave, unasked, before it answers; to the next who connects it only answers.
    async fn serve_with_unsolicited_push(mut client: TcpStream, unasked: &str) {
        let mut request = vec![0; 4096];
        while let Ok(read @ 1..) = client.read(&mut request).await {
            let request = String::from_utf8_lossy(&request[..read]);
            let answer = match &*request {
                hello if hello.contains("HELLO") => HELLO.to_owned(),
                leave if leave.contains("SUNSUBSCRIBE") => "-MOVED 1 127.0.0.1:1\r\n".to_owned(),
                _ => format!("{unasked}+yes\r\n"),
            };
            client.write_all(answer.as_bytes()).await.expect("is read");
        }
    }

    /// As a beat is: given up before an answer counts as missing.
    #[tokio::test]
    async fn unresponsive_connection_is_replaced_despite_short_timeouts() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("is bound").port();
        tokio::spawn(async move {
            let (mut dead, _) = listener.accept().await.expect("connects");
            let mut request = vec![0; 4096];
            let _ = dead.read(&mut request).await;
            dead.write_all(HELLO.as_bytes()).await.expect("is read");
            let (living, _) = listener.accept().await.expect("connects again");
            serve_with_unsolicited_push(living, "").await;
        });
        let place = RedisUrl::parse(&format!("redis://127.0.0.1:{port}")).expect("a URL").expect("of a server");
        let connector =
            Arc::new(Connector::new(&place, &crate::store::StoreOptions::default()).expect("no certificates"));
        let lane = Arc::new(ServerConnection::new(place.hosts[0].clone(), connector, None, None));
        let ping = redis::cmd("PING");
        let beat = async || tokio::time::timeout(Duration::from_millis(50), lane.send(&ping)).await.is_ok();
        assert!(!beat().await && !beat().await, "nobody answers");
        let (first, last) = lane.state().unanswered_span.expect("asked");
        lane.state().unanswered_span = Some((first - REPLY_TIMEOUT, last - REPLY_TIMEOUT + UNANSWERED_SPAN_MIN));
        assert!(tokio::time::timeout(REPLY_TIMEOUT, lane.send(&ping)).await.is_ok_and(|answer| answer.is_ok()));
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
        let place = RedisUrl::parse(&format!("redis://127.0.0.1:{port}")).expect("a URL").expect("of a server");
        let connector =
            Arc::new(Connector::new(&place, &crate::store::StoreOptions::default()).expect("no certificates"));
        let lane = Arc::new(ServerConnection::new(place.hosts[0].clone(), connector, None, Some(Arc::new(|_| ()))));
        // A farewell that was refused is not one that was asked for.
        assert!(matches!(lane.send(redis::cmd("SUNSUBSCRIBE").arg("a")).await, Err(ReplyLost::AfterSend(_))));
        assert!(
            matches!(lane.send(&redis::cmd("PING")).await, Err(ReplyLost::AfterSend(error)) if error.is_io_error())
        );
        assert!(matches!(lane.send(&redis::cmd("PING")).await, Ok(Value::SimpleString(yes)) if yes == "yes"));
    }
}
