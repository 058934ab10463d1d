//! Jobs from one worker to another: when one dies, and when one goes in good order.

use std::time::{Duration, Instant};

use duly::store::Claim;
use duly::{Duly, Event, JobId, Node, Push, RunSummary, State};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{Location, on_each};
use crate::helpers::{LONG, durable, open, until};
use test_support::servers::{Binary, Proxy};

on_each![
    jobs_of_a_silent_node_start_elsewhere,
    stopped_worker_hands_its_jobs_over_at_once,
    dropped_worker_hands_its_jobs_over_at_once,
];

const JOBS: usize = 10;
const LEASE: Duration = Duration::from_secs(1);
/// What users are told, and what a loaded machine is allowed.
const GOAL: Duration = Duration::from_millis(1_500);
const ALLOWED: Duration = Duration::from_secs(15);

/// A running worker, and what it tells.
struct Running {
    stop: CancellationToken,
    run: JoinHandle<duly::Result<RunSummary>>,
    started: mpsc::UnboundedReceiver<(JobId, Instant)>,
}

impl Running {
    /// A worker whose jobs take as long as they are let.
    async fn start(duly: &Duly, grace: Duration, ends: bool) -> Running {
        let (tell, started) = mpsc::unbounded_channel();
        let (joined, mut here) = mpsc::unbounded_channel();
        let stop = CancellationToken::new();
        let worker = duly
            .worker()
            .queue("default", JOBS)
            .grace(grace)
            .on_kind("long", move |_| async move {
                if !ends {
                    std::future::pending::<()>().await;
                }
            })
            .on_event(move |event| match event {
                Event::Joined { .. } => drop(joined.send(())),
                Event::Started { held, .. } => drop(tell.send((held.job.id, Instant::now()))),
                _ => {}
            });
        let run = tokio::spawn(worker.run_until(stop.clone()));
        tokio::time::timeout(LONG, here.recv()).await.expect("in time").expect("joins");
        Running { stop, run, started }
    }

    /// The next jobs that start, in the order of their ids; and when the last one did.
    async fn starts(&mut self, count: usize) -> (Vec<JobId>, Instant) {
        let (mut ids, mut last) = (Vec::new(), Instant::now());
        while ids.len() < count {
            let (id, at) = tokio::time::timeout(LONG, self.started.recv()).await.expect("in time").expect("works");
            ids.push(id);
            last = at;
        }
        ids.sort();
        (ids, last)
    }

    async fn end(self) -> RunSummary {
        self.stop.cancel();
        tokio::time::timeout(LONG, self.run).await.expect("in time").expect("no panic").expect("ends well")
    }
}

async fn push_all(duly: &Duly) -> Vec<JobId> {
    let pushed = duly.push_all((0..JOBS).map(|n| Push::new("long", n.to_string()))).await.expect("pushes");
    let mut ids: Vec<JobId> = pushed.iter().map(|pushed| pushed.id()).collect();
    ids.sort();
    ids
}

/// A worker that is cut off from the server, while another is well.
async fn what_a_worker_without_a_server_held_starts_elsewhere(binary: Binary) {
    let server = durable(binary).start();
    let proxy = Proxy::start(server.port());
    let (near, far) = (format!("{}?lease=1s", server.url()), format!("redis://{}?lease=1s", proxy.address()));
    let (near, far) = (open(near).await, open(far).await);
    let ids = push_all(&near).await;
    let mut cut_off = Running::start(&far, Duration::ZERO, false).await;
    assert_eq!(cut_off.starts(JOBS).await.0, ids);
    let mut survivor = Running::start(&near, LONG, true).await;
    // Who takes from another must have been in contact for a whole lease himself.
    tokio::time::sleep(LEASE * 2).await;

    let cut = Instant::now();
    proxy.refuse();
    proxy.cut();
    let (started, last) = survivor.starts(JOBS).await;
    let took = last - cut;
    println!("{binary:?}: {JOBS} jobs of a silent node started after {took:?}; the goal is {GOAL:?}");
    assert_eq!(started, ids);
    assert!(took < ALLOWED, "took {took:?}");
    assert!(took >= LEASE / 3, "not before its lease was over: {took:?}");
    until("all are done", async || near.counts().await.expect("counts")[0].done == JOBS as u64).await;
    for id in ids {
        let record = near.get(id).await.expect("looks").expect("is there");
        assert_eq!((record.state, record.crashes, record.attempts), (State::Done, 1, 0));
    }
    assert_eq!(survivor.end().await.acked, JOBS as u64);

    // It comes back, and learns that nothing of it is its own any more.
    proxy.accept();
    let tally = cut_off.end().await;
    assert_eq!((tally.acked, tally.released), (0, 0), "{tally:?}");
    assert_eq!(near.counts().await.expect("counts")[0].done, JOBS as u64);
}

