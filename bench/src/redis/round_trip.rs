//! The floor of everything that two processes say to each other through Redis: bare round trips, and bare one-way trips
//! (PUBLISH until a subscriber in another process has it), through the same client.

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

/// A connection that does nothing but PING.
pub(super) struct PingConnection(MultiplexedConnection);

impl PingConnection {
    pub(super) async fn connect(server: &RedisServer) -> Result<Self> {
        Ok(PingConnection(connect(&server.url()).await?.0))
    }

    /// Microseconds of so many round trips, each awaited.
    pub(super) async fn measure_round_trips(&mut self, trips: usize) -> Result<f64> {
        let begin = Instant::now();
        for _ in 0..trips {
            cmd("PING").query_async::<()>(&mut self.0).await?;
        }
        Ok(to_micros(begin.elapsed()))
    }
}

/// A process that publishes back what is published to it.
pub(super) struct PublishEcho {
    conn: MultiplexedConnection,
    messages: UnboundedReceiver<PushInfo>,
    /// As many bytes as a job's args have.
    payload: String,
    _child: BenchProcess,
}

impl PublishEcho {
    pub(super) async fn start(server: &RedisServer) -> Result<Self> {
        let (mut conn, heard) = connect(&server.url()).await?;
        conn.subscribe(REPLY_CHANNEL).await?;
        Ok(PublishEcho {
            conn,
            messages: heard,
            payload: noop_args(),
            _child: BenchProcess::start_echo(&server.url())?,
        })
    }

    /// Microseconds of two one-way trips: there, and back.
    pub(super) async fn measure_trip(&mut self) -> Result<f64> {
        let begin = Instant::now();
        cmd("PUBLISH").arg(REQUEST_CHANNEL).arg(&self.payload).query_async::<()>(&mut self.conn).await?;
        let back = next_message(&mut self.messages).await?;
        let took = to_micros(begin.elapsed());
        ensure!(back == self.payload.as_bytes(), "something else came back");
        Ok(took)
    }
}

/// The child.
pub(crate) async fn run_echo(url: &str) -> Result<()> {
    let (mut conn, mut heard) = connect(url).await?;
    conn.subscribe(REQUEST_CHANNEL).await?;
    println!("ready");
    // On the thread that reads the connection: the floor pays for no change of threads.
    let echoing = tokio::spawn(async move {
        loop {
            let text = next_message(&mut heard).await?;
            cmd("PUBLISH").arg(REPLY_CHANNEL).arg(text).query_async::<()>(&mut conn).await?;
        }
    });
    echoing.await?
}

const LIST_KEY: &str = "bare";

/// A list in Redis, and a process that blocks in a pop of it: the least that a job can go through which is kept until it is taken.
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

    /// Milliseconds from a push until the other process has it.
    pub(super) async fn measure_push(&mut self, no: usize) -> Result<f64> {
        let called = monotonic_us();
        cmd("LPUSH").arg(LIST_KEY).arg(format!("{no} {}", self.payload)).query_async::<()>(&mut self.conn).await?;
        let start = self.child.next_start()?;
        ensure!(start.no == no, "{} was popped instead of {no}", start.no);
        Ok((start.monotonic_us as f64 - called as f64) / 1_000.0)
    }
}

/// The child.
pub(crate) async fn run_popper(url: &str) -> Result<()> {
    let (mut conn, _heard) = connect(url).await?;
    conn.set_response_timeout(Duration::MAX);
    println!("ready");
    // On the thread that reads the connection, as above.
    let popping = tokio::spawn(async move {
        loop {
            let (_, text): (String, String) = cmd("BRPOP").arg(LIST_KEY).arg(0).query_async(&mut conn).await?;
            report_start(text.split(' ').next().context("a number")?.parse()?)?;
        }
    });
    popping.await?
}

/// As duly connects: RESP3, and what nobody has asked for comes beside the answers.
async fn connect(url: &str) -> Result<(MultiplexedConnection, UnboundedReceiver<PushInfo>)> {
    let (sender, heard) = unbounded_channel();
    let config = AsyncConnectionConfig::new().set_push_sender(sender);
    let client = Client::open(format!("{url}?protocol=resp3"))?;
    Ok((client.get_multiplexed_async_connection_with_config(&config).await?, heard))
}

/// The next message, whatever else may be told before it.
async fn next_message(heard: &mut UnboundedReceiver<PushInfo>) -> Result<Vec<u8>> {
    loop {
        let told = heard.recv().await.context("the connection is gone")?;
        if told.kind != PushKind::Message {
            continue;
        }
        // Channel and message.
        match told.data.into_iter().nth(1) {
            Some(Value::BulkString(text)) => return Ok(text),
            other => bail!("this is no message: {other:?}"),
        }
    }
}
