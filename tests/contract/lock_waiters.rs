//! The line before a lock: first come, first served, as far as they live.

use std::time::Duration;

use duly::store::{LOCK_WAITERS_CHECKED_MAX, LockOwner, LockRequest, LockTurn, Notification, Recipient};
use futures_util::future::join_all;

use crate::locks::{TTL, answer, ask, ask_for, refused, take, unlock};
use crate::test_store::*;

/// An acquisition that waits for its turn.
async fn waiter(store: &TestStore, guest: &'static str) -> LockRequest {
    LockRequest { wait: true, ..ask(store, guest).await }
}

/// Stands in line from now on.
async fn waiting(store: &TestStore, guest: &'static str) -> LockRequest {
    let ask = waiter(store, guest).await;
    refused(store, &ask).await;
    ask
}

/// Holds the lock.
async fn holding(store: &TestStore, guest: &'static str) -> LockRequest {
    let ask = ask(store, guest).await;
    take(store, &ask).await;
    ask
}

fn turn(ask: &LockRequest) -> Notification {
    Notification::LockTurn { name: ask.name.clone(), owner: ask.owner }
}

/// Nothing was said to this guest: the next thing that it hears is said now.
async fn heard_nothing(store: &TestStore, guest: &'static str, ear: &mut Ear) {
    let node = store.guest(guest).await;
    assert_eq!(store.store.send(Recipient::Node(node), b"now").await.expect("sends"), 1);
    assert_eq!(ear.next().await, Notification::Message(b"now".into()));
}

pub async fn waiters_acquire_in_order_of_arrival(store: TestStore) {
    let mut holder = holding(&store, "a").await;
    let mut line = Vec::new();
    for (ahead, guest) in ["b", "c", "b", "d"].into_iter().enumerate() {
        let ask = waiter(&store, guest).await;
        assert_eq!(refused(&store, &ask).await.waiters_ahead as usize, ahead);
        line.push(ask);
    }
    while !line.is_empty() {
        assert!(unlock(&store, &holder).await);
        for (ahead, late) in line.iter().enumerate().skip(1).rev() {
            assert_eq!(refused(&store, late).await.waiters_ahead as usize, ahead);
        }
        holder = line.remove(0);
        take(&store, &holder).await;
    }
}

pub async fn expired_lock_goes_to_the_first_waiter(store: TestStore) {
    let a = holding(&store, "a").await;
    let (b, c) = (waiting(&store, "b").await, waiting(&store, "c").await);
    store.advance(TTL + MS).await;
    refused(&store, &c).await;
    refused(&store, &a).await; // that it was its own does not help
    take(&store, &b).await;
}

pub async fn request_without_wait_does_not_overtake_waiters(store: TestStore) {
    let a = holding(&store, "a").await;
    let b = waiting(&store, "b").await;
    let hasty = ask(&store, "c").await;
    assert_eq!(refused(&store, &hasty).await.waiters_ahead, 1);
    assert!(unlock(&store, &a).await);
    refused(&store, &hasty).await;
    take(&store, &b).await;
    assert!(unlock(&store, &b).await);
    take(&store, &ask(&store, "d").await).await; // who did not wait left nothing behind
}

/// It may not have heard the first time, or nobody may want its place any more: then it gives it up.
pub async fn refused_request_for_a_free_lock_notifies_the_first_waiter(store: TestStore) {
    let mut ear = store.listen("b").await;
    let a = holding(&store, "a").await;
    let b = waiting(&store, "b").await;
    assert!(unlock(&store, &a).await);
    assert_eq!(ear.next().await, turn(&b));
    refused(&store, &ask(&store, "c").await).await;
    assert_eq!(ear.next().await, turn(&b), "told once more");
    take(&store, &b).await;
    refused(&store, &ask(&store, "c").await).await;
    heard_nothing(&store, "b", &mut ear).await;
}

pub async fn waiter_keeps_its_position_on_repeated_request(store: TestStore) {
    let a = holding(&store, "a").await;
    let (b, c) = (waiting(&store, "b").await, waiting(&store, "c").await);
    for _ in 0..5 {
        store.advance(SECOND).await;
        assert_eq!(refused(&store, &b).await.waiters_ahead, 0);
        assert_eq!(refused(&store, &c).await.waiters_ahead, 1);
    }
    let listed = store.store.locks(Some("l"), None).await.expect("lists").locks;
    assert_eq!(listed[0].waiters, 2, "one place each");
    assert!(unlock(&store, &a).await);
    refused(&store, &c).await;
    take(&store, &b).await;
}

