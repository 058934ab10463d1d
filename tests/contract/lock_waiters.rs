//! Waiters of a lock: first come, first served, among live nodes.

use std::time::Duration;

use duly::store::{
    LOCK_WAITERS_CHECKED_MAX, LockOwner, LockRequest, LockStore, LockTurn, Notification, PeerStore, Recipient,
};
use futures_util::future::join_all;

use crate::locks::{TTL, acquire, assert_refused, lock, request, request_for, unlock};
use crate::test_store::*;

/// A request that waits for its turn. It is not sent yet.
async fn waiter(store: &TestStore, peer: &'static str) -> LockRequest {
    LockRequest { wait: true, ..request(store, peer).await }
}

/// Sends a request that waits from now on.
async fn waiting(store: &TestStore, peer: &'static str) -> LockRequest {
    let request = waiter(store, peer).await;
    assert_refused(store, &request).await;
    request
}

/// Sends a request that acquires the lock.
async fn holding(store: &TestStore, peer: &'static str) -> LockRequest {
    let request = request(store, peer).await;
    acquire(store, &request).await;
    request
}

fn turn(request: &LockRequest) -> Notification {
    Notification::LockTurn { name: request.name.clone(), owner: request.owner }
}

/// Fails if this peer has a pending notification.
async fn assert_no_notification(store: &TestStore, peer: &'static str, inbox: &mut Inbox) {
    let node = store.peer(peer).await;
    assert_eq!(store.store.send(Recipient::Node(node), b"now").await.expect("sends"), 1);
    assert_eq!(inbox.next().await, Notification::Message(b"now".into()));
}

pub async fn waiters_acquire_in_order_of_arrival(store: TestStore) {
    let mut holder = holding(&store, "a").await;
    let mut waiters = Vec::new();
    for (ahead, peer) in ["b", "c", "b", "d"].into_iter().enumerate() {
        let request = waiter(&store, peer).await;
        assert_eq!(assert_refused(&store, &request).await.waiters_ahead as usize, ahead);
        waiters.push(request);
    }
    while !waiters.is_empty() {
        assert!(unlock(&store, &holder).await);
        for (ahead, late) in waiters.iter().enumerate().skip(1).rev() {
            assert_eq!(assert_refused(&store, late).await.waiters_ahead as usize, ahead);
        }
        holder = waiters.remove(0);
        acquire(&store, &holder).await;
    }
}

pub async fn expired_lock_goes_to_the_first_waiter(store: TestStore) {
    let a = holding(&store, "a").await;
    let (b, c) = (waiting(&store, "b").await, waiting(&store, "c").await);
    store.advance(TTL + MS).await;
    assert_refused(&store, &c).await;
    assert_refused(&store, &a).await; // its expired hold gives no precedence
    acquire(&store, &b).await;
}

pub async fn request_without_wait_does_not_overtake_waiters(store: TestStore) {
    let a = holding(&store, "a").await;
    let b = waiting(&store, "b").await;
    let hasty = request(&store, "c").await;
    assert_eq!(assert_refused(&store, &hasty).await.waiters_ahead, 1);
    assert!(unlock(&store, &a).await);
    assert_refused(&store, &hasty).await;
    acquire(&store, &b).await;
    assert!(unlock(&store, &b).await);
    acquire(&store, &request(&store, "d").await).await; // a request without wait leaves no waiter
}

/// The first waiter may have missed the first notification, or may have to cancel its wait.
pub async fn refused_request_for_a_free_lock_notifies_the_first_waiter(store: TestStore) {
    let mut inbox = store.subscribe("b").await;
    let a = holding(&store, "a").await;
    let b = waiting(&store, "b").await;
    assert!(unlock(&store, &a).await);
    assert_eq!(inbox.next().await, turn(&b));
    assert_refused(&store, &request(&store, "c").await).await;
    assert_eq!(inbox.next().await, turn(&b), "notified once more");
    acquire(&store, &b).await;
    assert_refused(&store, &request(&store, "c").await).await;
    assert_no_notification(&store, "b", &mut inbox).await;
}

pub async fn waiter_keeps_its_position_on_repeated_request(store: TestStore) {
    let a = holding(&store, "a").await;
    let (b, c) = (waiting(&store, "b").await, waiting(&store, "c").await);
    for _ in 0..5 {
        store.advance(SECOND).await;
        assert_eq!(assert_refused(&store, &b).await.waiters_ahead, 0);
        assert_eq!(assert_refused(&store, &c).await.waiters_ahead, 1);
    }
    let listed = store.store.locks(Some("l"), None).await.expect("lists").locks;
    assert_eq!(listed[0].waiters, 2, "one waiter each");
    assert!(unlock(&store, &a).await);
    assert_refused(&store, &c).await;
    acquire(&store, &b).await;
}

