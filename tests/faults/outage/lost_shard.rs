//! One shard of a Cluster is lost, with its replica: who starts meanwhile works with the others.

use std::time::{Duration, Instant};

use duly::store::Claim;
use duly::{Duly, Event, Node, Push};
use tokio_util::sync::CancellationToken;

use test_support::servers::{Binary, CALM, Cluster, Fsync, Options};

/// Far longer than it takes to see that one server is not there; well under what a supervisor waits for.
const OPEN_MAX: Duration = Duration::from_secs(10);
/// Far longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

fn cluster() -> Cluster {
    let options = Options::new(Binary::Redis).aof(Fsync::EverySecond).set("cluster-require-full-coverage", "no");
    Cluster::start(options, CALM)
}

/// Kills a master for good, and answers its address.
fn lose(servers: &Cluster, master: usize) -> String {
    let replica = servers.replica_of(master);
    servers.nodes()[replica].kill();
    servers.nodes()[master].kill();
    servers.nodes()[master].address()
}

/// A queue on another server than these.
fn elsewhere(servers: &Cluster, than: &[usize]) -> String {
    let mut names = (0..).map(|n| format!("q{n}"));
    names.find(|queue| !than.contains(&servers.master_of(&format!("{{{queue}}}")))).expect("some")
}

/// Opens a store while a server is away, in time, and answers it with what it says about that.
async fn open_without(servers: &Cluster, lost: &str) -> Duly {
    let start = Instant::now();
    let duly = Duly::open(servers.url()).await.expect("opens");
    assert!(start.elapsed() < OPEN_MAX, "opening took {:?}", start.elapsed());
    let health = duly.health().await.expect("tells");
    let warning = health.warnings.iter().find(|warning| warning.contains(lost)).expect("the lost one is named");
    assert!(warning.contains("does not answer"), "{warning}");
    assert!(health.durability.contains("the last second or two"), "{}", health.durability);
    duly
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_opens_without_one_of_its_shards() {
    let servers = cluster();
    let hall = servers.master_of("{duly}");
    let lost = (0..3).find(|master| *master != hall).expect("another");
    let (queue, theirs) = (elsewhere(&servers, &[lost]), elsewhere(&servers, &[hall, 3 - hall - lost]));
    let before = Duly::open(servers.url()).await.expect("opens");
    before.push_all([&queue, &theirs].map(|queue| Push::new("mark", "null").queue(queue))).await.expect("pushes");
    let address = lose(&servers, lost);

    let duly = open_without(&servers, &address).await;
    duly.push(Push::new("mark", "null").queue(&queue)).await.expect("pushes");
    let (acked, mut acks) = tokio::sync::mpsc::unbounded_channel();
    let worker = duly.worker().queue(&queue, 10).queue(&theirs, 10).on_kind("mark", |_| async {});
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
    let error = duly.push(Push::new("mark", "null").queue(&theirs)).await.expect_err("it is away");
    assert!(error.is_retryable(), "{error}");

    tokio::task::block_in_place(|| servers.heal());
    duly.push(Push::new("mark", "null").queue(&theirs)).await.expect("pushes");
    assert_eq!(tokio::time::timeout(LONG, acks.recv()).await.expect("in time"), Some(theirs), "without a restart");
    stop.cancel();
    run.await.expect("no panic").expect("ends well");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_opens_without_its_peers_shard() {
    let servers = cluster();
    let one = servers.url().replacen("redis+cluster", "redis", 1);
    let one = one.split(',').next().expect("a server");
    let refused = Duly::open(one).await.expect_err("one server of several").to_string();
    assert!(refused.contains("redis+cluster://"), "{refused}");
    let hall = servers.master_of("{duly}");
    let queue = elsewhere(&servers, &[hall]);
    let another = elsewhere(&servers, &[hall, servers.master_of(&format!("{{{queue}}}"))]);
    let before = Duly::open(servers.url()).await.expect("opens");
    before.push(Push::new("mark", "null").queue(&queue)).await.expect("pushes");
    let address = lose(&servers, hall);

    let duly = open_without(&servers, &address).await;
    let (store, node) = (duly.store(), Node::fresh(vec![queue.clone()]));
    store.heartbeat(&node).await.expect("beats");
    let claim = Claim { queue, max: 10, resync: false, suspect: None, kinds: None };
    assert_eq!(store.claim(node.id, claim).await.expect("claims").jobs.len(), 1);
    // The first push of a process to a queue, whose name it cannot put where others look for it.
    duly.push(Push::new("mark", "null").queue(&another)).await.expect("pushes all the same");
    tokio::task::block_in_place(|| servers.heal());
    // Without another push, or anybody who works there.
    let found = async {
        while !duly.counts().await.is_ok_and(|queues| queues.iter().any(|found| found.queue == another)) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(LONG, found).await.expect("others find it in time");
}
