//! A master that dies, and a replica that takes its place. With `replicas=1` nothing acknowledged is lost.

use duly::JobId;

use crate::servers::{Binary, Cluster, Fsync, Options, Sentinel};
use crate::storm::Storm;

fn options() -> Options {
    Options::new(Binary::Redis).aof(Fsync::EverySecond)
}

fn url(servers: &str) -> String {
    format!("{servers}?prefix={}&lease=1s&keep=0&replicas=1", JobId::fresh())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinel_is_followed_to_the_new_master() {
    let servers = Sentinel::start(options(), Sentinel::QUICK);
    let storm = Storm::on(&url(&servers.url())).await;
    for _ in 0..2 {
        storm.until_pushed(200).await;
        let old = servers.kill_master();
        servers.wait_for_failover(old);
        servers.heal();
    }
    storm.until_pushed(200).await;
    assert_eq!(storm.end().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_is_followed_to_the_new_master() {
    let servers = Cluster::start(options(), Cluster::QUICK);
    let storm = Storm::on(&url(&servers.url())).await;
    for queue in ["{red}", "{green}"] {
        storm.until_pushed(200).await;
        servers.kill_master_of(queue);
        servers.wait_until_ok();
        servers.heal();
    }
    storm.until_pushed(200).await;
    assert_eq!(storm.end().await, 0);
}