#[tokio::test]
async fn jobs_of_a_disconnected_worker_start_elsewhere_on_redis() {
    what_a_worker_without_a_server_held_starts_elsewhere(Binary::Redis).await;
}

#[tokio::test]
async fn jobs_of_a_disconnected_worker_start_elsewhere_on_valkey() {
    what_a_worker_without_a_server_held_starts_elsewhere(Binary::Valkey).await;
}

/// Says again what a push has said when it put a job into somebody's hands.
const AGAIN: &str = "local held = redis.call('HGETALL', KEYS[1])
    local word = held[2]:sub(38, 53) .. held[1] .. redis.call('HGET', KEYS[2], held[1])
    return redis.call('SPUBLISH', ARGV[1] .. held[2]:sub(1, 36) .. ':long', word)";

#[tokio::test]
async fn job_delivered_twice_starts_once_and_a_stopped_worker_unsubscribes() {
    let server = durable(Binary::Redis).start();
    let duly = open(server.url()).await;
    let listening = || server.ask(&["PUBSUB", "SHARDCHANNELS", "duly:queue:*"]).list().len();
    let waits = || !server.ask(&["ZRANGE", "duly:queue:{default}:idle", "0", "-1"]).list().is_empty();
    let mut busy = Running::start(&duly, Duration::ZERO, false).await;
    until("it waits", async || waits()).await;

    let first = duly.push(Push::new("long", "1")).await.expect("pushes").id();
    assert_eq!(busy.starts(1).await.0, [first]);
    let keys = ["duly:queue:{default}:held", "duly:queue:{default}:job", "duly:queue:{default}:job:"];
    assert_eq!(server.ask(&["EVAL", AGAIN, "2", keys[0], keys[1], keys[2]]).text(), "1", "it was put into its hands");
    let second = duly.push(Push::new("long", "2")).await.expect("pushes").id();
    assert_eq!(busy.starts(1).await.0, [second], "and not the first again");
    assert_eq!(listening(), 2, "for wakes, and for jobs of its kind");
    assert_eq!(busy.end().await.released, 2);
    assert_eq!(listening(), 0);
}

/// A node that beats once and never again.
async fn jobs_of_a_silent_node_start_elsewhere(location: Location) {
    let duly = open(location.with("lease=1s")).await;
    let ids = push_all(&duly).await;
    let (store, mut node) = (duly.store(), Node::fresh(vec!["default".into()]));
    node.lease = LEASE;
    store.heartbeat(&node).await.expect("beats");
    let silent = Instant::now();
    let claim = Claim { queue: "default".into(), max: JOBS, resync: false, suspect: None, kinds: None };
    assert_eq!(store.claim(node.id, claim).await.expect("claims").jobs.len(), JOBS);
    let mut survivor = Running::start(&duly, LONG, true).await;
    let (started, last) = survivor.starts(JOBS).await;
    println!("{JOBS} jobs of a silent node started {:?} after its last beat", last - silent);
    assert_eq!(started, ids);
    assert!(last - silent < ALLOWED && last - silent >= LEASE, "after {:?}", last - silent);
    survivor.end().await;
}

/// Long before any lease is over.
const UNHURRIED: &str = "lease=60s";

async fn stopped_worker_hands_its_jobs_over_at_once(location: Location) {
    let (one, other) = (open(location.with(UNHURRIED)).await, open(location.with(UNHURRIED)).await);
    let ids = push_all(&one).await;
    let mut leaver = Running::start(&one, Duration::from_millis(20), false).await;
    assert_eq!(leaver.starts(JOBS).await.0, ids);
    let mut heir = Running::start(&other, LONG, true).await;
    let stopped = Instant::now();
    assert_eq!(leaver.end().await.released, JOBS as u64);
    let (started, last) = heir.starts(JOBS).await;
    println!("handed over within {:?}", last - stopped);
    assert_eq!(started, ids);
    assert!(last - stopped < ALLOWED, "took {:?}", last - stopped);
    assert_eq!(heir.end().await.acked, JOBS as u64);
    let record = one.get(ids[0]).await.expect("looks").expect("is there");
    assert_eq!((record.attempts, record.crashes), (0, 0), "neither an attempt nor a crash");
}

async fn dropped_worker_hands_its_jobs_over_at_once(location: Location) {
    let (one, other) = (open(location.with(UNHURRIED)).await, open(location.with(UNHURRIED)).await);
    let ids = push_all(&one).await;
    let mut dropped = Running::start(&one, LONG, false).await;
    assert_eq!(dropped.starts(JOBS).await.0, ids);
    let mut heir = Running::start(&other, LONG, true).await;
    // Idle first: it is woken, or it would learn of it only with its next beat.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let stopped = Instant::now();
    dropped.run.abort();
    let (started, last) = heir.starts(JOBS).await;
    println!("taken over within {:?}", last - stopped);
    assert_eq!(started, ids);
    assert!(last - stopped < ALLOWED, "took {:?}", last - stopped);
    heir.end().await;
}
