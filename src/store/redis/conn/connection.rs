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
use crate::store::redis::conn::abandoned::ServersId;
use crate::store::redis::conn::connector::{ANSWER, CONNECT, Connector};
use crate::store::redis::conn::inline_driver::Driven;
use crate::store::redis::conn::pending_replies::Answers;
use crate::store::redis::url::Address;

/// The first wait after a server could not be reached; doubles up to the longest.
const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_millis(500);

/// Asked at least twice, so far apart, and never answered: the connection leads nowhere.
const AGAIN: Duration = Duration::from_secs(1);

/// Who has asked nothing for so long does not want to know any more.
const ASKED_OF_LATE: Duration = Duration::from_secs(10);

/// Counts the connections of this process, to whatever server: no two are ever taken for the same.
static GENERATIONS: AtomicU64 = AtomicU64::new(0);

/// What receives messages that nobody asked for.
pub(crate) type Listener = Arc<dyn Fn(PushInfo) + Send + Sync>;

pub(crate) struct Lane {
    address: Address,
    connector: Arc<Connector>,
    /// What the connection is called in the server's list of them, if anything.
    name: Option<String>,
    /// Where the connection is driven, if not where it is first used.
    home: Option<Handle>,
    listener: Option<Listener>,
    current: Mutex<Current>,
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Current {
    connection: Option<Line>,
    /// What it has been asked.
    answers: Arc<Answers>,
    /// Which connection this is, so that one that failed is not mistaken for its successor, nor for one to another server.
    generation: u64,
    /// Which one it is to the server, where that says so.
    id: Option<ServersId>,
    /// The last that was given up, which may have something to say yet.
    given_up: Option<ServersId>,
    /// When it was last heard of, if it listens.
    heard: Option<Instant>,
    /// When the first and the last was asked of what is not answered, on whatever connection.
    asked: Option<(Instant, Instant)>,
    /// The server is not to be used any more.
    retired: bool,
    failures: u32,
    /// How often a connection was tried, and why the last try failed.
    attempts: u64,
    last_error: Option<RedisError>,
    not_before: Option<Instant>,
}

impl Current {
    /// The connection is not to be used any more.
    fn give_up(&mut self) {
        self.connection = None;
        self.given_up = self.id.take().or(self.given_up);
    }
}

/// A connection, and what drives it, where that is not left to the client.
#[derive(Clone)]
struct Line {
    connection: MultiplexedConnection,
    driven: Option<Arc<Driven>>,
}

impl Line {
    /// Carries out a request over it.
    async fn carry<T>(&mut self, request: impl AsyncFnOnce(&mut MultiplexedConnection) -> T) -> T {
        let asked = request(&mut self.connection);
        match &self.driven {
            Some(driven) => driven.along(asked).await,
            None => asked.await,
        }
    }
}

/// A connection that can be used.
struct Live {
    connection: Line,
    generation: u64,
    answers: Arc<Answers>,
}

/// Why there is no answer.
pub(crate) enum NoAnswer {
    /// The server could not be reached: nothing was sent.
    NotSent(RedisError),
    /// The server's word, or silence after the request was sent.
    Answer(RedisError),
}

impl NoAnswer {
    pub(crate) fn into_error(self) -> RedisError {
        match self {
            NoAnswer::NotSent(error) | NoAnswer::Answer(error) => error,
        }
    }
}

impl Lane {
    pub(crate) fn new(
        address: Address,
        connector: Arc<Connector>,
        home: Option<Handle>,
        listener: Option<Listener>,
    ) -> Self {
        Lane {
            address,
            connector,
            name: None,
            home,
            listener,
            current: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
        }
    }

