//! A master fails and a replica is promoted. With `replicas=1` nothing acknowledged is lost.

use std::collections::BTreeSet;
use std::time::Duration;

use duly::store::Node;
use duly::store::{Claim, JobStore, Wake};
use duly::{Duly, Push};

use crate::outage::load::Load;
use test_support::servers::{Binary, CALM, Cluster, Options, Sentinel};
use test_support::until;

/// Far longer than a message takes; nothing but a message ends this wait.
const LONG: Duration = Duration::from_secs(10);

/// Number of failovers; `DULY_FAILOVERS` sets it.
fn failovers() -> usize {
    test_support::env_number("DULY_FAILOVERS").unwrap_or(2) as usize
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_follow_sentinel_to_the_new_master() {
    let servers = Sentinel::start(Options::durable(Binary::Redis), Sentinel::QUICK);
    let load = Load::begin_with_lost_outcomes(&servers.url()).await;
    for _ in 0..failovers() {
        load.wait_until_pushed(200).await;
        let old = servers.kill_master();
        servers.wait_for_failover(old);
        servers.heal();
    }
    load.wait_until_pushed(200).await;
    assert_eq!(load.end().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_follow_a_cluster_to_the_new_master() {
    let servers = Cluster::start(Options::durable(Binary::Redis), Cluster::QUICK);
    let load = Load::begin_with_lost_outcomes(&servers.url()).await;
    for queue in ["{red}", "{green}"].into_iter().cycle().take(failovers()) {
        load.wait_until_pushed(200).await;
        tokio::task::block_in_place(|| {
            let old = servers.kill_master_of(queue);
            servers.wait_for_failover(queue);
            servers.heal();
            assert_ne!(servers.master_of(queue), old, "another node was promoted");
        });
    }
    load.wait_until_pushed(200).await;
    assert_eq!(load.end().await, 0);
}

/// A paused master keeps its connections open and does not reply. Clients must detect that another node was promoted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_cluster_master_is_left_for_the_new_one() {
    let servers = Cluster::start(Options::durable(Binary::Redis), Cluster::QUICK);
    let load = Load::begin_with_lost_outcomes(&servers.url()).await;
    for queue in ["{red}", "{green}"].into_iter().cycle().take(failovers()) {
        load.wait_until_pushed(200).await;
        let old = servers.master_of(queue);
        servers.nodes()[old].pause();
        assert_ne!(tokio::task::block_in_place(|| servers.master_of(queue)), old, "another node is promoted");
        // The old master still runs, but does not reply.
        load.wait_until_worked().await;
        load.wait_until_pushed(100).await;
        tokio::task::block_in_place(|| servers.heal());
    }
    load.wait_until_pushed(200).await;
    assert_eq!(load.end().await, 0);
}

/// A node is idle in a queue when the master dies. After the failover, pushes wake it with messages.
async fn pushes_wake_after_a_failover(url: &str, fail_over: impl FnOnce()) {
    let (duly, pusher) = (Duly::open(url).await.expect("opens"), Duly::open(url).await.expect("opens"));
    let (store, node) = (duly.store(), Node::fresh(vec!["red".into()]));
    store.heartbeat(&node).await.expect("sends a heartbeat");
    let mut wakes = store.subscribe_wakes(node.id).await.expect("subscribes");
    tokio::task::block_in_place(fail_over);
    until("the new master is found", async || store.heartbeat(&node).await.is_ok()).await;
    for n in 0..5 {
        let claim = Claim::new("red", 10);
        store.claim(node.id, claim).await.expect("claims");
        // Earlier wakes are discarded: from here on only a message can wake.
        while wakes.try_recv().is_ok() {}
        pusher.push(Push::new("mark", "null").queue("red")).await.expect("pushes");
        let wake = tokio::time::timeout(LONG, wakes.recv()).await;
        assert_eq!(wake, Ok(Some(Wake::Queue("red".into()))), "push {n} wakes");
    }
    store.leave(node.id).await.expect("leaves");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pushes_wake_after_a_failover_by_sentinel() {
    let servers = Sentinel::start(Options::durable(Binary::Redis), Sentinel::QUICK);
    pushes_wake_after_a_failover(&servers.url(), || {
        let old = servers.kill_master();
        servers.wait_for_failover(old);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pushes_wake_after_a_failover_in_a_cluster() {
    let servers = Cluster::start(Options::durable(Binary::Redis), Cluster::QUICK);
    pushes_wake_after_a_failover(&servers.url(), || {
        servers.kill_master_of("{red}");
        servers.wait_for_failover("{red}");
    })
    .await;
}

/// The connections of an idle handle close while no Sentinel replies. The old master may have been replaced without
/// knowing it, and writes to it could be lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn master_is_trusted_after_reconnect_only_if_sentinels_name_it() {
    let servers = Sentinel::start(Options::durable(Binary::Redis), Sentinel::QUICK);
    let duly = Duly::open(servers.url()).await.expect("opens");
    let push = async || duly.push(Push::new("mark", "null")).await;
    push().await.expect("pushes");
    let master = &servers.servers()[servers.master()];
    servers.sentinels().iter().for_each(|sentinel| sentinel.pause());
    master.send_command(&["CLIENT", "KILL", "TYPE", "normal"]);
    // Time to notice. If it is too short, the reply is lost, which is an error too.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let error = push().await.expect_err("no Sentinel names a master");
    assert!(matches!(error, duly::Error::Store { .. } | duly::Error::Unknown { .. }), "{error:?}");
    servers.sentinels().iter().for_each(|sentinel| sentinel.resume());
    until("the master is found again", async || push().await.is_ok()).await;
}

/// The server rejects connections beyond the existing ones: a new connection fails, and the existing ones keep
/// working.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn master_at_its_connection_limit_keeps_existing_connections() {
    let servers = Sentinel::start(Options::durable(Binary::Redis), CALM);
    let duly = Duly::open(servers.url()).await.expect("opens");
    let (store, node) = (duly.store(), Node::fresh(vec!["default".into()]));
    let claim = |max| Claim::new("default", max);
    store.heartbeat(&node).await.expect("sends a heartbeat");
    store.claim(node.id, claim(1)).await.expect("claims");
    // More than fits into one reply: the rest would need another connection.
    let long = || Push::new("mark", format!("\"{}\"", "x".repeat(200_000)));
    duly.push_all((0..3).map(|_| long())).await.expect("pushes");
    let master = &servers.servers()[servers.master()];
    let our_connections = || {
        let list = master.send_command(&["CLIENT", "LIST"]).text();
        let our_connections = list.lines().filter(|line| line.contains("name=duly-"));
        our_connections.map(|line| line.split(' ').next().unwrap_or_default().to_owned()).collect::<BTreeSet<String>>()
    };
    let before = our_connections();
    let max_clients = master.send_command(&["CONFIG", "GET", "maxclients"]);
    assert!(before.len() >= 3, "{before:?} of {max_clients:?}");
    // This client occupies the last free connection until it closes.
    let mut client = master.client().expect("connects");
    let now: usize = master.info(&["INFO", "clients"], "connected_clients").parse().expect("a number");
    client.send_command(&["CONFIG", "SET", "maxclients", &(now - 1).to_string()]).expect("sets");
    let result = store.claim(node.id, claim(3)).await.map(|claimed| claimed.jobs.len());
    client.send_command(&["CONFIG", "SET", "maxclients", "10000"]).expect("sets");
    assert!(matches!(result, Err(duly::Error::Unknown { .. })), "{result:?}");
    assert_eq!(before.difference(&our_connections()).count(), 0, "none was closed");
    let held = store.claim(node.id, Claim { resync: true, ..claim(3) }).await.expect("lists its held jobs");
    assert_eq!(held.jobs.len(), 3);
}
