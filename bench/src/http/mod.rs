//! Over HTTP beside the library, on the same store: single pushes of many clients, bulk pushes, whole lives,
//! and what it costs to wait.
//!
//! Clients and server are one process here, so what clients cost counts against the server.

mod client;
mod idle;
mod lifecycle;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Result;
use duly::{CancellationToken, Duly};
use duly_http::Server;

use self::client::{flood, request};
use crate::config::{BULK, KEEP_NONE, Noop, Setting, fill, noop_args, open};
use crate::report::{Line, Unit};
use crate::stats::Pair;

const GROUP: &str = "http";
/// Clients that push at the same time, each on a connection kept open.
const CLIENTS: usize = 64;
/// Jobs pushed before the measuring begins.
const WARM: usize = 20_000;
/// Goals: half of the library's single pushes or so many a second; eight tenths of its bulk pushes.
const SINGLES: f64 = 30_000.0;
const SINGLES_SHARE: f64 = 0.5;
const BULK_SHARE: f64 = 0.8;

pub(crate) async fn run(setting: &Setting) -> Result<Vec<Line>> {
    let (mut singles, mut bulks, mut lives) = (Pair::default(), Pair::default(), Pair::default());
    for round in 0..setting.rounds() {
        let dir = setting.fresh(GROUP)?;
        let duly = open(&dir.join("duly.db"), KEEP_NONE).await?;
        fill(&duly, WARM, || Noop::new().into()).await?;
        let site = Site::start(&duly, 2 * CLIENTS).await?;
        let theirs = library(&duly, setting.time(), CLIENTS, 1).await?;
        singles.record(site.pushes(setting.time(), CLIENTS, 1).await?, theirs);
        let theirs = library(&duly, setting.time(), 1, BULK).await?;
        bulks.record(site.pushes(setting.time(), 1, BULK).await?, theirs);
        drop((site, duly));
        lifecycle::round(&dir, setting.time(), &mut lives).await?;
        eprintln!("http: round {} of {}", round + 1, setting.rounds());
    }
    let single = Line::pair(GROUP, format!("push, {CLIENTS} clients"), Unit::PerSecond, "library", &singles);
    let met = singles.ours.median() >= SINGLES || singles.ratio() >= SINGLES_SHARE;
    let bulk = Line::pair(GROUP, format!("push, {BULK} at a time"), Unit::PerSecond, "library", &bulks);
    let mut lines = vec![
        single.goal(format!(">= {SINGLES_SHARE}x or 30k/s"), met),
        bulk.ratio_at_least(BULK_SHARE),
        lifecycle::line(&lives),
    ];
    lines.extend(idle::run(setting).await?);
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

/// A server on a free port, until it is dropped.
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
        Ok(flood(self.address, self.push(each), clients, time).await? * each as f64)
    }

    /// A request that pushes so many jobs.
    fn push(&self, jobs: usize) -> Vec<u8> {
        let job = format!(r#"{{"kind":"noop","args":{}}}"#, noop_args());
        match jobs {
            1 => request(self.address, "POST", "/api/v1/jobs", &job),
            _ => request(self.address, "POST", "/api/v1/jobs/bulk", &format!("[{}]", vec![job; jobs].join(","))),
        }
    }
}
