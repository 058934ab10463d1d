//! Fences grow over everything that can happen to a store.

use duly::{Duly, Fence};

use crate::distributed_locks::child::Start;
#[cfg(feature = "redis")]
use crate::distributed_locks::counter::TTL;
use crate::distributed_locks::location::{LONG, Location, in_time};
#[cfg(feature = "redis")]
use test_support::servers::{Binary, Fsync, Options, Sentinel};

/// Takes both locks a few times; answers the fences of one after the other, which must grow over both.
async fn some(duly: &Duly) -> Vec<Fence> {
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
        fences.extend(some(&duly).await);
    }
    assert_grow(&fences);
}

/// A holder is killed with its lock; the next one has a greater fence, on a file at once, elsewhere after its time.
async fn over_a_killed_holder(location: &Location) {
    let mut fences = Vec::new();
    for n in 0..3 {
        let file = location.dir().join(format!("counter-{n}"));
        let mut holder = Start::on("late", location.url(), &file, "checked").run();
        assert_eq!(holder.word(), "has looked");
        let duly = location.open().await;
        fences.push(duly.lock("counter").holder().await.expect("looks").expect("is held").fence);
        let waits = tokio::spawn(duly.lock("counter").wait(LONG).acquire());
        holder.kill();
        let next = in_time(waits).await.expect("no panic").expect("its time is over some day");
        fences.push(next.fence());
        next.release().await.expect("is held");
        fences.extend(some(&duly).await);
    }
    assert_grow(&fences);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_grow_after_killed_holders_on_a_file() {
    over_a_killed_holder(&Location::file()).await;
}

#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_grow_after_killed_holders_on_a_server() {
    over_a_killed_holder(&Location::on(&test_support::servers::redis().url()).with("lease=1s")).await;
}

#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_grow_after_a_server_kill() {
    for binary in [Binary::Redis, Binary::Valkey] {
        let server = Options::new(binary).aof(Fsync::Always).start();
        let location = Location::on(&server.url()).with("lease=1s");
        let duly = location.open().await;
        let mut fences = some(&duly).await;
        for _ in 0..3 {
            // Also while somebody holds it: a lock outlives the server.
            let guard = duly.lock("held").ttl(LONG).acquire().await.expect("is free");
            fences.push(guard.fence());
            server.kill();
            server.restart();
            assert!(
                location.open().await.lock("held").try_acquire().await.expect("answers").is_none(),
                "is remembered"
            );
            guard.release().await.expect("is held");
            fences.extend(some(&duly).await);
        }
        assert_grow(&fences);
    }
}

/// Asks until the store answers; the lock must be somebody's.
#[cfg(feature = "redis")]
async fn still_held(duly: &Duly) {
    loop {
        match duly.lock("held").try_acquire().await {
            Ok(None) => return,
            Ok(Some(_)) => panic!("two hold it"),
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
        tokio::time::sleep(crate::distributed_locks::location::MS).await;
    }
}

#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_grow_after_failovers() {
    let servers = Sentinel::start(Options::new(Binary::Redis).aof(Fsync::EverySecond), Sentinel::QUICK);
    let duly = Location::on(&servers.url()).with("lease=1s").with("replicas=1").open().await;
    let mut fences = some(&duly).await;
    for _ in 0..2 {
        let guard = duly.lock("held").ttl(LONG).acquire().await.expect("is free");
        fences.push(guard.fence());
        tokio::task::block_in_place(|| {
            let old = servers.kill_master();
            servers.wait_for_failover(old);
            servers.heal();
        });
        assert!(!guard.is_lost() && TTL < guard.remaining(), "a lock outlives a failover");
        in_time(still_held(&duly)).await;
        guard.release().await.expect("is held");
        fences.extend(some(&duly).await);
    }
    assert_grow(&fences);
}
