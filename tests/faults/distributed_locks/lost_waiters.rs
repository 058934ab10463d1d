//! Places in a line that a server has forgotten: whoever waits gets the lock all the same.

use std::time::Duration;

use crate::distributed_locks::location::{Location, MS, in_time};
use test_support::servers::{Binary, Options};

const WAITERS: u64 = 3;
/// A few signs of life later; far less than it takes those who look although nobody says so.
const SOON: Duration = Duration::from_secs(10);

/// As a failover does that loses the last writes, or an operator who deletes keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_with_lost_entries_still_get_the_lock() {
    let server = Options::new(Binary::Redis).aof(test_support::servers::Fsync::EverySecond).start();
    let location = Location::on(&server.url()).with("lease=600ms");
    let (holder, waiter) = (location.open().await, location.open().await);
    let guard = holder.lock("a").ttl(500 * MS).acquire().await.expect("is free");
    let waiting: Vec<_> = (0..WAITERS)
        .map(|_| {
            let lock = waiter.lock("a").ttl(500 * MS);
            tokio::spawn(async move { lock.acquire().await?.release().await })
        })
        .collect();
    in_time(async {
        while holder.lock("a").holder().await.expect("looks").is_none_or(|held| held.waiters < WAITERS) {
            tokio::time::sleep(MS).await;
        }
    })
    .await;
    for key in ["line", "places"] {
        let keys = server.ask(&["KEYS", &format!("*:hall:*:{key}")]);
        keys.list().iter().for_each(|key| assert_eq!(server.ask(&["DEL", &key.text()]).text(), "1"));
    }
    guard.release().await.expect("is held");
    for one in waiting {
        let one = tokio::time::timeout(SOON, one).await.expect("in time");
        one.expect("no panic").expect("gets it, and holds it");
    }
}

/// Only its own place is gone, and others stand in line: no silence tells it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_with_lost_entry_waits_again() {
    let server = Options::new(Binary::Redis).aof(test_support::servers::Fsync::EverySecond).start();
    let location = Location::on(&server.url()).with("lease=600ms");
    let (holder, other, waiter) = (location.open().await, location.open().await, location.open().await);
    let guard = holder.lock("a").acquire().await.expect("is free");
    let waiting = |n: u64| {
        let lock = holder.lock("a");
        in_time(async move {
            while lock.holder().await.expect("looks").is_none_or(|held| held.waiters < n) {
                tokio::time::sleep(MS).await;
            }
        })
    };
    let others = tokio::spawn(other.lock("a").acquire());
    waiting(1).await;
    let lock = waiter.lock("a").acquire();
    let one = tokio::spawn(lock);
    waiting(2).await;
    let node = waiter.node_id().expect("waits").to_string();
    let key = |what: &str| server.ask(&["KEYS", &format!("*:hall:*:{what}")]).list()[0].text();
    let (line, places) = (key("line"), key("places"));
    let all = server.ask(&["HGETALL", &places]);
    let own = all.list().chunks(2).find(|pair| pair[1].text().contains(&node)).expect("stands in line");
    assert_eq!(server.ask(&["ZREM", &line, &own[1].text()]).text(), "1");
    assert_eq!(server.ask(&["HDEL", &places, &own[0].text()]).text(), "1");

    tokio::time::timeout(SOON, waiting(2)).await.expect("stands in line again after a sign of life or two");
    guard.release().await.expect("is held");
    let first = others.await.expect("no panic").expect("its turn");
    first.release().await.expect("is held");
    let second = in_time(one).await.expect("no panic").expect("its turn");
    second.release().await.expect("is held");
}
