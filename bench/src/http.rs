//! Over HTTP beside the library, on the same file: single pushes of many clients, bulk pushes, and what it costs to wait.
//!
//! Clients and server are one process here, so what clients cost counts against the server.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use duly::http::Server;
use duly::{CancellationToken, Duly};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::report::{Line, Unit};
use crate::setting::{BULK, KEEP_NONE, Noop, Setting, fill, noop_args, open};
use crate::stats::Pair;

const GROUP: &str = "http";
/// Clients that push at the same time, each on a connection kept open.
const CLIENTS: usize = 64;
/// Jobs pushed before the measuring begins.
const WARM: usize = 20_000;
/// Connections that only wait.
const IDLE: usize = 10_000;
/// Goals: half of the library's single pushes or so many a second; eight tenths of its bulk pushes; memory of the idle.
const SINGLES: f64 = 30_000.0;
const SINGLES_SHARE: f64 = 0.5;
const BULK_SHARE: f64 = 0.8;
const IDLE_MB: f64 = 300.0;

pub(crate) async fn run(setting: &Setting) -> Result<Vec<Line>> {
    let (mut singles, mut bulks) = (Pair::default(), Pair::default());
    for round in 0..setting.rounds() {
        let duly = open(&setting.fresh(GROUP)?.join("duly.db"), KEEP_NONE).await?;
        fill(&duly, WARM, || Noop::new().into()).await?;
        let site = Site::start(&duly, 2 * CLIENTS).await?;
        let theirs = library(&duly, setting.time(), CLIENTS, 1).await?;
        singles.record(site.pushes(setting.time(), CLIENTS, 1).await?, theirs);
        let theirs = library(&duly, setting.time(), 1, BULK).await?;
        bulks.record(site.pushes(setting.time(), 1, BULK).await?, theirs);
        eprintln!("http: round {} of {}", round + 1, setting.rounds());
    }
    let single = Line::pair(GROUP, format!("push, {CLIENTS} clients"), Unit::PerSecond, "library", &singles);
    let met = singles.ours.median() >= SINGLES || singles.ratio() >= SINGLES_SHARE;
    let bulk = Line::pair(GROUP, format!("push, {BULK} at a time"), Unit::PerSecond, "library", &bulks);
    let mut lines = vec![single.goal(format!(">= {SINGLES_SHARE}x or 30k/s"), met), bulk.ratio_at_least(BULK_SHARE)];
    lines.push(idle(setting).await?);
    Ok(lines)
}

/// Jobs a second through the library.
async fn library(duly: &Duly, time: Duration, tasks: usize, each: usize) -> Result<f64> {
    let begin = Instant::now();
    let work = (0..tasks).map(|_| {
        let duly = duly.clone();
        tokio::spawn(async move {
            let mut jobs = 0;
            while begin.elapsed() < time {
                duly.push_all((0..each).map(|_| Noop::new())).await?;
                jobs += each;
            }
            anyhow::Ok(jobs)
        })
    });
    let mut jobs = 0;
    for task in work.collect::<Vec<_>>() {
        jobs += task.await??;
    }
    Ok(jobs as f64 / begin.elapsed().as_secs_f64())
}

struct Site {
    address: SocketAddr,
    stop: CancellationToken,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Site {
    async fn start(duly: &Duly, connections: usize) -> Result<Self> {
        let server = Server::new(duly.clone()).connections(connections).listen(([127, 0, 0, 1], 0).into()).await?;
        let (address, stop) = (server.address(), CancellationToken::new());
        tokio::spawn(server.serve_until(stop.clone()));
        Ok(Site { address, stop })
    }

    /// Jobs a second over HTTP.
    async fn pushes(&self, time: Duration, clients: usize, each: usize) -> Result<f64> {
        let job = format!(r#"{{"kind":"noop","args":{}}}"#, noop_args());
        let (path, body) = match each {
            1 => ("/api/v1/jobs", job),
            _ => ("/api/v1/jobs/bulk", format!("[{}]", vec![job; each].join(","))),
        };
        let request = request(self.address, "POST", path, &body);
        let begin = Instant::now();
        let work = (0..clients).map(|_| {
            let (address, request) = (self.address, request.clone());
            tokio::spawn(async move {
                let mut client = Client::connect(address).await?;
                let mut jobs = 0;
                while begin.elapsed() < time {
                    client.ask(&request).await?;
                    jobs += each;
                }
                anyhow::Ok(jobs)
            })
        });
        let mut jobs = 0;
        for task in work.collect::<Vec<_>>() {
            jobs += task.await??;
        }
        Ok(jobs as f64 / begin.elapsed().as_secs_f64())
    }
}

fn request(address: SocketAddr, method: &str, path: &str, body: &str) -> Vec<u8> {
    let head = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n");
    format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// A connection kept open.
struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Client {
    async fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Client { stream, buffer: vec![0; 128 * 1024] })
    }

    /// Sends, and reads the whole answer.
    async fn ask(&mut self, request: &[u8]) -> Result<()> {
        self.stream.write_all(request).await?;
        let (mut read, mut whole) = (0, None);
        loop {
            let more = self.stream.read(&mut self.buffer[read..]).await?;
            ensure!(more > 0, "the server has hung up");
            read += more;
            if whole.is_none() {
                whole = self.length(read)?;
            }
            if whole.is_some_and(|whole| read >= whole) {
                return Ok(());
            }
        }
    }

    /// How long the whole answer is, once its head is there.
    fn length(&self, read: usize) -> Result<Option<usize>> {
        let Some(end) = self.buffer[..read].windows(4).position(|four| four == b"\r\n\r\n") else {
            return Ok(None);
        };
        let head = String::from_utf8_lossy(&self.buffer[..end]).to_ascii_lowercase();
        ensure!(head.starts_with("http/1.1 20"), "refused: {head}");
        let len = head.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next());
        let len: usize = len.context("no length")?.parse()?;
        Ok(Some(end + 4 + len))
    }
}

/// What it costs that many wait for events: both ends of each connection are in this process.
async fn idle(setting: &Setting) -> Result<Line> {
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(1_024);
    let many = IDLE.min(usize::try_from(files.saturating_sub(200) / 2)?);
    let many = if setting.quick { many.min(500) } else { many };
    let duly = open(&setting.fresh(GROUP)?.join("duly.db"), KEEP_NONE).await?;
    let site = Site::start(&duly, many + 10).await?;
    let before = resident_mb()?;
    let listen = request(site.address, "GET", "/api/v1/events", "");
    let mut open = Vec::new();
    for _ in 0..many {
        let mut stream = TcpStream::connect(site.address).await?;
        stream.write_all(&listen).await?;
        let mut head = [0; 64];
        ensure!(stream.read(&mut head).await? > 0, "the server has hung up");
        open.push(stream);
    }
    let grown = resident_mb()? - before;
    Ok(Line::alone(GROUP, format!("memory of {many} that wait for events"), grown, Unit::Megabytes).below(IDLE_MB))
}

fn resident_mb() -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? / 1_024.0)
}
