//! Locks: acquire, wait, extend, lose.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use duly::Duly;
use duly::lock::Guard;

use crate::peers::location::*;

pub async fn guard_holds_the_lock_until_dropped(location: Location) {
    let duly = location.open().await;
    let guard = duly.lock("a").acquire().await.expect("is free");
    assert!(duly.lock("a").try_acquire().await.expect("replies").is_none());
    assert!(!guard.is_lost());
    let fence = guard.fence();
    drop(guard);
    let next = in_time(duly.lock("a").acquire()).await.expect("is free again");
    assert!(next.fence() > fence);
}

pub async fn two_tasks_of_one_process_exclude_each_other(location: Location) {
    let duly = location.open().await;
    let (inside, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let (duly, inside, most) = (duly.clone(), inside.clone(), most.clone());
            tokio::spawn(async move {
                let guard = duly.lock("a").acquire().await.expect("acquires");
                most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.release().await.expect("is held");
            })
        })
        .collect();
    for task in tasks {
        in_time(task).await.expect("no panic");
    }
    assert_eq!(most.load(Ordering::SeqCst), 1);
}

pub async fn acquire_times_out_after_its_wait(location: Location) {
    let duly = location.open().await;
    let _guard = duly.lock("a").acquire().await.expect("is free");
    let began = Instant::now();
    let refused = duly.lock("a").wait(300 * MS).acquire().await.expect_err("is held");
    assert_eq!(refused.code(), "timeout");
    let took = began.elapsed();
    assert!(took >= 300 * MS && took < 300 * MS + 2 * SECOND, "waited {took:?}");
}

pub async fn wait_of_zero_acquires_a_free_lock(location: Location) {
    let duly = location.open().await;
    let acquire = async || duly.lock("a").wait(Duration::ZERO).acquire().await;
    let guard = acquire().await.expect("is free");
    assert_eq!(acquire().await.expect_err("is held").code(), "timeout");
    guard.release().await.expect("is held");
    acquire().await.expect("is free again").release().await.expect("is held");
}

pub async fn waiters_acquire_in_order(location: Location) {
    let (one, two) = (location.open().await, location.open().await);
    let guard = one.lock("a").acquire().await.expect("is free");
    let (sender, mut served) = tokio::sync::mpsc::unbounded_channel();
    for n in 0..6u64 {
        let duly = if n % 2 == 0 { &one } else { &two };
        let (lock, sender) = (duly.lock("a"), sender.clone());
        tokio::spawn(async move {
            let guard = lock.acquire().await.expect("acquires");
            sender.send((n, guard.fence())).expect("is received");
            guard.release().await.expect("is held");
        });
        until("the waiters are counted", async || {
            one.lock("a").holder().await.expect("reads").is_some_and(|held| held.waiters == n + 1)
        })
        .await;
    }
    guard.release().await.expect("is held");
    let mut last = guard.fence();
    for n in 0..6 {
        let (waiter, fence) = in_time(served.recv()).await.expect("acquires");
        assert_eq!(waiter, n);
        assert!(fence > last);
        last = fence;
    }
}

pub async fn guard_extends_its_lock(location: Location) {
    let duly = location.open().await;
    let guard = duly.lock("a").ttl(600 * MS).acquire().await.expect("is free");
    tokio::time::sleep(2 * SECOND).await;
    assert!(!guard.is_lost(), "it was extended");
    assert!(location.open().await.lock("a").try_acquire().await.expect("replies").is_none());
    guard.extend().await.expect("is held");
    guard.release().await.expect("is held");
}

pub async fn second_release_returns_not_held(location: Location) {
    let duly = location.open().await;
    let guard = duly.lock("a").acquire().await.expect("is free");
    guard.release().await.expect("is held");
    assert_eq!(guard.release().await.expect_err("is not").code(), "conflict");
    assert_eq!(guard.extend().await.expect_err("is not").code(), "conflict");
    let _other = duly.lock("a").try_acquire().await.expect("replies").expect("is free");
    drop(guard);
    // The thread handles requests in order: the dropped guard is processed before this call.
    let node = duly.node_id().expect("is one");
    duly.call("duly.ping", &()).node(node).reply::<serde_json::Value>().await.expect("replies");
    assert!(duly.lock("a").try_acquire().await.expect("replies").is_none(), "the lock of the next owner is still held");
}

