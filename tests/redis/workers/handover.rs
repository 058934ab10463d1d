//! Handover of jobs between workers, after a crash and after a clean stop.

use std::time::{Duration, Instant};

use duly::store::Node;
use duly::store::{Claim, JobStore};
use duly::worker::{Event, RunSummary};
use duly::{Duly, JobId, Push, State};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{Location, on_each};
use crate::helpers::{LONG, open, until};
use test_support::servers::{Binary, Options, Proxy};

on_each![
    jobs_of_a_silent_node_start_elsewhere,
    stopped_worker_hands_its_jobs_over_at_once,
    dropped_worker_hands_its_jobs_over_at_once,
];

const JOBS: usize = 10;
const LEASE: Duration = Duration::from_secs(1);
/// The documented time, and the limit for a loaded machine.
const GOAL: Duration = Duration::from_millis(1_500);
const ALLOWED: Duration = Duration::from_secs(15);

/// A running worker and its events.
struct RunningWorker {
    stop: CancellationToken,
    run: JoinHandle<duly::Result<RunSummary>>,
    started: mpsc::UnboundedReceiver<(JobId, Instant)>,
}

impl RunningWorker {
    /// Starts a worker whose jobs end at once or never.
    async fn start(duly: &Duly, grace: Duration, complete: bool) -> RunningWorker {
        let (sender, started) = mpsc::unbounded_channel();
        let (joined, mut joins) = mpsc::unbounded_channel();
        let stop = CancellationToken::new();
        let worker = duly
            .worker()
            .queue("default", JOBS)
            .grace(grace)
            .on_kind("long", move |_| async move {
                if !complete {
                    std::future::pending::<()>().await;
                }
            })
            .on_event(move |event| match event {
                Event::Joined { .. } => drop(joined.send(())),
                Event::Started { held, .. } => drop(sender.send((held.job.id, Instant::now()))),
                _ => {}
            });
        let run = tokio::spawn(worker.run_until(stop.clone()));
        tokio::time::timeout(LONG, joins.recv()).await.expect("in time").expect("joins");
        RunningWorker { stop, run, started }
    }

    /// Waits for the next jobs to start. Returns their sorted ids, and the time of the last start.
    async fn wait_for_starts(&mut self, count: usize) -> (Vec<JobId>, Instant) {
        let (mut ids, mut last) = (Vec::new(), Instant::now());
        while ids.len() < count {
            let (id, started_at) =
                tokio::time::timeout(LONG, self.started.recv()).await.expect("in time").expect("works");
            ids.push(id);
            last = started_at;
        }
        ids.sort();
        (ids, last)
    }

    async fn end(self) -> RunSummary {
        self.stop.cancel();
        tokio::time::timeout(LONG, self.run).await.expect("in time").expect("no panic").expect("complete well")
    }
}

async fn push_all(duly: &Duly) -> Vec<JobId> {
    let pushed = duly.push_all((0..JOBS).map(|n| Push::new("long", n.to_string()))).await.expect("pushes");
    let mut ids: Vec<JobId> = pushed.iter().map(|pushed| pushed.id()).collect();
    ids.sort();
    ids
}

/// One worker is disconnected from the server while another is connected.
async fn jobs_of_a_disconnected_worker_start_elsewhere(binary: Binary) {
    let server = Options::durable(binary).start();
    let proxy = Proxy::start(server.port());
    let (near, far) = (format!("{}?lease=1s", server.url()), format!("redis://{}?lease=1s", proxy.address()));
    let (near, far) = (open(near).await, open(far).await);
    let ids = push_all(&near).await;
    let mut cut_off = RunningWorker::start(&far, Duration::ZERO, false).await;
    assert_eq!(cut_off.wait_for_starts(JOBS).await.0, ids);
    let mut survivor = RunningWorker::start(&near, LONG, true).await;
    // A node may take jobs back only after a whole lease of contact.
    tokio::time::sleep(LEASE * 2).await;

    let cut_at = Instant::now();
    proxy.refuse();
    proxy.cut();
    let (started, last) = survivor.wait_for_starts(JOBS).await;
    let elapsed = last - cut_at;
    println!("{binary:?}: {JOBS} jobs of a silent node started after {elapsed:?}; the goal is {GOAL:?}");
    assert_eq!(started, ids);
    assert!(elapsed < ALLOWED, "elapsed {elapsed:?}");
    assert!(elapsed >= LEASE / 3, "not before its lease was over: {elapsed:?}");
    until("all are done", async || near.queues().counts().await.expect("counts")[0].done == JOBS as u64).await;
    for id in ids {
        let record = near.jobs().get(id).await.expect("a reply").expect("is there");
        assert_eq!((record.state, record.crashes, record.attempts), (State::Done, 1, 0));
    }
    assert_eq!(survivor.end().await.acked, JOBS as u64);

    // It reconnects, and learns that it has lost all its jobs.
    proxy.accept();
    let summary = cut_off.end().await;
    assert_eq!((summary.acked, summary.released), (0, 0), "{summary:?}");
    assert_eq!(near.queues().counts().await.expect("counts")[0].done, JOBS as u64);
}

#[tokio::test]
async fn jobs_of_a_disconnected_worker_start_elsewhere_on_redis() {
    jobs_of_a_disconnected_worker_start_elsewhere(Binary::Redis).await;
}

