//! Many who wait, in other processes than those that work: what it costs the store, and what a broken way costs them.

use std::time::{Duration, Instant};

use duly::{Duly, JobId, JobRecord, Outcome, Push, State};
use tokio::task::JoinHandle;

/// Far longer than it takes to be told, far shorter than the look behind it.
const AT_ONCE: Duration = Duration::from_secs(2);

async fn push(duly: &Duly, jobs: usize) -> Vec<JobId> {
    let pushed = duly.push_all((0..jobs).map(|_| Push::new("k", "1"))).await.expect("pushes");
    pushed.iter().map(|pushed| pushed.id()).collect()
}

fn wait(duly: &Duly, id: JobId) -> JoinHandle<Option<JobRecord>> {
    let duly = duly.clone();
    tokio::spawn(async move { duly.wait(id).await.expect("waits") })
}

async fn work(duly: &Duly) {
    duly.worker().concurrency(100).on_any_kind(async |_| Outcome::Ack).drain().await.expect("works");
}

async fn all_done(waits: Vec<JoinHandle<Option<JobRecord>>>, within: Duration) {
    let until = Instant::now() + within;
    for waiting in waits {
        let left = until.saturating_duration_since(Instant::now());
        let record = tokio::time::timeout(left, waiting).await.expect("told in time").expect("no panic");
        assert!(record.is_some_and(|record| record.state == State::Done));
    }
}

/// Two handles on one file are to each other what two processes are: they share only its node registry.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_file_wait_is_notified_by_another_process() {
    let dir = test_support::temp_dir();
    let path = dir.path().join("duly.db").to_str().expect("a plain path").to_owned();
    let (waiter, worker) = (Duly::open(&path).await.expect("opens"), Duly::open(&path).await.expect("opens"));
    let jobs = push(&worker, 500).await;
    // Before the work begins, so that some of them wait by then; those that come late see that it has ended.
    let first = wait(&waiter, jobs[0]);
    let waits: Vec<_> = jobs.iter().map(|id| wait(&waiter, *id)).collect();
    work(&worker).await;
    all_done(vec![first], AT_ONCE).await;
    all_done(waits, AT_ONCE).await;
}

#[cfg(feature = "redis")]
mod on_a_server {
    use super::*;
    use crate::test_store::LONG;
    use test_support::servers::{Binary, Direction, Fsync, Options, Proxy, Server};
    use test_support::wait_for;

    /// How many commands of clients and scripts the server has carried out since it was last asked to count anew.
    fn commands(server: &Server) -> u64 {
        let stats = server.ask(&["INFO", "commandstats"]).text();
        let ours = |line: &&str| !line.contains("cmdstat_info") && !line.contains("cmdstat_config");
        let calls = |line: &str| line.split("calls=").nth(1)?.split(',').next()?.parse::<u64>().ok();
        stats.lines().filter(ours).filter_map(calls).sum()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    #[ignore = "needs servers: ./check stores"]
    async fn ten_thousand_waiters_cost_the_server_no_polling() {
        const JOBS: usize = 10_000;
        let server = Options::new(Binary::Redis).aof(Fsync::No).start();
        let (waiter, worker) =
            (Duly::open(server.url()).await.expect("opens"), Duly::open(server.url()).await.expect("opens"));
        let jobs = push(&worker, JOBS).await;
        server.ask(&["CONFIG", "RESETSTAT"]);
        let waits: Vec<_> = jobs.iter().map(|id| wait(&waiter, *id)).collect();
        // Each looks twice before it waits: for its queue, and once the store tells.
        let looked = || {
            let looks = server.info(&["INFO", "commandstats"], "cmdstat_evalsha");
            let calls: usize =
                looks.split("calls=").nth(1).and_then(|c| c.split(',').next()?.parse().ok()).unwrap_or(0);
            if calls >= 2 * JOBS { Ok(()) } else { Err(format!("{calls} looks")) }
        };
        tokio::task::block_in_place(|| wait_for("all to wait", looked));
        // Then a while in which nothing happens: signs of life of a process that only listens cost nothing. One slow look at all
        // of them may fall into it, in a few large steps.
        let quiet = || {
            server.ask(&["CONFIG", "RESETSTAT"]);
            std::thread::sleep(AT_ONCE);
            let meanwhile = commands(&server);
            if meanwhile < JOBS as u64 / 10 { Ok(()) } else { Err(format!("{meanwhile} commands while {JOBS} wait")) }
        };
        tokio::task::block_in_place(|| wait_for("the server to be left alone", quiet));
        server.ask(&["CONFIG", "RESETSTAT"]);
        tokio::time::sleep(2 * AT_ONCE).await;
        let meanwhile = commands(&server);
        assert!(meanwhile < JOBS as u64 / 10, "{meanwhile} commands while {JOBS} wait");
        work(&worker).await;
        all_done(waits, LONG).await;
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
        let waited = || match server.ask(&["HGET", "duly:queue:{default}:conf", "waited"]).text().as_str() {
            "" => Err("nobody waits yet".to_owned()),
            _ => Ok(()),
        };
        tokio::task::block_in_place(|| wait_for("somebody to wait", waited));
        proxy.freeze(Direction::Replies);
        work(&worker).await;
        proxy.cut();
        proxy.thaw();
        all_done(waits, LONG).await;
    }
}