pub async fn release_notifies_the_first_waiter(store: TestStore) {
    let a = holding(&store, "a").await;
    let (mut b_hears, mut c_hears) = (store.listen("b").await, store.listen("c").await);
    let (b, c) = (waiting(&store, "b").await, waiting(&store, "c").await);
    heard_nothing(&store, "b", &mut b_hears).await;
    assert!(unlock(&store, &a).await);
    assert_eq!(b_hears.next().await, turn(&b));
    heard_nothing(&store, "c", &mut c_hears).await;

    take(&store, &b).await;
    assert!(unlock(&store, &b).await);
    assert_eq!(c_hears.next().await, turn(&c));
}

pub async fn first_of_two_waiters_of_one_node_is_notified(store: TestStore) {
    let a = holding(&store, "a").await;
    let mut hears = store.listen("b").await;
    let (one, two) = (waiting(&store, "b").await, waiting(&store, "b").await);
    assert!(unlock(&store, &a).await);
    assert_eq!(hears.next().await, turn(&one));
    take(&store, &one).await;
    assert!(unlock(&store, &one).await);
    assert_eq!(hears.next().await, turn(&two));
}

pub async fn rejected_release_notifies_no_waiter(store: TestStore) {
    let a = holding(&store, "a").await;
    let mut hears = store.listen("b").await;
    waiting(&store, "b").await;
    assert!(!unlock(&store, &LockRequest { owner: LockOwner::fresh(), ..a }).await);
    heard_nothing(&store, "b", &mut hears).await;
}

pub async fn waiter_of_a_dead_node_is_skipped(store: TestStore) {
    let a = holding(&store, "a").await;
    let mut hears = store.listen("c").await;
    waiting(&store, "b").await;
    let c = waiting(&store, "c").await;
    store.silence("b");
    store.advance(past_the_lease()).await;
    assert!(unlock(&store, &a).await);
    assert_eq!(hears.next().await, turn(&c));
    take(&store, &c).await;
}

pub async fn waiter_of_a_withdrawn_node_is_skipped(store: TestStore) {
    let a = holding(&store, "a").await;
    let mut hears = store.listen("c").await;
    waiting(&store, "b").await;
    let c = waiting(&store, "c").await;
    store.depart("b").await;
    assert_eq!(refused(&store, &c).await.waiters_ahead, 0);
    assert!(unlock(&store, &a).await);
    assert_eq!(hears.next().await, turn(&c));
    take(&store, &c).await;
}

/// Told that it is its turn, it dies before it takes the lock.
pub async fn waiter_that_dies_at_its_turn_does_not_block_the_lock(store: TestStore) {
    let a = holding(&store, "a").await;
    let b = waiting(&store, "b").await;
    let c = waiting(&store, "c").await;
    assert!(unlock(&store, &a).await);
    store.silence("b");
    refused(&store, &c).await;
    store.advance(past_the_lease()).await;
    let next = LockTurn { name: "l".into(), first_waiter: Some(c.owner), expires_in: Duration::ZERO };
    assert_eq!(store.attend("c", &["l"]).await.turns, [next]);
    take(&store, &c).await;
    assert!(!unlock(&store, &b).await);
}

pub async fn waiter_that_gives_up_passes_its_turn_on(store: TestStore) {
    let a = holding(&store, "a").await;
    let (mut c_hears, mut d_hears) = (store.listen("c").await, store.listen("d").await);
    let b = waiting(&store, "b").await;
    let c = waiting(&store, "c").await;
    let d = waiting(&store, "d").await;
    assert!(!unlock(&store, &b).await, "it held nothing");
    heard_nothing(&store, "c", &mut c_hears).await;
    assert_eq!(refused(&store, &c).await.waiters_ahead, 0);

    assert!(unlock(&store, &a).await);
    assert_eq!(c_hears.next().await, turn(&c));
    assert!(!unlock(&store, &c).await, "its turn, but it does not want it any more");
    assert_eq!(d_hears.next().await, turn(&d));
    take(&store, &d).await;
}