#[tokio::test]
async fn jobs_of_a_disconnected_worker_start_elsewhere_on_valkey() {
    jobs_of_a_disconnected_worker_start_elsewhere(Binary::Valkey).await;
}

/// Repeats the message with which a push delivered a job.
const DELIVER_AGAIN: &str = "local held = redis.call('HGETALL', KEYS[1])
    local word = held[2]:sub(38, 53) .. held[1] .. redis.call('HGET', KEYS[2], held[1])
    return redis.call('SPUBLISH', ARGV[1] .. held[2]:sub(1, 36) .. ':long', word)";

#[tokio::test]
async fn job_delivered_twice_starts_once_and_a_stopped_worker_unsubscribes() {
    let server = Options::durable(Binary::Redis).start();
    let duly = open(server.url()).await;
    let subscriptions = || server.send_command(&["PUBSUB", "SHARDCHANNELS", "duly:queue:*"]).list().len();
    let has_idle_node = || !server.send_command(&["ZRANGE", "duly:queue:{default}:idle", "0", "-1"]).list().is_empty();
    let mut busy = RunningWorker::start(&duly, Duration::ZERO, false).await;
    until("it has_idle_node", async || has_idle_node()).await;

    let first = duly.push(Push::new("long", "1")).await.expect("pushes").id();
    assert_eq!(busy.wait_for_starts(1).await.0, [first]);
    let keys = ["duly:queue:{default}:running", "duly:queue:{default}:job", "duly:queue:{default}:delivery:"];
    assert_eq!(
        server.send_command(&["EVAL", DELIVER_AGAIN, "2", keys[0], keys[1], keys[2]]).text(),
        "1",
        "it was delivered"
    );
    let second = duly.push(Push::new("long", "2")).await.expect("pushes").id();
    assert_eq!(busy.wait_for_starts(1).await.0, [second], "and not the first again");
    assert_eq!(subscriptions(), 2, "for wakes, and for jobs of its kind");
    assert_eq!(busy.end().await.released, 2);
    assert_eq!(subscriptions(), 0);
}

/// A node that sends one heartbeat and no more.
async fn jobs_of_a_silent_node_start_elsewhere(location: Location) {
    let duly = open(location.with("lease=1s")).await;
    let ids = push_all(&duly).await;
    let (store, mut node) = (duly.store(), Node::fresh(vec!["default".into()]));
    node.lease = LEASE;
    store.heartbeat(&node).await.expect("sends a heartbeat");
    let last_heartbeat = Instant::now();
    let claim = Claim::new("default", JOBS);
    assert_eq!(store.claim(node.id, claim).await.expect("claims").jobs.len(), JOBS);
    let mut survivor = RunningWorker::start(&duly, LONG, true).await;
    let (started, last) = survivor.wait_for_starts(JOBS).await;
    println!("{JOBS} jobs of a silent node started {:?} after its last heartbeat", last - last_heartbeat);
    assert_eq!(started, ids);
    assert!(last - last_heartbeat < ALLOWED && last - last_heartbeat >= LEASE, "after {:?}", last - last_heartbeat);
    survivor.end().await;
}

/// Long before any lease expires.
const LONG_LEASE: &str = "lease=60s";

async fn stopped_worker_hands_its_jobs_over_at_once(location: Location) {
    let (one, other) = (open(location.with(LONG_LEASE)).await, open(location.with(LONG_LEASE)).await);
    let ids = push_all(&one).await;
    let mut leaving = RunningWorker::start(&one, Duration::from_millis(20), false).await;
    assert_eq!(leaving.wait_for_starts(JOBS).await.0, ids);
    let mut successor = RunningWorker::start(&other, LONG, true).await;
    let stopped = Instant::now();
    assert_eq!(leaving.end().await.released, JOBS as u64);
    let (started, last) = successor.wait_for_starts(JOBS).await;
    println!("handed over within {:?}", last - stopped);
    assert_eq!(started, ids);
    assert!(last - stopped < ALLOWED, "elapsed {:?}", last - stopped);
    assert_eq!(successor.end().await.acked, JOBS as u64);
    let record = one.jobs().get(ids[0]).await.expect("a reply").expect("is there");
    assert_eq!((record.attempts, record.crashes), (0, 0), "neither an attempt nor a crash");
}

async fn dropped_worker_hands_its_jobs_over_at_once(location: Location) {
    let (one, other) = (open(location.with(LONG_LEASE)).await, open(location.with(LONG_LEASE)).await);
    let ids = push_all(&one).await;
    let mut dropped = RunningWorker::start(&one, LONG, false).await;
    assert_eq!(dropped.wait_for_starts(JOBS).await.0, ids);
    let mut successor = RunningWorker::start(&other, LONG, true).await;
    // Idle first: it is woken, and does not learn of the jobs by its next heartbeat only.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let stopped = Instant::now();
    dropped.run.abort();
    let (started, last) = successor.wait_for_starts(JOBS).await;
    println!("taken over within {:?}", last - stopped);
    assert_eq!(started, ids);
    assert!(last - stopped < ALLOWED, "elapsed {:?}", last - stopped);
    successor.end().await;
}