pub async fn guard_of_a_broken_lock_is_lost(location: Location) {
    let (duly, other) = (location.open().await, location.open().await);
    // The next extension would come long after this test has failed.
    let guard = duly.lock("a").ttl(10 * TIMEOUT).acquire().await.expect("is free");
    assert_eq!(other.locks().break_lock("a").await.expect("breaks"), 1);
    let next = other.lock("a").try_acquire().await.expect("replies").expect("is free");
    in_time(guard.lost()).await;
    assert!(guard.is_lost());
    assert_eq!(guard.release().await.expect_err("not held").code(), "conflict");
    assert!(!next.is_lost());
    next.extend().await.expect("the lock of the next owner is still held");
}

pub async fn dropped_waiter_is_removed(location: Location) {
    let (one, two) = (location.open().await, location.open().await);
    let guard = one.lock("a").acquire().await.expect("is free");
    let waiting = tokio::spawn(two.lock("a").acquire());
    until("the waiters are counted", async || {
        one.lock("a").holder().await.expect("reads").is_some_and(|held| held.waiters == 1)
    })
    .await;
    waiting.abort();
    until("the waiters are counted", async || {
        one.lock("a").holder().await.expect("reads").is_some_and(|held| held.waiters == 0)
    })
    .await;
    guard.release().await.expect("is held");
    assert!(one.lock("a").try_acquire().await.expect("replies").is_some(), "no waiter blocks it");
}

pub async fn unpolled_acquire_does_not_block_other_waiters(location: Location) {
    let (one, two) = (location.open().await, location.open().await);
    let guard = one.lock("a").acquire().await.expect("is free");
    let mut unpolled = Box::pin(two.lock("a").ttl(SECOND).acquire());
    assert!(tokio::time::timeout(300 * MS, &mut unpolled).await.is_err(), "waits");
    assert_does_not_block(&one, guard, unpolled).await;
}

/// Fails if a request that is not polled blocks another one after the release of the lock.
async fn assert_does_not_block(duly: &Duly, guard: Guard, unpolled: impl Future<Output = duly::Result<Guard>>) {
    guard.release().await.expect("is held");
    let next = in_time(duly.lock("a").acquire()).await.expect("acquires");
    next.release().await.expect("is held");
    let late = in_time(unpolled).await.expect("acquires when it is polled again");
    assert!(late.fence() > next.fence());
}

/// The request is sent, but its reply is never polled.
pub async fn acquire_polled_once_does_not_block_other_waiters(location: Location) {
    let (one, two) = (location.open().await, location.open().await);
    drop(two.lock("another").acquire().await.expect("is free"));
    let guard = one.lock("a").acquire().await.expect("is free");
    let mut unpolled = Box::pin(two.lock("a").ttl(SECOND).acquire());
    assert!(poll_once(&mut unpolled).await.is_none());
    until("the waiters are counted", async || {
        one.lock("a").holder().await.expect("reads").is_some_and(|held| held.waiters == 1)
    })
    .await;
    assert_does_not_block(&one, guard, unpolled).await;
}

/// The first request of the process is not polled while the process announces itself.
pub async fn acquire_polled_once_does_not_block_other_locks(location: Location) {
    let duly = location.open().await;
    let mut unpolled = Box::pin(duly.lock("a").acquire());
    assert!(poll_once(&mut unpolled).await.is_none());
    in_time(duly.lock("b").acquire()).await.expect("is free").release().await.expect("is held");
    in_time(unpolled).await.expect("is free").release().await.expect("is held");
}