pub async fn release_notifies_the_first_waiter(store: TestStore) {
    let a = holding(&store, "a").await;
    let (mut b_inbox, mut c_inbox) = (store.subscribe("b").await, store.subscribe("c").await);
    let (b, c) = (waiting(&store, "b").await, waiting(&store, "c").await);
    assert_no_notification(&store, "b", &mut b_inbox).await;
    assert!(unlock(&store, &a).await);
    assert_eq!(b_inbox.next().await, turn(&b));
    assert_no_notification(&store, "c", &mut c_inbox).await;

    acquire(&store, &b).await;
    assert!(unlock(&store, &b).await);
    assert_eq!(c_inbox.next().await, turn(&c));
}

pub async fn first_of_two_waiters_of_one_node_is_notified(store: TestStore) {
    let a = holding(&store, "a").await;
    let mut inbox = store.subscribe("b").await;
    let (one, two) = (waiting(&store, "b").await, waiting(&store, "b").await);
    assert!(unlock(&store, &a).await);
    assert_eq!(inbox.next().await, turn(&one));
    acquire(&store, &one).await;
    assert!(unlock(&store, &one).await);
    assert_eq!(inbox.next().await, turn(&two));
}

pub async fn rejected_release_notifies_no_waiter(store: TestStore) {
    let a = holding(&store, "a").await;
    let mut inbox = store.subscribe("b").await;
    waiting(&store, "b").await;
    assert!(!unlock(&store, &LockRequest { owner: LockOwner::fresh(), ..a }).await);
    assert_no_notification(&store, "b", &mut inbox).await;
}

pub async fn waiter_of_a_dead_node_is_skipped(store: TestStore) {
    let a = holding(&store, "a").await;
    let mut inbox = store.subscribe("c").await;
    waiting(&store, "b").await;
    let c = waiting(&store, "c").await;
    store.silence("b");
    store.advance(past_the_lease()).await;
    assert!(unlock(&store, &a).await);
    assert_eq!(inbox.next().await, turn(&c));
    acquire(&store, &c).await;
}

pub async fn waiter_of_a_withdrawn_node_is_skipped(store: TestStore) {
    let a = holding(&store, "a").await;
    let mut inbox = store.subscribe("c").await;
    waiting(&store, "b").await;
    let c = waiting(&store, "c").await;
    store.withdraw("b").await;
    assert_eq!(assert_refused(&store, &c).await.waiters_ahead, 0);
    assert!(unlock(&store, &a).await);
    assert_eq!(inbox.next().await, turn(&c));
    acquire(&store, &c).await;
}

/// The first waiter is notified and dies before it acquires the lock.
pub async fn waiter_that_dies_at_its_turn_does_not_block_the_lock(store: TestStore) {
    let a = holding(&store, "a").await;
    let b = waiting(&store, "b").await;
    let c = waiting(&store, "c").await;
    assert!(unlock(&store, &a).await);
    store.silence("b");
    assert_refused(&store, &c).await;
    store.advance(past_the_lease()).await;
    let next = LockTurn { name: "l".into(), first_waiter: Some(c.owner), expires_in: Duration::ZERO };
    assert_eq!(store.announce("c", &["l"]).await.turns, [next]);
    acquire(&store, &c).await;
    assert!(!unlock(&store, &b).await);
}

pub async fn waiter_that_gives_up_passes_its_turn_on(store: TestStore) {
    let a = holding(&store, "a").await;
    let (mut c_inbox, mut d_inbox) = (store.subscribe("c").await, store.subscribe("d").await);
    let b = waiting(&store, "b").await;
    let c = waiting(&store, "c").await;
    let d = waiting(&store, "d").await;
    assert!(!unlock(&store, &b).await, "it held nothing");
    assert_no_notification(&store, "c", &mut c_inbox).await;
    assert_eq!(assert_refused(&store, &c).await.waiters_ahead, 0);

    assert!(unlock(&store, &a).await);
    assert_eq!(c_inbox.next().await, turn(&c));
    assert!(!unlock(&store, &c).await, "its turn, but it does not want it any more");
    assert_eq!(d_inbox.next().await, turn(&d));
    acquire(&store, &d).await;
}

