//! Lost queue entries of lock waiters: the waiters still acquire the lock.

use std::time::Duration;

use crate::distributed_locks::location::{Location, MS, in_time};
use test_support::servers::{Binary, Options};
use test_support::until;

const WAITERS: u64 = 3;
/// A few heartbeats; far less than the interval of checks without a notification.
const SOON: Duration = Duration::from_secs(10);

/// Such a loss happens in a failover that loses the last writes, or if an operator deletes keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_with_lost_entries_still_get_the_lock() {
    let server = Options::durable(Binary::Redis).start();
    let location = Location::on(&server.url()).with("lease=600ms");
    let (holder, waiter) = (location.open().await, location.open().await);
    let guard = holder.lock("a").ttl(500 * MS).acquire().await.expect("is free");
    let waiters: Vec<_> = (0..WAITERS)
        .map(|_| {
            let lock = waiter.lock("a").ttl(500 * MS);
            tokio::spawn(async move { lock.acquire().await?.release().await })
        })
        .collect();
    until("all wait", async || {
        holder.lock("a").holder().await.expect("a reply").is_some_and(|held| held.waiters >= WAITERS)
    })
    .await;
    for key in ["lock_waiters", "waiter_index"] {
        let keys = server.send_command(&["KEYS", &format!("*:peers:*:{key}")]);
        keys.list().iter().for_each(|key| assert_eq!(server.send_command(&["DEL", &key.text()]).text(), "1"));
    }
    guard.release().await.expect("is held");
    for waiter in waiters {
        let result = tokio::time::timeout(SOON, waiter).await.expect("in time");
        result.expect("no panic").expect("gets it, and holds it");
    }
}

/// Only this waiter's own entry is lost while others wait, so a missing notification cannot reveal it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_with_lost_entry_waits_again() {
    let server = Options::durable(Binary::Redis).start();
    let location = Location::on(&server.url()).with("lease=600ms");
    let (holder, other, waiter) = (location.open().await, location.open().await, location.open().await);
    let guard = holder.lock("a").acquire().await.expect("is free");
    let wait_for_waiters = async |n: u64| {
        let waiters = async || holder.lock("a").holder().await.expect("a reply").map_or(0, |held| held.waiters);
        until("more wait", async || waiters().await >= n).await;
    };
    let others = tokio::spawn(other.lock("a").acquire());
    wait_for_waiters(1).await;
    let lock = waiter.lock("a").acquire();
    let waiting = tokio::spawn(lock);
    wait_for_waiters(2).await;
    let node = waiter.node_id().expect("waits").to_string();
    let key = |name: &str| server.send_command(&["KEYS", &format!("*:peers:*:{name}")]).list()[0].text();
    let (waiters_key, index_key) = (key("lock_waiters"), key("waiter_index"));
    let all = server.send_command(&["HGETALL", &index_key]);
    let own = all.list().chunks(2).find(|pair| pair[1].text().contains(&node)).expect("waits");
    assert_eq!(server.send_command(&["ZREM", &waiters_key, &own[1].text()]).text(), "1");
    assert_eq!(server.send_command(&["HDEL", &index_key, &own[0].text()]).text(), "1");

    tokio::time::timeout(SOON, wait_for_waiters(2)).await.expect("waits again after a heartbeat or two");
    guard.release().await.expect("is held");
    let first = others.await.expect("no panic").expect("its turn");
    first.release().await.expect("is held");
    let second = in_time(waiting).await.expect("no panic").expect("its turn");
    second.release().await.expect("is held");
}
