//! The baseline of communication through Redis: bare round trips and bare one-way trips through the same client.
//!
//! A one-way trip lasts from PUBLISH until a subscriber in another process has the message.

use std::time::{Duration, Instant};

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Client, PushInfo, PushKind, Value, cmd};
use anyhow::{Context, Result, bail, ensure};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::server::RedisServer;
use crate::child::{BenchProcess, monotonic_us, report_start};
use crate::config::noop_args;
use crate::single_job::to_micros;

const REQUEST_CHANNEL: &str = "there";
const REPLY_CHANNEL: &str = "back";

/// A connection that only sends PING.
pub(super) struct PingConnection(MultiplexedConnection);

impl PingConnection {
    pub(super) async fn connect(server: &RedisServer) -> Result<Self> {
        Ok(PingConnection(connect(&server.url()).await?.0))
    }

    /// Returns the microseconds of this many round trips, each awaited.
    pub(super) async fn measure_round_trips(&mut self, trips: usize) -> Result<f64> {
        let begin = Instant::now();
        for _ in 0..trips {
            cmd("PING").query_async::<()>(&mut self.0).await?;
        }
        Ok(to_micros(begin.elapsed()))
    }
}

/// A process that publishes each message back.
pub(super) struct PublishEcho {
    conn: MultiplexedConnection,
    messages: UnboundedReceiver<PushInfo>,
    /// As many bytes as the args of a job.
    payload: String,
    _child: BenchProcess,
}

impl PublishEcho {
    pub(super) async fn start(server: &RedisServer) -> Result<Self> {
        let (mut conn, messages) = connect(&server.url()).await?;
        conn.subscribe(REPLY_CHANNEL).await?;
        Ok(PublishEcho { conn, messages, payload: noop_args(), _child: BenchProcess::start_echo(&server.url())? })
    }

    /// Returns the microseconds of two one-way trips: there and back.
    pub(super) async fn measure_trip(&mut self) -> Result<f64> {
        let begin = Instant::now();
        cmd("PUBLISH").arg(REQUEST_CHANNEL).arg(&self.payload).query_async::<()>(&mut self.conn).await?;
        let reply = next_message(&mut self.messages).await?;
        let duration = to_micros(begin.elapsed());
        ensure!(reply == self.payload.as_bytes(), "the reply differs from the message");
        Ok(duration)
    }
}

/// Runs the child process.
pub(crate) async fn run_echo(url: &str) -> Result<()> {
    let (mut conn, mut messages) = connect(url).await?;
    conn.subscribe(REQUEST_CHANNEL).await?;
    println!("ready");
    // On the thread that reads the connection, so that the baseline has no thread switch.
    let echo_task = tokio::spawn(async move {
        loop {
            let text = next_message(&mut messages).await?;
            cmd("PUBLISH").arg(REPLY_CHANNEL).arg(text).query_async::<()>(&mut conn).await?;
        }
    });
    echo_task.await?
}

const LIST_KEY: &str = "bare";

/// A list in Redis and a process that blocks in a pop: the minimum for a job that is stored until it is claimed.
pub(super) struct BlockingPop {
    conn: MultiplexedConnection,
    payload: String,
    child: BenchProcess,
}

impl BlockingPop {
    pub(super) async fn start(server: &RedisServer) -> Result<Self> {
        let (conn, _) = connect(&server.url()).await?;
        Ok(BlockingPop { conn, payload: noop_args(), child: BenchProcess::start_popper(&server.url())? })
    }

    /// Returns the milliseconds from a push until the other process has the entry.
    pub(super) async fn measure_push(&mut self, number: usize) -> Result<f64> {
        let called = monotonic_us();
        cmd("LPUSH").arg(LIST_KEY).arg(format!("{number} {}", self.payload)).query_async::<()>(&mut self.conn).await?;
        let start = self.child.next_start()?;
        ensure!(start.number == number, "{} was popped instead of {number}", start.number);
        Ok((start.monotonic_us as f64 - called as f64) / 1_000.0)
    }
}

/// Runs the child process.
pub(crate) async fn run_popper(url: &str) -> Result<()> {
    let (mut conn, _messages) = connect(url).await?;
    conn.set_response_timeout(Duration::MAX);
    println!("ready");
    // On the thread that reads the connection, as in `run_echo`.
    let pop_task = tokio::spawn(async move {
        loop {
            let (_, text): (String, String) = cmd("BRPOP").arg(LIST_KEY).arg(0).query_async(&mut conn).await?;
            report_start(text.split(' ').next().context("a number")?.parse()?)?;
        }
    });
    pop_task.await?
}

/// Connects like duly: RESP3, with push messages on the same connection.
async fn connect(url: &str) -> Result<(MultiplexedConnection, UnboundedReceiver<PushInfo>)> {
    let (sender, messages) = unbounded_channel();
    let config = AsyncConnectionConfig::new().set_push_sender(sender);
    let client = Client::open(format!("{url}?protocol=resp3"))?;
    Ok((client.get_multiplexed_async_connection_with_config(&config).await?, messages))
}

/// Waits for the next message and ignores other push messages.
async fn next_message(messages: &mut UnboundedReceiver<PushInfo>) -> Result<Vec<u8>> {
    loop {
        let push = messages.recv().await.context("the connection is gone")?;
        if push.kind != PushKind::Message {
            continue;
        }
        // The data is the channel and the message.
        match push.data.into_iter().nth(1) {
            Some(Value::BulkString(text)) => return Ok(text),
            other => bail!("not a message: {other:?}"),
        }
    }
}