/// A turn may be cancelled late, when its owner already holds the lock.
pub async fn cancelled_wait_keeps_the_hold(store: TestStore) {
    let cancel = async |request: &LockRequest| store.store.cancel_wait(request).await.expect("replies");
    for (name, slots) in [("one", 1), ("two", 2)] {
        let holder = LockRequest { slots, ..request_for(&store, "a", name).await };
        acquire(&store, &holder).await;
        cancel(&holder).await;
        assert_eq!(store.store.locks(Some(name), None).await.expect("lists").locks.len(), 1, "no waiter");
        let other = LockRequest { slots: 1, wait: true, ..request_for(&store, "b", name).await };
        assert_refused(&store, &other).await;
        cancel(&holder).await;
        cancel(&other).await;
        let hold = &store.store.locks(Some(name), None).await.expect("lists").locks;
        assert_eq!((hold.len(), hold[0].owner, hold[0].waiters), (1, holder.owner, 0), "the waiter is gone");
        assert!(unlock(&store, &holder).await, "it was held all the time");
    }

    let a = holding(&store, "a").await;
    let mut inbox = store.subscribe("c").await;
    let (b, c) = (waiting(&store, "b").await, waiting(&store, "c").await);
    assert!(unlock(&store, &a).await);
    cancel(&b).await;
    assert_eq!(inbox.next().await, turn(&c), "the next waiter is notified");
    acquire(&store, &c).await;
}

pub async fn waiters_ahead_counts_only_live_waiters(store: TestStore) {
    holding(&store, "a").await;
    waiting(&store, "b").await;
    waiting(&store, "c").await;
    let d = waiter(&store, "d").await;
    assert_eq!(assert_refused(&store, &d).await.waiters_ahead, 2);
    store.silence("b");
    store.advance(past_the_lease()).await;
    assert_eq!(assert_refused(&store, &d).await.waiters_ahead, 1);
    assert_eq!(
        assert_refused(&store, &request(&store, "a").await).await.waiters_ahead,
        2,
        "also for a request without wait"
    );
}

pub async fn refused_request_returns_when_to_look_again(store: TestStore) {
    let a = holding(&store, "a").await;
    let (b, c) = (waiting(&store, "b").await, waiter(&store, "c").await);
    assert_eq!(assert_refused(&store, &c).await.expires_in, Some(TTL));
    store.advance(1_500 * MS).await;
    assert_eq!(assert_refused(&store, &c).await.expires_in, Some(TTL - 1_500 * MS));
    assert_eq!(store.store.extend_locks(std::slice::from_ref(&a)).await.expect("replies"), [true]);
    assert_eq!(assert_refused(&store, &c).await.expires_in, Some(TTL));
    assert!(unlock(&store, &a).await);
    assert_eq!(assert_refused(&store, &c).await.expires_in, None, "it is free, but b comes first");
    assert_eq!(lock(&store, &b).await.expires_in, None, "b holds it now");
}

pub async fn announce_returns_the_next_waiter(store: TestStore) {
    let a = holding(&store, "a").await;
    acquire(&store, &request_for(&store, "a", "without waiters").await).await;
    let (b, c) = (waiting(&store, "b").await, waiting(&store, "c").await);
    let locks = ["l", "without waiters", "never taken"];
    let turn = |first: Option<&LockRequest>, expires_in| LockTurn {
        name: "l".into(),
        first_waiter: first.map(|request| request.owner),
        expires_in,
    };

    store.advance(SECOND).await;
    assert_eq!(store.announce("b", &locks).await.turns, [turn(Some(&b), TTL - SECOND)]);
    assert_eq!(store.announce("c", &locks).await.turns, [turn(None, TTL - SECOND)]);
    assert!(store.announce("c", &[]).await.turns.is_empty(), "only the locks that were asked for");
    assert!(unlock(&store, &a).await);
    assert_eq!(store.announce("b", &locks).await.turns, [turn(Some(&b), Duration::ZERO)]);
    assert_eq!(store.announce("c", &locks).await.turns, [turn(None, Duration::ZERO)]);

    acquire(&store, &b).await;
    assert_eq!(store.announce("c", &locks).await.turns, [turn(Some(&c), TTL)]);
    store.advance(TTL + MS).await;
    assert_eq!(store.announce("c", &locks).await.turns, [turn(Some(&c), Duration::ZERO)], "the hold has ended");
    acquire(&store, &c).await;
    assert!(store.announce("c", &locks).await.turns.is_empty(), "no waiter is left");
}

pub async fn announce_returns_lost_waiters(store: TestStore) {
    holding(&store, "a").await;
    let (b, c) = (waiting(&store, "b").await, waiting(&store, "c").await);
    let one_more = waiting(&store, "b").await;
    assert_eq!(store.lost_waiters("b", &[&b, &one_more]).await, [], "both wait");
    let elsewhere = LockRequest { name: "another".into(), ..b.clone() };
    assert_eq!(store.lost_waiters("b", &[&b, &elsewhere]).await, [b.owner], "it does not wait for that lock");

    store.silence("b");
    store.advance(past_the_lease()).await;
    assert_eq!(assert_refused(&store, &c).await.waiters_ahead, 0, "b is gone for every other node");
    assert_eq!(store.lost_waiters("c", &[&c]).await, []);
    assert_eq!(
        store.lost_waiters("b", &[&b, &one_more]).await,
        [b.owner, one_more.owner],
        "b is notified when it is back"
    );
    assert_eq!(assert_refused(&store, &b).await.waiters_ahead, 1, "behind c now");
    assert_eq!(store.lost_waiters("b", &[&b, &one_more]).await, [one_more.owner]);
    assert!(!unlock(&store, &b).await);
    assert_eq!(store.lost_waiters("b", &[&b]).await, [b.owner], "given up");
}

