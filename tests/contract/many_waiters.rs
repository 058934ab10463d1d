//! Many waits for jobs that other processes run: their cost for the store, and the effect of a lost connection.

use std::time::{Duration, Instant};

use duly::{Duly, JobId, JobRecord, Outcome, Push, State};
use tokio::task::JoinHandle;

/// Far longer than a notification takes, far shorter than the interval of the fallback check.
const AT_ONCE: Duration = Duration::from_secs(2);

async fn push(duly: &Duly, jobs: usize) -> Vec<JobId> {
    let pushed = duly.push_all((0..jobs).map(|_| Push::new("k", "1"))).await.expect("pushes");
    pushed.iter().map(|pushed| pushed.id()).collect()
}

fn wait(duly: &Duly, id: JobId) -> JoinHandle<Option<JobRecord>> {
    let duly = duly.clone();
    tokio::spawn(async move { duly.jobs().wait(id).await.expect("waits") })
}

async fn work(duly: &Duly) {
    duly.worker().concurrency(100).on_any_kind(async |_| Outcome::Ack).drain().await.expect("works");
}

async fn all_done(waits: Vec<JoinHandle<Option<JobRecord>>>, within: Duration) {
    let deadline = Instant::now() + within;
    for waiting in waits {
        let remaining = deadline.saturating_duration_since(Instant::now());
        let record = tokio::time::timeout(remaining, waiting).await.expect("notified in time").expect("no panic");
        assert!(record.is_some_and(|record| record.state == State::Done));
    }
}

/// Two handles on one file act like two processes: they share only its node registry.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_file_wait_is_notified_by_another_process() {
    let dir = test_support::temp_dir();
    let path = dir.path().join("duly.db").to_str().expect("a plain path").to_owned();
    let (waiter, worker) = (Duly::open(&path).await.expect("opens"), Duly::open(&path).await.expect("opens"));
    let jobs = push(&worker, 500).await;
    // Some of these waits start before the jobs run. A late one finds its job done.
    let first = wait(&waiter, jobs[0]);
    let waits: Vec<_> = jobs.iter().map(|id| wait(&waiter, *id)).collect();
    work(&worker).await;
    all_done(vec![first], AT_ONCE).await;
    all_done(waits, AT_ONCE).await;
}

#[cfg(feature = "redis")]
mod on_a_server {
    use super::*;
    use crate::test_store::TIMEOUT;
    use test_support::servers::{Binary, Direction, Fsync, Options, Proxy, Server};
    use test_support::wait_for;

    /// Returns how many commands of clients and scripts the server has run since the last `CONFIG RESETSTAT`.
    fn commands(server: &Server) -> u64 {
        let stats = server.send_command(&["INFO", "commandstats"]).text();
        let is_counted = |line: &&str| !line.contains("cmdstat_info") && !line.contains("cmdstat_config");
        let calls = |line: &str| line.split("calls=").nth(1)?.split(',').next()?.parse::<u64>().ok();
        stats.lines().filter(is_counted).filter_map(calls).sum()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    #[ignore = "needs servers: ./check stores"]
    async fn ten_thousand_waiters_cost_the_server_no_polling() {
        const JOBS: usize = 10_000;
        let server = Options::new(Binary::Redis).aof(Fsync::No).start();
        let (waiter, worker) =
            (Duly::open(server.url()).await.expect("opens"), Duly::open(server.url()).await.expect("opens"));
        let jobs = push(&worker, JOBS).await;
        server.send_command(&["CONFIG", "RESETSTAT"]);
        let waits: Vec<_> = jobs.iter().map(|id| wait(&waiter, *id)).collect();
        // Each wait reads twice before it blocks: to find the queue, and again after it has subscribed.
        let has_read_twice = || {
            let line = server.info(&["INFO", "commandstats"], "cmdstat_evalsha");
            let calls: usize = line.split("calls=").nth(1).and_then(|c| c.split(',').next()?.parse().ok()).unwrap_or(0);
            if calls >= 2 * JOBS { Ok(()) } else { Err(format!("{calls} reads")) }
        };
        tokio::task::block_in_place(|| wait_for("all to wait", has_read_twice));
        // Announcements of a process that only listens cost nothing. One fallback check of all waits may fall into
        // this time, in a few large requests.
        let is_idle = || {
            server.send_command(&["CONFIG", "RESETSTAT"]);
            std::thread::sleep(AT_ONCE);
            let count = commands(&server);
            if count < JOBS as u64 / 10 { Ok(()) } else { Err(format!("{count} commands while {JOBS} wait")) }
        };
        tokio::task::block_in_place(|| wait_for("the server to be idle", is_idle));
        server.send_command(&["CONFIG", "RESETSTAT"]);
        tokio::time::sleep(2 * AT_ONCE).await;
        let count = commands(&server);
        assert!(count < JOBS as u64 / 10, "{count} commands while {JOBS} wait");
        work(&worker).await;
        all_done(waits, TIMEOUT).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    #[ignore = "needs servers: ./check stores"]
    async fn wait_ends_although_the_connection_was_cut() {
        let server = Options::new(Binary::Redis).aof(Fsync::No).start();
        let proxy = Proxy::start(server.port());
        let worker = Duly::open(server.url()).await.expect("opens");
        let waiter = Duly::open(format!("redis://{}", proxy.address())).await.expect("opens");
        let jobs = push(&worker, 2).await;
        let waits: Vec<_> = jobs.iter().map(|id| wait(&waiter, *id)).collect();
        let has_waiter =
            || match server.send_command(&["HGET", "duly:queue:{default}:conf", "watched_until"]).text().as_str() {
                "" => Err("no wait is registered yet".to_owned()),
                _ => Ok(()),
            };
        tokio::task::block_in_place(|| wait_for("a wait to be registered", has_waiter));
        proxy.freeze(Direction::Replies);
        work(&worker).await;
        proxy.cut();
        proxy.thaw();
        all_done(waits, TIMEOUT).await;
    }
}
