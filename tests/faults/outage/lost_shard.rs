//! A Cluster loses one shard with its replica: clients that start meanwhile work with the others.

use std::time::{Duration, Instant};

use duly::store::Node;
use duly::store::{Claim, JobStore};
use duly::worker::Event;
use duly::{Duly, Push};
use tokio_util::sync::CancellationToken;

use test_support::servers::{Binary, CALM, Cluster, Options};
use test_support::until;

/// Far longer than the detection of an unreachable server takes; well below a supervisor's timeout.
const OPEN_MAX: Duration = Duration::from_secs(10);
/// Timeout of all waits; every wait of a passing test is far shorter.
const LONG: Duration = Duration::from_secs(60);

fn cluster() -> Cluster {
    let options = Options::durable(Binary::Redis).set("cluster-require-full-coverage", "no");
    Cluster::start(options, CALM)
}

/// Kills a master and its replica, and returns the master's address.
fn lose_shard(servers: &Cluster, master: usize) -> String {
    let replica = servers.replica_of(master);
    servers.nodes()[replica].kill();
    servers.nodes()[master].kill();
    servers.nodes()[master].address()
}

/// Returns a queue on a server other than these.
fn queue_not_on(servers: &Cluster, excluded: &[usize]) -> String {
    let mut names = (0..).map(|n| format!("q{n}"));
    names.find(|queue| !excluded.contains(&servers.master_of(&format!("{{{queue}}}")))).expect("some")
}

/// Opens a store while a server is down, and checks the duration and the health warning.
async fn open_without(servers: &Cluster, lost: &str) -> Duly {
    let start = Instant::now();
    let duly = Duly::open(servers.url()).await.expect("opens");
    assert!(start.elapsed() < OPEN_MAX, "opening took {:?}", start.elapsed());
    let health = duly.health().await.expect("a report");
    let warning =
        health.warnings.iter().find(|warning| warning.contains(lost)).expect("a warning names the lost server");
    assert!(warning.contains("does not reply"), "{warning}");
    assert!(health.durability.contains("the last second or two"), "{}", health.durability);
    duly
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_opens_without_one_of_its_shards() {
    let servers = cluster();
    let peers_master = servers.master_of("{duly}");
    let lost = (0..3).find(|master| *master != peers_master).expect("another");
    let (queue, lost_queue) =
        (queue_not_on(&servers, &[lost]), queue_not_on(&servers, &[peers_master, 3 - peers_master - lost]));
    let before = Duly::open(servers.url()).await.expect("opens");
    before.push_all([&queue, &lost_queue].map(|queue| Push::new("mark", "null").queue(queue))).await.expect("pushes");
    let address = lose_shard(&servers, lost);

    let duly = open_without(&servers, &address).await;
    duly.push(Push::new("mark", "null").queue(&queue)).await.expect("pushes");
    let (acked, mut acks) = tokio::sync::mpsc::unbounded_channel();
    let worker = duly.worker().queue(&queue, 10).queue(&lost_queue, 10).on_kind("mark", |_| async {});
    let worker = worker.on_event(move |event| {
        if let Event::Settled { held, .. } = event {
            let _ = acked.send(held.job.queue.clone());
        }
    });
    let stop = CancellationToken::new();
    let run = tokio::spawn(worker.run_until(stop.clone()));
    for _ in 0..2 {
        assert_eq!(tokio::time::timeout(LONG, acks.recv()).await.expect("in time"), Some(queue.clone()));
    }
    let error = duly.push(Push::new("mark", "null").queue(&lost_queue)).await.expect_err("its server is down");
    assert!(error.is_retryable(), "{error}");

    tokio::task::block_in_place(|| servers.heal());
    duly.push(Push::new("mark", "null").queue(&lost_queue)).await.expect("pushes");
    assert_eq!(tokio::time::timeout(LONG, acks.recv()).await.expect("in time"), Some(lost_queue), "without a restart");
    stop.cancel();
    run.await.expect("no panic").expect("ends well");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_opens_without_its_peers_shard() {
    let servers = cluster();
    let single = servers.url().replacen("redis+cluster", "redis", 1);
    let single = single.split(',').next().expect("a server");
    let error = Duly::open(single).await.expect_err("one server of several").to_string();
    assert!(error.contains("redis+cluster://"), "{error}");
    let peers_master = servers.master_of("{duly}");
    let queue = queue_not_on(&servers, &[peers_master]);
    let another = queue_not_on(&servers, &[peers_master, servers.master_of(&format!("{{{queue}}}"))]);
    let before = Duly::open(servers.url()).await.expect("opens");
    before.push(Push::new("mark", "null").queue(&queue)).await.expect("pushes");
    let address = lose_shard(&servers, peers_master);

    let duly = open_without(&servers, &address).await;
    let (store, node) = (duly.store(), Node::fresh(vec![queue.clone()]));
    store.heartbeat(&node).await.expect("sends a heartbeat");
    let claim = Claim::new(queue, 10);
    assert_eq!(store.claim(node.id, claim).await.expect("claims").jobs.len(), 1);
    // The first push of a process to a queue, which cannot register the queue's name now.
    duly.push(Push::new("mark", "null").queue(&another)).await.expect("pushes without it");
    tokio::task::block_in_place(|| servers.heal());
    // Without another push or a worker on the queue.
    until("the queue is registered", async || {
        duly.queues().counts().await.is_ok_and(|queues| queues.iter().any(|found| found.queue == another))
    })
    .await;
}