pub async fn thousand_waiters_acquire_one_after_the_other(location: Location) {
    // Files and clusters are slower; fewer waiters prove the same.
    let waiters: u32 = if location.is_one_server() || location.is_memory() { 1_000 } else { 300 };
    let handles = [location.open().await, location.open().await, location.open().await];
    let guard = handles[0].lock("a").acquire().await.expect("is free");
    let (inside, served) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let tasks: Vec<_> = (0..waiters as usize)
        .map(|n| {
            let (duly, inside, served) = (handles[n % 3].clone(), inside.clone(), served.clone());
            tokio::spawn(async move {
                let guard = duly.lock("a").acquire().await.expect("acquires");
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "alone");
                served.fetch_add(1, Ordering::SeqCst);
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.release().await.expect("is held");
            })
        })
        .collect();
    until("all waiters are counted", async || {
        let held = handles[0].lock("a").holder().await.expect("reads");
        held.is_some_and(|held| held.waiters == u64::from(waiters))
    })
    .await;
    guard.release().await.expect("is held");
    for task in tasks {
        tokio::time::timeout(3 * TIMEOUT, task).await.expect("in time").expect("no panic");
    }
    assert_eq!(served.load(Ordering::SeqCst), waiters);
}

pub async fn at_most_n_guards_hold_a_lock_with_n_slots(location: Location) {
    let duly = location.open().await;
    let mut guards = Vec::new();
    for _ in 0..3 {
        guards.push(duly.lock("a").slots(3).try_acquire().await.expect("replies").expect("a slot is free"));
    }
    let mut slots: Vec<u32> = guards.iter().map(duly::lock::Guard::slot).collect();
    slots.sort_unstable();
    assert_eq!(slots, [1, 2, 3]);
    assert!(duly.lock("a").slots(3).try_acquire().await.expect("replies").is_none());
    assert_eq!(duly.lock("a").holders().await.expect("reads").len(), 3);
    let freed = guards.remove(1);
    freed.release().await.expect("is held");
    let again = duly.lock("a").slots(3).acquire().await.expect("a slot is free again");
    assert_eq!(again.slot(), freed.slot());
    assert!(again.fence() > freed.fence());
}

pub async fn holder_returns_the_current_holder(location: Location) {
    let (duly, other) = (location.open().await, location.open().await);
    assert!(duly.lock("a").holder().await.expect("reads").is_none());
    let guard = duly.lock("a").note("nightly report").ttl(10 * SECOND).acquire().await.expect("is free");
    let held = other.lock("a").holder().await.expect("reads").expect("is held");
    assert_eq!((held.fence, held.owner, held.slot), (guard.fence(), guard.owner(), 1));
    assert_eq!(held.note, "nightly report");
    assert_eq!(held.node, duly.node_id().expect("is one"));
    let ttl = held.expires.duration_since(held.since.expect("is known")).expect("ends later");
    assert!(ttl > 9 * SECOND && ttl < 12 * SECOND, "{ttl:?}");
}

pub async fn invalid_input_is_rejected_and_acquires_nothing(location: Location) {
    let duly = location.open().await;
    let long = "x".repeat(duly::bounds::LOCK_NAME_BYTES_MAX + 1);
    for lock in [
        duly.lock(""),
        duly.lock(long),
        duly.lock("a\nb"),
        duly.lock("a").ttl(Duration::ZERO),
        duly.lock("a").ttl(Duration::MAX),
        duly.lock("a").slots(0),
        duly.lock("a").slots(u32::MAX),
        duly.lock("a").note("\u{7}"),
    ] {
        assert_eq!(lock.clone().try_acquire().await.expect_err("is refused").code(), "invalid");
        assert_eq!(lock.acquire().await.expect_err("is refused").code(), "invalid");
    }
    assert!(duly.locks().list(None).await.expect("lists").locks.is_empty());
    let guard = duly.lock("a").wait(Duration::MAX).acquire().await.expect("a long wait is accepted");
    assert!(guard.remaining() > Duration::ZERO);
}
