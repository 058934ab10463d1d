//! Fences increase across all events of a store.

use duly::{Duly, Fence};

use crate::distributed_locks::child::Start;
#[cfg(feature = "redis")]
use crate::distributed_locks::counter::TTL;
use crate::distributed_locks::location::{LONG, Location, in_time};
#[cfg(feature = "redis")]
use test_support::servers::{Binary, Fsync, Options, Sentinel};

/// Acquires and releases both locks a few times. Returns the fences, which must increase across both.
async fn acquire_some(duly: &Duly) -> Vec<Fence> {
    let mut fences = Vec::new();
    for n in 0..6 {
        let name = ["counter", "other"][n % 2];
        let guard = in_time(duly.lock(name).ttl(LONG).acquire()).await.expect("gets it");
        fences.push(guard.fence());
        guard.release().await.expect("is held");
    }
    fences
}

#[track_caller]
fn assert_grow(fences: &[Fence]) {
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_grow_after_a_file_is_reopened() {
    let location = Location::file();
    let mut fences = Vec::new();
    for _ in 0..4 {
        let duly = location.open().await;
        fences.extend(acquire_some(&duly).await);
    }
    assert_grow(&fences);
}

/// A holder is killed while it holds the lock. The next holder gets a greater fence: at once on a file, after the
/// expiry elsewhere.
async fn fences_grow_after_killed_holders(location: &Location) {
    let mut fences = Vec::new();
    for n in 0..3 {
        let file = location.dir().join(format!("counter-{n}"));
        let mut holder = Start::on("late_writer", location.url(), &file, "checked").run();
        assert_eq!(holder.next_message(), "has read");
        let duly = location.open().await;
        fences.push(duly.lock("counter").holder().await.expect("a reply").expect("is held").fence);
        let waiter = tokio::spawn(duly.lock("counter").wait(LONG).acquire());
        holder.kill();
        let next = in_time(waiter).await.expect("no panic").expect("its time is over acquire_some day");
        fences.push(next.fence());
        next.release().await.expect("is held");
        fences.extend(acquire_some(&duly).await);
    }
    assert_grow(&fences);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_grow_after_killed_holders_on_a_file() {
    fences_grow_after_killed_holders(&Location::file()).await;
}

#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_grow_after_killed_holders_on_a_server() {
    fences_grow_after_killed_holders(&Location::on(&test_support::servers::redis().url()).with("lease=1s")).await;
}

#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_grow_after_a_server_kill() {
    for binary in [Binary::Redis, Binary::Valkey] {
        let server = Options::new(binary).aof(Fsync::Always).start();
        let location = Location::on(&server.url()).with("lease=1s");
        let duly = location.open().await;
        let mut fences = acquire_some(&duly).await;
        for _ in 0..3 {
            // Also while the lock is held: a lock survives the server.
            let guard = duly.lock("held").ttl(LONG).acquire().await.expect("is free");
            fences.push(guard.fence());
            server.kill();
            server.restart();
            assert!(
                location.open().await.lock("held").try_acquire().await.expect("a reply").is_none(),
                "is remembered"
            );
            guard.release().await.expect("is held");
            fences.extend(acquire_some(&duly).await);
        }
        assert_grow(&fences);
    }
}

/// Retries until the store replies; the lock must be held.
#[cfg(feature = "redis")]
async fn wait_until_held(duly: &Duly) {
    let is_held = async || match duly.lock("held").try_acquire().await {
        Ok(None) => true,
        Ok(Some(_)) => panic!("two clients hold it"),
        Err(error) => {
            assert!(error.is_retryable(), "{error}");
            false
        }
    };
    test_support::until("the store replies", is_held).await;
}

#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_grow_after_failovers() {
    let servers = Sentinel::start(Options::durable(Binary::Redis), Sentinel::QUICK);
    let duly = Location::on(&servers.url()).with("lease=1s").with("replicas=1").open().await;
    let mut fences = acquire_some(&duly).await;
    for _ in 0..2 {
        let guard = duly.lock("held").ttl(LONG).acquire().await.expect("is free");
        fences.push(guard.fence());
        tokio::task::block_in_place(|| {
            let old = servers.kill_master();
            servers.wait_for_failover(old);
            servers.heal();
        });
        assert!(!guard.is_lost() && TTL < guard.remaining(), "a lock survives a failover");
        in_time(wait_until_held(&duly)).await;
        guard.release().await.expect("is held");
        fences.extend(acquire_some(&duly).await);
    }
    assert_grow(&fences);
}