/// A turn that nobody wants: it may come late, when its owner has the lock.
pub async fn cancelled_wait_keeps_the_hold(store: TestStore) {
    let leave = async |ask: &LockRequest| store.store.cancel_wait(ask).await.expect("answers");
    for (name, slots) in [("one", 1), ("two", 2)] {
        let holder = LockRequest { slots, ..ask_for(&store, "a", name).await };
        take(&store, &holder).await;
        leave(&holder).await;
        assert_eq!(store.store.locks(Some(name), None).await.expect("lists").locks.len(), 1, "nobody waits");
        let other = LockRequest { slots: 1, wait: true, ..ask_for(&store, "b", name).await };
        refused(&store, &other).await;
        leave(&holder).await;
        leave(&other).await;
        let hold = &store.store.locks(Some(name), None).await.expect("lists").locks;
        assert_eq!((hold.len(), hold[0].owner, hold[0].waiters), (1, holder.owner, 0), "who waited has left");
        assert!(unlock(&store, &holder).await, "it was held all the time");
    }

    let a = holding(&store, "a").await;
    let mut hears = store.listen("c").await;
    let (b, c) = (waiting(&store, "b").await, waiting(&store, "c").await);
    assert!(unlock(&store, &a).await);
    leave(&b).await;
    assert_eq!(hears.next().await, turn(&c), "the next in line is told");
    take(&store, &c).await;
}

pub async fn ahead_counts_only_live_waiters(store: TestStore) {
    holding(&store, "a").await;
    waiting(&store, "b").await;
    waiting(&store, "c").await;
    let d = waiter(&store, "d").await;
    assert_eq!(refused(&store, &d).await.waiters_ahead, 2);
    store.silence("b");
    store.advance(past_the_lease()).await;
    assert_eq!(refused(&store, &d).await.waiters_ahead, 1);
    assert_eq!(refused(&store, &ask(&store, "a").await).await.waiters_ahead, 2, "also for who does not wait");
}

pub async fn refused_request_returns_when_to_look_again(store: TestStore) {
    let a = holding(&store, "a").await;
    let (b, c) = (waiting(&store, "b").await, waiter(&store, "c").await);
    assert_eq!(refused(&store, &c).await.expires_in, Some(TTL));
    store.advance(1_500 * MS).await;
    assert_eq!(refused(&store, &c).await.expires_in, Some(TTL - 1_500 * MS));
    assert_eq!(store.store.extend_locks(std::slice::from_ref(&a)).await.expect("answers"), [true]);
    assert_eq!(refused(&store, &c).await.expires_in, Some(TTL));
    assert!(unlock(&store, &a).await);
    assert_eq!(refused(&store, &c).await.expires_in, None, "it is free, but b comes first");
    assert_eq!(answer(&store, &b).await.expires_in, None, "it is ours");
}

pub async fn announce_returns_the_next_waiter(store: TestStore) {
    let a = holding(&store, "a").await;
    take(&store, &ask_for(&store, "a", "without a line").await).await;
    let (b, c) = (waiting(&store, "b").await, waiting(&store, "c").await);
    let waits = ["l", "without a line", "never taken"];
    let says = |first: Option<&LockRequest>, ends| LockTurn {
        name: "l".into(),
        first_waiter: first.map(|ask| ask.owner),
        expires_in: ends,
    };

    store.advance(SECOND).await;
    assert_eq!(store.attend("b", &waits).await.turns, [says(Some(&b), TTL - SECOND)]);
    assert_eq!(store.attend("c", &waits).await.turns, [says(None, TTL - SECOND)]);
    assert!(store.attend("c", &[]).await.turns.is_empty(), "only what was asked after");
    assert!(unlock(&store, &a).await);
    assert_eq!(store.attend("b", &waits).await.turns, [says(Some(&b), Duration::ZERO)]);
    assert_eq!(store.attend("c", &waits).await.turns, [says(None, Duration::ZERO)]);

    take(&store, &b).await;
    assert_eq!(store.attend("c", &waits).await.turns, [says(Some(&c), TTL)]);
    store.advance(TTL + MS).await;
    assert_eq!(store.attend("c", &waits).await.turns, [says(Some(&c), Duration::ZERO)], "the hold has ended");
    take(&store, &c).await;
    assert!(store.attend("c", &waits).await.turns.is_empty(), "nobody is left in line");
}