pub async fn two_free_slots_go_to_the_first_two_waiters(store: TestStore) {
    let two = |request: LockRequest| LockRequest { slots: 2, ..request };
    let (one, other) = (two(request(&store, "a").await), two(request(&store, "a").await));
    acquire(&store, &one).await;
    acquire(&store, &other).await;
    let mut waiters = Vec::new();
    for peer in ["b", "c", "d"] {
        let request = two(waiter(&store, peer).await);
        assert_refused(&store, &request).await;
        waiters.push(request);
    }
    assert!(unlock(&store, &one).await);
    assert_refused(&store, &waiters[1]).await;
    assert!(unlock(&store, &other).await);
    assert_eq!(assert_refused(&store, &waiters[2]).await.waiters_ahead, 2);
    let (_, second) = acquire(&store, &waiters[1]).await;
    assert_eq!(assert_refused(&store, &waiters[2]).await.waiters_ahead, 1, "the free slot is for b");
    let (_, first) = acquire(&store, &waiters[0]).await;
    assert_eq!(first + second, 3, "slots 1 and 2");
    assert_eq!(assert_refused(&store, &waiters[2]).await.expires_in, Some(TTL));
}

pub async fn break_lock_ends_all_holds_and_notifies_the_next_waiter(store: TestStore) {
    let two = |request: LockRequest| LockRequest { slots: 2, ..request };
    for peer in ["a", "b"] {
        acquire(&store, &two(request(&store, peer).await)).await;
    }
    let mut inbox = store.subscribe("c").await;
    let c = two(waiter(&store, "c").await);
    assert_refused(&store, &c).await;
    assert_eq!(store.store.break_lock("l", None).await.expect("breaks"), 2);
    assert_eq!(inbox.next().await, turn(&c));
    acquire(&store, &c).await;
}

pub async fn breaking_one_hold_notifies_one_waiter(store: TestStore) {
    let two = |request: LockRequest| LockRequest { slots: 2, ..request };
    let a = two(request(&store, "a").await);
    acquire(&store, &a).await;
    acquire(&store, &two(request(&store, "b").await)).await;
    let (mut first, mut second) = (store.subscribe("c").await, store.subscribe("d").await);
    let (c, d) = (two(waiter(&store, "c").await), two(waiter(&store, "d").await));
    assert_refused(&store, &c).await;
    assert_refused(&store, &d).await;
    assert_eq!(store.store.break_lock("l", Some(a.owner)).await.expect("breaks"), 1);
    assert_eq!(first.next().await, turn(&c));
    assert_no_notification(&store, "d", &mut second).await;
    acquire(&store, &c).await;
    assert_refused(&store, &d).await;
}

pub async fn waiters_of_different_locks_are_separate(store: TestStore) {
    let a = holding(&store, "a").await;
    let other = request_for(&store, "a", "other").await;
    acquire(&store, &other).await;
    let mut inbox = store.subscribe("b").await;
    let b = waiting(&store, "b").await;
    assert!(unlock(&store, &other).await);
    assert_no_notification(&store, "b", &mut inbox).await;
    acquire(&store, &request_for(&store, "c", "other").await).await;
    assert!(unlock(&store, &a).await);
    assert_eq!(inbox.next().await, turn(&b));
}

pub async fn lock_with_many_waiters_is_handed_on_in_bounded_batches(store: TestStore) {
    const DEAD: usize = 2 * LOCK_WAITERS_CHECKED_MAX + LOCK_WAITERS_CHECKED_MAX / 2;
    let a = holding(&store, "a").await;
    let dead = waiter(&store, "b").await;
    let waiters: Vec<LockRequest> =
        (0..DEAD).map(|_| LockRequest { owner: LockOwner::fresh(), ..dead.clone() }).collect();
    join_all(waiters.iter().map(|request| assert_refused(&store, request))).await;
    let c = waiting(&store, "c").await;
    store.silence("b");
    store.advance(past_the_lease()).await;
    assert!(unlock(&store, &a).await);

    for _ in 0..10 {
        if lock(&store, &c).await.hold.is_some() {
            return;
        }
    }
    panic!("each request should have removed up to {LOCK_WAITERS_CHECKED_MAX} of {DEAD} dead waiters");
}
