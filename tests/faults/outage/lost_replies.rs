//! Requests that are executed but get no reply: pushes, claims, settles and heartbeats alike.

use std::time::Duration;

use crate::outage::load::Load;
use test_support::servers::{Binary, Options, Proxy};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_replies_lose_nothing() {
    let server = Options::durable(Binary::Redis).start();
    let proxy = Proxy::start(server.port());
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let load = Load::begin(&format!("redis://{}", proxy.address())).await;
    load.wait_until_pushed(50).await;
    proxy.drop_replies(0.05, seed);
    while proxy.dropped() < 50 {
        load.wait_until_pushed(50).await;
    }
    println!("{} replies dropped", proxy.dropped());
    proxy.drop_replies(0.0, seed);
    assert_eq!(load.end().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_connection_cuts_lose_nothing() {
    let server = Options::durable(Binary::Redis).start();
    let proxy = Proxy::start(server.port());
    let load = Load::begin(&format!("redis://{}", proxy.address())).await;
    for _ in 0..5 {
        load.wait_until_pushed(50).await;
        proxy.refuse();
        proxy.cut();
        tokio::time::sleep(Duration::from_millis(300)).await;
        proxy.accept();
    }
    load.wait_until_pushed(50).await;
    assert_eq!(load.end().await, 0);
}
