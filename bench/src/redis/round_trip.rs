//! The floor of everything that two processes say to each other through Redis: bare round trips, and bare one-way trips
//! (PUBLISH until a subscriber in another process has it), through the same client.

use std::time::{Duration, Instant};

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Client, PushInfo, PushKind, Value, cmd};
use anyhow::{Context, Result, bail, ensure};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::server::Server;
use crate::child::{Playing, monotonic_us, tell};
use crate::config::noop_args;
use crate::single_job::micros;

const THERE: &str = "there";
const BACK: &str = "back";

/// A connection that does nothing but PING.
pub(super) struct Round(MultiplexedConnection);

impl Round {
    pub(super) async fn connect(server: &Server) -> Result<Self> {
        Ok(Round(connect(&server.url()).await?.0))
    }

    /// Microseconds of so many round trips, each awaited.
    pub(super) async fn trips(&mut self, trips: usize) -> Result<f64> {
        let begin = Instant::now();
        for _ in 0..trips {
            cmd("PING").query_async::<()>(&mut self.0).await?;
        }
        Ok(micros(begin.elapsed()))
    }
}

/// A process that publishes back what is published to it.
pub(super) struct ThereAndBack {
    conn: MultiplexedConnection,
    heard: UnboundedReceiver<PushInfo>,
    /// As many bytes as a job's args have.
    text: String,
    _child: Playing,
}

impl ThereAndBack {
    pub(super) async fn start(server: &Server) -> Result<Self> {
        let (mut conn, heard) = connect(&server.url()).await?;
        conn.subscribe(BACK).await?;
        Ok(ThereAndBack { conn, heard, text: noop_args(), _child: Playing::echo(&server.url())? })
    }

    /// Microseconds of two one-way trips: there, and back.
    pub(super) async fn trip(&mut self) -> Result<f64> {
        let begin = Instant::now();
        cmd("PUBLISH").arg(THERE).arg(&self.text).query_async::<()>(&mut self.conn).await?;
        let back = message(&mut self.heard).await?;
        let took = micros(begin.elapsed());
        ensure!(back == self.text.as_bytes(), "something else came back");
        Ok(took)
    }
}

/// The child.
pub(crate) async fn echo(url: &str) -> Result<()> {
    let (mut conn, mut heard) = connect(url).await?;
    conn.subscribe(THERE).await?;
    println!("ready");
    // On the thread that reads the connection: the floor pays for no change of threads.
    let echoing = tokio::spawn(async move {
        loop {
            let text = message(&mut heard).await?;
            cmd("PUBLISH").arg(BACK).arg(text).query_async::<()>(&mut conn).await?;
        }
    });
    echoing.await?
}

const QUEUE: &str = "bare";

/// A list in Redis, and a process that blocks in a pop of it: the least that a job can go through which is kept until it is taken.
pub(super) struct Popped {
    conn: MultiplexedConnection,
    text: String,
    child: Playing,
}

impl Popped {
    pub(super) async fn start(server: &Server) -> Result<Self> {
        let (conn, _) = connect(&server.url()).await?;
        Ok(Popped { conn, text: noop_args(), child: Playing::pop(&server.url())? })
    }

    /// Milliseconds from a push until the other process has it.
    pub(super) async fn push(&mut self, no: usize) -> Result<f64> {
        let called = monotonic_us();
        cmd("LPUSH").arg(QUEUE).arg(format!("{no} {}", self.text)).query_async::<()>(&mut self.conn).await?;
        let start = self.child.next_start()?;
        ensure!(start.no == no, "{} was popped instead of {no}", start.no);
        Ok((start.monotonic_us as f64 - called as f64) / 1_000.0)
    }
}

/// The child.
pub(crate) async fn pop(url: &str) -> Result<()> {
    let (mut conn, _heard) = connect(url).await?;
    conn.set_response_timeout(Duration::MAX);
    println!("ready");
    // On the thread that reads the connection, as above.
    let popping = tokio::spawn(async move {
        loop {
            let (_, text): (String, String) = cmd("BRPOP").arg(QUEUE).arg(0).query_async(&mut conn).await?;
            tell(text.split(' ').next().context("a number")?.parse()?)?;
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
async fn message(heard: &mut UnboundedReceiver<PushInfo>) -> Result<Vec<u8>> {
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