pub async fn announce_returns_lost_waiters(store: TestStore) {
    holding(&store, "a").await;
    let (b, c) = (waiting(&store, "b").await, waiting(&store, "c").await);
    let one_more = waiting(&store, "b").await;
    assert_eq!(store.lost("b", &[&b, &one_more]).await, [], "both stand in line");
    let elsewhere = LockRequest { name: "another".into(), ..b.clone() };
    assert_eq!(store.lost("b", &[&b, &elsewhere]).await, [b.owner], "not in that line");

    store.silence("b");
    store.advance(past_the_lease()).await;
    assert_eq!(refused(&store, &c).await.waiters_ahead, 0, "whoever looks sees that b is gone");
    assert_eq!(store.lost("c", &[&c]).await, []);
    assert_eq!(store.lost("b", &[&b, &one_more]).await, [b.owner, one_more.owner], "b is told when it is back");
    assert_eq!(refused(&store, &b).await.waiters_ahead, 1, "behind c now");
    assert_eq!(store.lost("b", &[&b, &one_more]).await, [one_more.owner]);
    assert!(!unlock(&store, &b).await);
    assert_eq!(store.lost("b", &[&b]).await, [b.owner], "given up");
}

pub async fn two_free_slots_go_to_the_first_two_waiters(store: TestStore) {
    let two = |ask: LockRequest| LockRequest { slots: 2, ..ask };
    let (one, other) = (two(ask(&store, "a").await), two(ask(&store, "a").await));
    take(&store, &one).await;
    take(&store, &other).await;
    let mut line = Vec::new();
    for guest in ["b", "c", "d"] {
        let ask = two(waiter(&store, guest).await);
        refused(&store, &ask).await;
        line.push(ask);
    }
    assert!(unlock(&store, &one).await);
    refused(&store, &line[1]).await;
    assert!(unlock(&store, &other).await);
    assert_eq!(refused(&store, &line[2]).await.waiters_ahead, 2);
    let (_, second) = take(&store, &line[1]).await;
    assert_eq!(refused(&store, &line[2]).await.waiters_ahead, 1, "the free slot is for b");
    let (_, first) = take(&store, &line[0]).await;
    assert_eq!(first + second, 3, "slots 1 and 2");
    assert_eq!(refused(&store, &line[2]).await.expires_in, Some(TTL));
}

pub async fn break_lock_ends_all_holds_and_notifies_the_next_waiter(store: TestStore) {
    let two = |ask: LockRequest| LockRequest { slots: 2, ..ask };
    for guest in ["a", "b"] {
        take(&store, &two(ask(&store, guest).await)).await;
    }
    let mut hears = store.listen("c").await;
    let c = two(waiter(&store, "c").await);
    refused(&store, &c).await;
    assert_eq!(store.store.break_lock("l").await.expect("breaks"), 2);
    assert_eq!(hears.next().await, turn(&c));
    take(&store, &c).await;
}

pub async fn waiters_of_different_locks_are_separate(store: TestStore) {
    let a = holding(&store, "a").await;
    let other = ask_for(&store, "a", "other").await;
    take(&store, &other).await;
    let mut hears = store.listen("b").await;
    let b = waiting(&store, "b").await;
    assert!(unlock(&store, &other).await);
    heard_nothing(&store, "b", &mut hears).await;
    take(&store, &ask_for(&store, "c", "other").await).await;
    assert!(unlock(&store, &a).await);
    assert_eq!(hears.next().await, turn(&b));
}

pub async fn lock_with_many_waiters_is_handed_on_in_bounded_steps(store: TestStore) {
    const DEAD: usize = 2 * LOCK_WAITERS_CHECKED_MAX + LOCK_WAITERS_CHECKED_MAX / 2;
    let a = holding(&store, "a").await;
    let dead = waiter(&store, "b").await;
    let line: Vec<LockRequest> = (0..DEAD).map(|_| LockRequest { owner: LockOwner::fresh(), ..dead.clone() }).collect();
    join_all(line.iter().map(|ask| refused(&store, ask))).await;
    let c = waiting(&store, "c").await;
    store.silence("b");
    store.advance(past_the_lease()).await;
    assert!(unlock(&store, &a).await);

    for _ in 0..10 {
        if answer(&store, &c).await.hold.is_some() {
            return;
        }
    }
    panic!("each ask should have cleared up to {LOCK_WAITERS_CHECKED_MAX} of {DEAD} places");
}
