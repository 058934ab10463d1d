//! The server that has the names of all queues is away: queues on other servers go on.

use std::time::{Duration, Instant};

use duly::store::Claim;
use duly::{Duly, Node, Push};

use test_support::servers::{Binary, CALM, Cluster, Fsync, Options};

/// A beat that takes longer would cost a node its lease of 3 s.
const BEAT_MAX: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heartbeats_and_pushes_continue_without_the_peers_shard() {
    let options = Options::new(Binary::Redis).aof(Fsync::EverySecond).set("cluster-require-full-coverage", "no");
    let servers = Cluster::start(options, CALM);
    let hall = servers.master_of("{duly}");
    let mut elsewhere = (0..).map(|n| format!("q{n}")).filter(|q| servers.master_of(&format!("{{{q}}}")) != hall);
    let (old, new) = (elsewhere.next().expect("some"), elsewhere.next().expect("some"));

    let duly = Duly::open(servers.url()).await.expect("opens");
    let store = duly.store();
    let mut node = Node::fresh(vec![old.clone()]);
    store.heartbeat(&node).await.expect("beats");
    duly.push(Push::new("mark", "null").queue(&old)).await.expect("pushes");
    let claim = Claim { queue: old.clone(), max: 1, resync: false, suspect: None, kinds: None };
    assert_eq!(store.claim(node.id, claim).await.expect("claims").jobs.len(), 1);

    let replica = servers.replica_of(hall);
    servers.nodes()[replica].kill();
    servers.nodes()[hall].kill();
    duly.counts().await.expect_err("nobody knows all queues");
    // Also in a queue that this process has not worked before.
    node.queues.push(new);
    for _ in 0..5 {
        let start = Instant::now();
        let beaten = store.heartbeat(&node).await.expect("beats");
        assert!(start.elapsed() < BEAT_MAX, "a beat took {:?}", start.elapsed());
        assert_eq!((beaten.held, beaten.unreachable), (vec![(old.clone(), 1)], vec![]));
        let start = Instant::now();
        duly.push(Push::new("mark", "null").queue(&old)).await.expect("pushes");
        assert!(start.elapsed() < BEAT_MAX, "a push took {:?}", start.elapsed());
    }
    tokio::task::block_in_place(|| servers.heal());
    // The name that could not be put there comes with a later beat.
    let found = async {
        loop {
            let _ = store.heartbeat(&node).await;
            match duly.counts().await {
                Ok(counts) if counts.len() == 2 => break counts,
                _ => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    };
    let counts = tokio::time::timeout(Duration::from_secs(30), found).await.expect("both queues are known");
    let of_old = counts.iter().find(|count| count.queue == old).expect("known");
    assert_eq!((of_old.running, of_old.ready), (1, 5), "{counts:?}");
}
