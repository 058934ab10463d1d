//! The server with the queue registry is down: queues on other servers keep working.

use std::time::{Duration, Instant};

use duly::store::Node;
use duly::store::{Claim, JobStore};
use duly::{Duly, Push};

use test_support::servers::{Binary, CALM, Cluster, Options};
use test_support::until;

/// A slower heartbeat would cost a node its lease of 3 s.
const HEARTBEAT_MAX: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heartbeats_and_pushes_continue_without_the_peers_shard() {
    let options = Options::durable(Binary::Redis).set("cluster-require-full-coverage", "no");
    let servers = Cluster::start(options, CALM);
    let peers_master = servers.master_of("{duly}");
    let mut other_queues =
        (0..).map(|n| format!("q{n}")).filter(|q| servers.master_of(&format!("{{{q}}}")) != peers_master);
    let (old, new) = (other_queues.next().expect("some"), other_queues.next().expect("some"));

    let duly = Duly::open(servers.url()).await.expect("opens");
    let store = duly.store();
    let mut node = Node::fresh(vec![old.clone()]);
    store.heartbeat(&node).await.expect("sends a heartbeat");
    duly.push(Push::new("mark", "null").queue(&old)).await.expect("pushes");
    let claim = Claim::new(old.clone(), 1);
    assert_eq!(store.claim(node.id, claim).await.expect("claims").jobs.len(), 1);

    let replica = servers.replica_of(peers_master);
    servers.nodes()[replica].kill();
    servers.nodes()[peers_master].kill();
    duly.queues().counts().await.expect_err("the queue registry is unreachable");
    // Also in a queue that is new to this process.
    node.queues.push(new);
    for _ in 0..5 {
        let start = Instant::now();
        let reply = store.heartbeat(&node).await.expect("sends a heartbeat");
        assert!(start.elapsed() < HEARTBEAT_MAX, "a heartbeat took {:?}", start.elapsed());
        assert_eq!((reply.held, reply.unreachable), (vec![(old.clone(), 1)], vec![]));
        let start = Instant::now();
        duly.push(Push::new("mark", "null").queue(&old)).await.expect("pushes");
        assert!(start.elapsed() < HEARTBEAT_MAX, "a push took {:?}", start.elapsed());
    }
    tokio::task::block_in_place(|| servers.heal());
    // A later heartbeat registers the name.
    let mut counts = Vec::new();
    until("both queues are registered", async || {
        let _ = store.heartbeat(&node).await;
        counts = duly.queues().counts().await.unwrap_or_default();
        counts.len() == 2
    })
    .await;
    let old_counts = counts.iter().find(|count| count.queue == old).expect("registered");
    assert_eq!((old_counts.running, old_counts.ready), (1, 5), "{counts:?}");
}