    /// Its connections are called this.
    pub(crate) fn named(self, name: String) -> Self {
        Lane { name: Some(name), ..self }
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Sends one command and waits for its answer.
    pub(crate) async fn send(self: &Arc<Self>, cmd: &Cmd) -> Result<Value, NoAnswer> {
        self.ask();
        self.try_to_ask(cmd).await
    }

    /// The same where others are asked too: that it was given up for one of those tells nothing of this server.
    pub(crate) async fn try_to_ask(self: &Arc<Self>, cmd: &Cmd) -> Result<Value, NoAnswer> {
        let Live { mut connection, generation, answers } = self.connection().await.map_err(NoAnswer::NotSent)?;
        let farewell = is_farewell(cmd);
        if farewell {
            answers.expect_farewell();
        }
        let request = connection.carry(async |to| to.send_packed_command(cmd).await);
        let answer = answers.answer(self.home.as_ref(), bytes_of(cmd), request).await;
        let answer = answer.and_then(Value::extract_error);
        if farewell && answer.is_err() {
            answers.no_farewell();
        }
        self.keep_or_drop(answer, generation)
    }

    /// Sends commands that nothing may come between, and answers each.
    pub(crate) async fn send_all(self: &Arc<Self>, pipe: &redis::Pipeline) -> Result<Vec<Value>, NoAnswer> {
        self.ask();
        let Live { mut connection, generation, answers } = self.connection().await.map_err(NoAnswer::NotSent)?;
        let request = connection.carry(async |to| to.send_packed_commands(pipe, 0, pipe.len()).await);
        let bytes = pipe.cmd_iter().map(bytes_of).sum();
        let answer = answers.answer(self.home.as_ref(), bytes, request).await;
        self.keep_or_drop(answer, generation)
    }

    fn keep_or_drop<T>(&self, answer: Result<T, RedisError>, generation: u64) -> Result<T, NoAnswer> {
        {
            let mut current = self.current();
            current.asked = None;
            if self.listener.is_some() && answer.is_ok() {
                current.heard = Some(clock::tick());
            }
        }
        answer.map_err(|error| {
            // A connection that was silent for too long may be half dead: the next request gets a new one.
            if error.is_io_error() || error.is_timeout() || error.is_unrecoverable_error() {
                self.drop_connection(generation);
            }
            NoAnswer::Answer(error)
        })
    }

    /// Which connection is in use; 0 if there is none.
    pub(crate) fn generation(&self) -> u64 {
        let current = self.current();
        if current.connection.is_some() { current.generation } else { 0 }
    }

    /// Before anything is sent, so that it is known also if whoever asks gives up.
    ///
    /// Whoever gives up each time before an answer counts as missing, as a beat does, would go on for ever with a server that is
    /// gone, where something between takes what is sent to it. So who has asked in vain for long gets a new connection.
    fn ask(&self) {
        let now = clock::tick();
        let mut current = self.current();
        let in_vain = |(first, last): &mut (Instant, Instant)| now - *first >= ANSWER && *last - *first >= AGAIN;
        if current.asked.take_if(in_vain).is_some() {
            current.give_up();
        }
        current.asked.get_or_insert((now, now)).1 = now;
    }

    /// Whether something was asked so long ago, and nothing was answered since; as long as somebody still wants to know.
    pub(crate) fn is_silent(&self, for_long: Duration) -> bool {
        let now = clock::tick();
        self.current().asked.is_some_and(|(first, last)| now - first >= for_long && now - last < ASKED_OF_LATE)
    }

    /// Whether the last connection could not be made.
    pub(crate) fn fails(&self) -> bool {
        self.current().failures > 0
    }

    /// How long nothing has been heard on a connection that listens; `None` if there is none.
    pub(crate) fn silence(&self) -> Option<Duration> {
        let current = self.current();
        current.heard.filter(|_| current.connection.is_some()).map(|heard| clock::tick() - heard)
    }

    /// The next request makes a new connection.
    pub(crate) fn reset(&self) {
        self.current().give_up();
    }

    /// Forgets the connection, if it is still this one.
    pub(crate) fn drop_connection(&self, generation: u64) {
        let mut current = self.current();
        if current.generation == generation {
            current.give_up();
        }
    }

    /// No connection is made any more; requests under way end as they will.
    pub(crate) fn retire(&self) {
        let mut current = self.current();
        current.retired = true;
        current.connection = None;
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.current().retired
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn live(&self) -> Option<Live> {
        let current = self.current();
        let Current { generation, answers, .. } = &*current;
        let live = |connection| Live { connection, generation: *generation, answers: answers.clone() };
        current.connection.clone().map(live)
    }

    /// What is sent on a connection that has ended is lost, and nobody would know that it was never sent. And whoever was there
    /// may not be what it was: the next request makes a new one only after it was told.
    fn notice_end(&self) -> Result<(), RedisError> {
        let mut current = self.current();
        if current.connection.is_some() && current.answers.is_closed() {
            current.give_up();
            return Err(std::io::Error::from(std::io::ErrorKind::BrokenPipe).into());
        }
        Ok(())
    }

    async fn connection(self: &Arc<Self>) -> Result<Live, RedisError> {
        self.notice_end()?;
        if let Some(live) = self.live() {
            return Ok(live);
        }
        let before = self.current().attempts;
        // A task makes it: whoever asks may not be polled for long, and nobody else should have to wait for that.
        // Driven at home, it goes on although this runtime may be held up by a rude handler.
        let lane = self.clone();
        let made = async move { lane.make(before).await };
        let made = match &self.home {
            Some(home) => home.spawn(made),
            None => tokio::spawn(made),
        };
        made.await.unwrap_or_else(|gone| Err(std::io::Error::other(gone).into()))
    }

    /// Makes a connection, unless somebody has since so many were tried.
    async fn make(&self, before: u64) -> Result<Live, RedisError> {
        let _one_at_a_time = self.connecting.lock().await;
        if let Some(live) = self.live() {
            return Ok(live);
        }
        // Whoever waited while another tried in vain has his answer.
        let meanwhile = {
            let current = self.current();
            current.last_error.clone().filter(|_| current.attempts != before)
        };
        if let Some(error) = meanwhile {
            return Err(error);
        }
        if self.current().retired {
            return Err(left());
        }
        let wait = self.current().not_before;
        if let Some(until) = wait {
            tokio::time::sleep_until(until).await;
        }
        let answers = Arc::<Answers>::default();
        let connected = self.connect(&answers).await;
        let mut current = self.current();
        current.attempts += 1;
        match connected {
            // Left while it was being connected to: whoever it is now, nobody may speak to it as the master.
            Ok(_) if current.retired => Err(left()),
            Ok((connection, id)) => {
                (current.id, current.given_up) = (id, None);
                current.generation = GENERATIONS.fetch_add(1, Ordering::Relaxed) + 1;
                current.failures = 0;
                current.last_error = None;
                current.not_before = None;
                current.answers = answers.clone();
                current.connection = Some(connection.clone());
                Ok(Live { connection, generation: current.generation, answers })
            }
            Err(error) => {
                let ceiling = BACKOFF_MIN.saturating_mul(1 << current.failures.min(8)).min(BACKOFF_MAX);
                current.failures += 1;
                current.last_error = Some(error.clone());
                current.not_before = Some(clock::tick() + ceiling.mul_f64(0.5 + fastrand::f64() / 2.0));
                Err(error)
            }
        }
    }

    /// A connection that the server knows by its name, and as what it counts it. The last one has nothing more to say by then.
    async fn connect(&self, answers: &Arc<Answers>) -> Result<(Line, Option<ServersId>), RedisError> {
        let until = clock::tick() + CONNECT;
        let mut line = self.open(answers).await?;
        let Some(name) = &self.name else {
            return Ok((line, None));
        };
        let given_up = self.current().given_up;
        let introduced = line.carry(async |to| abandoned::introduce(to, name, given_up).await);
        let late = |_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into());
        let id = tokio::time::timeout_at(until, introduced).await.unwrap_or_else(late)?;
        Ok((line, id))
    }

    async fn open(&self, answers: &Arc<Answers>) -> Result<Line, RedisError> {
        let config = listen(self.connector.config(), self.listener.clone(), answers.clone());
        // Where nothing comes that nobody waits for, whoever waits can drive it.
        let waited_for = self.home.is_none() && self.listener.is_none();
        if waited_for && let Some(connected) = self.connector.connect_driven(&self.address, &config).await {
            return connected.map(|(connection, driven)| Line { connection, driven: Some(Arc::new(driven)) });
        }
        let connection = self.connector.connect(&self.address, &config).await?;
        Ok(Line { connection, driven: None })
    }
}

fn left() -> RedisError {
    std::io::Error::other("the server was left for another one").into()
}

/// Whether the server is asked to say nothing more on a channel.
fn is_farewell(cmd: &Cmd) -> bool {
    matches!(cmd.args_iter().next(), Some(redis::Arg::Simple(b"SUNSUBSCRIBE")))
}

/// About how much a command has to say.
fn bytes_of(cmd: &Cmd) -> u64 {
    let of = |arg: Arg<&[u8]>| if let Arg::Simple(bytes) = arg { bytes.len() as u64 } else { 0 };
    cmd.args_iter().map(of).sum()
}

/// What comes without being asked for: that the connection has ended, also if nobody listens to anything else.
fn listen(config: AsyncConnectionConfig, listener: Option<Listener>, answers: Arc<Answers>) -> AsyncConnectionConfig {
    config.set_push_sender(move |info: PushInfo| -> Result<(), std::convert::Infallible> {
        match info.kind {
            PushKind::SUnsubscribe => answers.take_leave(),
            PushKind::Disconnection => answers.close(),
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
    use crate::store::redis::url::Place;

    const HELLO: &str = "%1\r\n$5\r\nproto\r\n:3\r\n";

    /// A server that takes leave, unasked, before it answers; to the next who connects it only answers.
    async fn give_away(mut client: TcpStream, unasked: &str) {
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
    async fn a_connection_that_leads_nowhere_is_given_up_although_nobody_waits_long() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("is bound").port();
        tokio::spawn(async move {
            let (mut dead, _) = listener.accept().await.expect("connects");
            let mut request = vec![0; 4096];
            let _ = dead.read(&mut request).await;
            dead.write_all(HELLO.as_bytes()).await.expect("is read");
            let (living, _) = listener.accept().await.expect("connects again");
            give_away(living, "").await;
        });
        let place = Place::parse(&format!("redis://127.0.0.1:{port}")).expect("a URL").expect("of a server");
        let connector = Arc::new(Connector::new(&place, &crate::store::Options::default()).expect("no certificates"));
        let lane = Arc::new(Lane::new(place.hosts[0].clone(), connector, None, None));
        let ping = redis::cmd("PING");
        let beat = async || tokio::time::timeout(Duration::from_millis(50), lane.send(&ping)).await.is_ok();
        assert!(!beat().await && !beat().await, "nobody answers");
        let (first, last) = lane.current().asked.expect("asked");
        lane.current().asked = Some((first - ANSWER, last - ANSWER + AGAIN));
        assert!(tokio::time::timeout(ANSWER, lane.send(&ping)).await.is_ok_and(|answer| answer.is_ok()));
    }

    #[tokio::test]
    async fn what_a_server_says_unasked_is_nobodys_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("is bound").port();
        tokio::spawn(async move {
            for unasked in [">3\r\n$12\r\nsunsubscribe\r\n$1\r\na\r\n:0\r\n", ""] {
                let (client, _) = listener.accept().await.expect("connects");
                tokio::spawn(give_away(client, unasked));
            }
        });
        let place = Place::parse(&format!("redis://127.0.0.1:{port}")).expect("a URL").expect("of a server");
        let connector = Arc::new(Connector::new(&place, &crate::store::Options::default()).expect("no certificates"));
        let lane = Arc::new(Lane::new(place.hosts[0].clone(), connector, None, Some(Arc::new(|_| ()))));
        // A farewell that was refused is not one that was asked for.
        assert!(matches!(lane.send(redis::cmd("SUNSUBSCRIBE").arg("a")).await, Err(NoAnswer::Answer(_))));
        assert!(matches!(lane.send(&redis::cmd("PING")).await, Err(NoAnswer::Answer(error)) if error.is_io_error()));
        assert!(matches!(lane.send(&redis::cmd("PING")).await, Ok(Value::SimpleString(yes)) if yes == "yes"));
    }
}
