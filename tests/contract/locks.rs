//! Locks: holders, expiry and fences.

use std::collections::BTreeSet;
use std::time::Duration;

use duly::bounds::DEFAULT_LEASE;
use duly::store::{LOCK_EXTENDS_MAX, LOCK_PAGE_SIZE, LockOwner, LockRecord, LockReply, LockRequest, LockStore};
use duly::{Fence, NodeId};
use futures_util::future::join_all;

use crate::test_store::*;

pub const TTL: Duration = Duration::from_secs(10);

/// A request of this peer for the lock "l", without waiting.
pub async fn request(store: &TestStore, peer: &'static str) -> LockRequest {
    let node = store.peer(peer).await;
    let note = format!("{peer} of the test");
    LockRequest {
        name: "l".into(),
        owner: LockOwner::fresh(),
        node,
        lease: DEFAULT_LEASE,
        slots: 1,
        ttl: TTL,
        wait: false,
        note,
    }
}

/// The same for the lock with this name.
pub async fn request_for(store: &TestStore, peer: &'static str, name: &str) -> LockRequest {
    LockRequest { name: name.into(), ..request(store, peer).await }
}

pub async fn lock(store: &TestStore, request: &LockRequest) -> LockReply {
    store.store.lock(request).await.expect("replies")
}

/// Acquires the lock, which must be free.
pub async fn acquire(store: &TestStore, request: &LockRequest) -> (Fence, u32) {
    lock(store, request).await.hold.expect("the lock is free")
}

/// Requests the lock, which must be refused.
pub async fn assert_refused(store: &TestStore, request: &LockRequest) -> LockReply {
    let reply = lock(store, request).await;
    assert_eq!(reply.hold, None, "another owner holds the lock or comes first");
    reply
}

pub async fn unlock(store: &TestStore, request: &LockRequest) -> bool {
    store.store.unlock(request).await.expect("replies")
}

async fn extend(store: &TestStore, request: &LockRequest) -> bool {
    let extended = store.store.extend_locks(std::slice::from_ref(request)).await.expect("replies");
    assert_eq!(extended.len(), 1);
    extended[0]
}

/// Returns the holds of one lock.
async fn holds(store: &TestStore, name: &str) -> Vec<LockRecord> {
    let page = store.store.locks(Some(name), None).await.expect("lists");
    assert_eq!(page.next_cursor, None);
    page.locks
}

pub async fn free_lock_is_acquired_with_a_fence(store: TestStore) {
    let reply = lock(&store, &request(&store, "a").await).await;
    let (fence, slot) = reply.hold.expect("is free");
    assert!(fence > Fence(0));
    assert_eq!(slot, 1);
    assert_eq!((reply.waiters_ahead, reply.expires_in), (0, None));
}

pub async fn held_lock_is_refused(store: TestStore) {
    acquire(&store, &request(&store, "a").await).await;
    let other = assert_refused(&store, &request(&store, "b").await).await;
    assert_eq!((other.waiters_ahead, other.expires_in), (0, Some(TTL)));
}

pub async fn one_of_many_concurrent_requests_gets_the_lock(store: TestStore) {
    let mut requests = Vec::new();
    for peer in ["a", "b", "c", "d", "e"].repeat(10) {
        requests.push(request(&store, peer).await);
    }
    let replies = join_all(requests.iter().map(|request| lock(&store, request))).await;
    assert_eq!(replies.iter().filter(|reply| reply.hold.is_some()).count(), 1);
    assert_eq!(holds(&store, "l").await.len(), 1);
}

pub async fn two_owners_of_one_node_exclude_each_other(store: TestStore) {
    let (one, two) = (request(&store, "a").await, request(&store, "a").await);
    let (fence, _) = acquire(&store, &one).await;
    assert_refused(&store, &two).await;
    assert!(!extend(&store, &two).await && !unlock(&store, &two).await);
    assert!(unlock(&store, &one).await);
    assert!(acquire(&store, &two).await.0 > fence);
}

pub async fn fences_grow_with_every_acquisition(store: TestStore) {
    let (a, b) = (request(&store, "a").await, request(&store, "b").await);
    let other = request_for(&store, "a", "another lock").await;
    let mut fences = vec![acquire(&store, &a).await.0];
    fences.push(acquire(&store, &other).await.0);

    assert!(unlock(&store, &a).await);
    fences.push(acquire(&store, &b).await.0);

    store.advance(TTL + MS).await;
    fences.push(acquire(&store, &a).await.0);
    fences.push(acquire(&store, &other).await.0);

    assert_eq!(store.store.break_lock("l", None).await.expect("breaks"), 1);
    fences.push(acquire(&store, &a).await.0);

    store.advance(TTL + MS).await;
    fences.push(acquire(&store, &a).await.0); // the same owner, but not the same hold

    assert!(fences.is_sorted_by(|before, after| before < after), "{fences:?}");
}

pub async fn lock_expires_after_its_ttl_in_milliseconds(store: TestStore) {
    let other = request(&store, "b").await;
    acquire(&store, &LockRequest { ttl: 1_500 * MS, ..request(&store, "a").await }).await;
    store.advance(1_499 * MS).await;
    assert_eq!(assert_refused(&store, &other).await.expires_in, Some(MS));
    store.advance(2 * MS).await;
    acquire(&store, &LockRequest { ttl: MS, ..other }).await;
    store.advance(2 * MS).await;
    acquire(&store, &request(&store, "a").await).await;
}

pub async fn repeated_request_returns_the_same_hold(store: TestStore) {
    let (a, b) = (request(&store, "a").await, request(&store, "b").await);
    let hold = acquire(&store, &a).await;
    store.advance(TTL - SECOND).await;
    assert_eq!(lock(&store, &a).await, LockReply { hold: Some(hold), waiters_ahead: 0, expires_in: None });
    assert_eq!(assert_refused(&store, &b).await.expires_in, Some(TTL), "from the last request");
    assert_eq!(holds(&store, "l").await.len(), 1);
    assert!(unlock(&store, &a).await);
    acquire(&store, &b).await;
}

pub async fn extend_by_another_owner_is_rejected(store: TestStore) {
    let (a, b) = (request(&store, "a").await, request(&store, "b").await);
    acquire(&store, &a).await;
    store.advance(4 * SECOND).await;
    assert!(!extend(&store, &LockRequest { owner: LockOwner::fresh(), ..a.clone() }).await, "its node is not enough");
    assert_eq!(assert_refused(&store, &b).await.expires_in, Some(TTL - 4 * SECOND));
    assert!(extend(&store, &a).await);
    assert_eq!(assert_refused(&store, &b).await.expires_in, Some(TTL));
    assert!(extend(&store, &LockRequest { ttl: 2 * SECOND, ..a.clone() }).await);
    assert_eq!(assert_refused(&store, &b).await.expires_in, Some(2 * SECOND), "from now, not on top");
}

pub async fn expired_lock_is_not_extended(store: TestStore) {
    let (a, b) = (request(&store, "a").await, request(&store, "b").await);
    assert!(!extend(&store, &a).await, "it never held the lock");
    acquire(&store, &a).await;
    store.advance(TTL + MS).await;
    assert!(!extend(&store, &a).await, "no owner holds it, but its time is over");
    acquire(&store, &b).await;
    assert!(!extend(&store, &a).await);
    assert_eq!(holds(&store, "l").await[0].owner, b.owner);
}

pub async fn refused_request_does_not_extend_the_lock(store: TestStore) {
    let (winner, loser) = (request(&store, "a").await, request(&store, "b").await);
    let loser = LockRequest { ttl: 100 * TTL, ..loser };
    acquire(&store, &winner).await;
    for remaining in (1..10).rev() {
        store.advance(SECOND).await;
        assert!(!extend(&store, &loser).await);
        assert_eq!(assert_refused(&store, &loser).await.expires_in, Some(remaining * SECOND));
    }
    store.advance(SECOND + MS).await;
    acquire(&store, &loser).await;
}

pub async fn repeated_release_counts_once(store: TestStore) {
    let a = request(&store, "a").await;
    assert!(!unlock(&store, &a).await, "it never held the lock");
    acquire(&store, &a).await;
    assert!(unlock(&store, &a).await);
    assert!(!unlock(&store, &a).await, "not held any more");
    assert!(!extend(&store, &a).await);
    acquire(&store, &request(&store, "b").await).await;
}

pub async fn release_after_expiry_does_not_free_the_next_owners_lock(store: TestStore) {
    let (a, b) = (request(&store, "a").await, request(&store, "b").await);
    acquire(&store, &a).await;
    store.advance(TTL + MS).await;
    acquire(&store, &b).await;
    assert!(!unlock(&store, &a).await);
    assert_refused(&store, &request(&store, "a").await).await;
    assert!(unlock(&store, &b).await);
}

pub async fn release_after_expiry_returns_not_held(store: TestStore) {
    let a = request(&store, "a").await;
    acquire(&store, &a).await;
    store.advance(TTL + MS).await;
    assert!(!unlock(&store, &a).await);
}

/// A paused node may rely on its hold until the TTL ends.
pub async fn lock_of_a_silent_node_lasts_until_its_ttl(store: TestStore) {
    let other = request(&store, "b").await;
    acquire(&store, &request(&store, "a").await).await;
    acquire(&store, &LockRequest { node: NodeId::fresh(), ..request_for(&store, "b", "of a stranger").await }).await;
    store.silence("a");
    store.advance(TTL - MS).await;
    assert_refused(&store, &other).await;
    assert_refused(&store, &request_for(&store, "b", "of a stranger").await).await;
    store.advance(2 * MS).await;
    acquire(&store, &other).await;
}

pub async fn node_that_withdraws_keeps_its_locks(store: TestStore) {
    let a = request(&store, "a").await;
    acquire(&store, &a).await;
    store.withdraw("a").await;
    assert_refused(&store, &request(&store, "b").await).await;
    assert!(extend(&store, &a).await && unlock(&store, &a).await);
}

/// An HTTP server extends a lock like this if its holder reaches it through several processes.
pub async fn lock_extended_by_another_node_ends_by_ttl_alone(store: TestStore) {
    let a = request(&store, "a").await;
    acquire(&store, &a).await;
    store.withdraw("a").await;
    let extended_by_b = LockRequest { node: store.peer("b").await, ..a.clone() };
    assert!(extend(&store, &extended_by_b).await);
    assert_refused(&store, &request(&store, "c").await).await;
    store.withdraw("b").await;
    assert_refused(&store, &request(&store, "c").await).await;
    store.advance(TTL + MS).await;
    acquire(&store, &request(&store, "c").await).await;
}

pub async fn every_lock_has_an_expiry(store: TestStore) {
    let a = request(&store, "a").await;
    for name in ["taken", "repeated", "extended", "waited for", "cancelled", "counted", "broken"] {
        acquire(&store, &LockRequest { name: name.into(), ..a.clone() }).await;
    }
    lock(&store, &LockRequest { name: "repeated".into(), ..a.clone() }).await;
    assert!(extend(&store, &LockRequest { name: "extended".into(), ..a.clone() }).await);
    let waiter = LockRequest { wait: true, ..request_for(&store, "b", "waited for").await };
    assert_refused(&store, &waiter).await;
    assert_refused(&store, &LockRequest { name: "cancelled".into(), ..waiter.clone() }).await;
    assert!(!unlock(&store, &LockRequest { name: "cancelled".into(), ..waiter }).await);
    acquire(&store, &LockRequest { slots: 3, ..request_for(&store, "b", "counted").await }).await;
    assert_eq!(store.store.break_lock("broken", None).await.expect("breaks"), 1);
    acquire(&store, &request_for(&store, "b", "broken").await).await;

    let listed = store.store.locks(None, None).await.expect("lists").locks;
    assert_eq!(listed.len(), 8);
    assert!(listed.iter().all(|lock| lock.since == Some(store.now()) && lock.expires == store.now() + TTL));
    store.advance(TTL + MS).await;
    assert!(store.store.locks(None, None).await.expect("lists").locks.is_empty());
}

pub async fn at_most_n_owners_hold_n_slots_with_own_fences(store: TestStore) {
    let mut acquired = Vec::new();
    for peer in ["a", "a", "b"] {
        acquired.push(acquire(&store, &LockRequest { slots: 3, ..request(&store, peer).await }).await);
    }
    let slots: BTreeSet<u32> = acquired.iter().map(|(_, slot)| *slot).collect();
    assert_eq!(slots, BTreeSet::from([1, 2, 3]));
    assert!(acquired.is_sorted_by(|before, after| before.0 < after.0), "each hold has its own fence: {acquired:?}");
    let late = LockRequest { slots: 3, ..request(&store, "c").await };
    assert_eq!(assert_refused(&store, &late).await.expires_in, Some(TTL));
    assert_eq!(holds(&store, "l").await.len(), 3);
}

pub async fn freed_slot_is_acquired_again(store: TestStore) {
    let mut requests = Vec::new();
    for peer in ["a", "b", "c"] {
        let request = LockRequest { slots: 3, ..request(&store, peer).await };
        requests.push((acquire(&store, &request).await, request));
    }
    let ((_, slot), freed) = &requests[1];
    let newest = requests[2].0.0;
    assert!(unlock(&store, freed).await);
    let next = LockRequest { slots: 3, ..request(&store, "d").await };
    let (fence, given) = acquire(&store, &next).await;
    assert_eq!(given, *slot);
    assert!(fence > newest);
    assert_refused(&store, &LockRequest { owner: LockOwner::fresh(), ..next }).await;
}

pub async fn each_slot_has_its_own_expiry(store: TestStore) {
    let short = LockRequest { slots: 2, ttl: 2 * SECOND, ..request(&store, "a").await };
    let long = LockRequest { slots: 2, ..request(&store, "a").await };
    acquire(&store, &long).await;
    let (_, slot) = acquire(&store, &short).await;
    let late = LockRequest { slots: 2, ..request(&store, "b").await };
    assert_eq!(assert_refused(&store, &late).await.expires_in, Some(2 * SECOND), "the first that ends");
    store.advance(2 * SECOND + MS).await;
    assert_eq!(acquire(&store, &late).await.1, slot);
    assert!(!extend(&store, &short).await && extend(&store, &long).await);
}

/// A caller that only has the name and the owner of a hold does not know its slot.
pub async fn hold_is_found_in_any_slot(store: TestStore) {
    let mut requests = Vec::new();
    for peer in ["a", "b", "c"] {
        requests.push(LockRequest { slots: 3, ..request(&store, peer).await });
        acquire(&store, &requests[requests.len() - 1]).await;
    }
    store.advance(TTL - SECOND).await;
    let bare: Vec<LockRequest> = requests.iter().map(|request| LockRequest { slots: 1, ..request.clone() }).collect();
    let stranger = LockRequest { owner: LockOwner::fresh(), ..bare[0].clone() };
    assert!(!extend(&store, &stranger).await && !unlock(&store, &stranger).await);
    let many = [bare[2].clone(), stranger, bare[0].clone(), bare[1].clone()];
    assert_eq!(store.store.extend_locks(&many).await.expect("replies"), [true, false, true, true]);
    store.advance(2 * SECOND).await;
    assert_eq!(holds(&store, "l").await.len(), 3, "all were extended");
    for request in bare.iter().rev() {
        assert!(unlock(&store, request).await && !extend(&store, request).await);
    }
    assert!(holds(&store, "l").await.is_empty());
}

pub async fn extend_many_extends_all_holds(store: TestStore) {
    let a = request(&store, "a").await;
    let requests: Vec<LockRequest> =
        (0..LOCK_EXTENDS_MAX).map(|i| LockRequest { name: format!("{i}"), ..a.clone() }).collect();
    // Every third lock belongs to another owner; every fifth has been released.
    let ours = |i: usize| !i.is_multiple_of(3);
    let still_held = |i: usize| ours(i) && !i.is_multiple_of(5);
    let stranger = LockOwner::fresh();
    join_all(requests.iter().enumerate().map(async |(i, request)| {
        let owner = if ours(i) { request.owner } else { stranger };
        acquire(&store, &LockRequest { owner, ..request.clone() }).await;
        if ours(i) && !still_held(i) {
            assert!(unlock(&store, request).await);
        }
    }))
    .await;

    store.advance(TTL - SECOND).await;
    let extended = store.store.extend_locks(&requests).await.expect("replies");
    assert_eq!(extended, (0..LOCK_EXTENDS_MAX).map(still_held).collect::<Vec<bool>>());
    store.advance(SECOND + MS).await;
    let remaining = store.store.locks(None, None).await.expect("lists").locks;
    assert_eq!(remaining.len(), (0..LOCK_EXTENDS_MAX).filter(|i| still_held(*i)).count());
    assert!(store.store.extend_locks(&[]).await.expect("replies").is_empty());
}

pub async fn locks_are_listed(store: TestStore) {
    let started = store.now();
    let a = LockRequest { slots: 2, note: "the first".into(), ..request_for(&store, "a", "m").await };
    let (fence, slot) = acquire(&store, &a).await;
    store.advance(SECOND).await;
    acquire(&store, &LockRequest { slots: 2, note: String::new(), ..request_for(&store, "b", "m").await }).await;
    for peer in ["c", "d"] {
        assert_refused(&store, &LockRequest { slots: 2, wait: true, ..request_for(&store, peer, "m").await }).await;
    }
    acquire(&store, &LockRequest { ttl: SECOND, ..request_for(&store, "a", "n, which ends").await }).await;
    acquire(&store, &request_for(&store, "a", "k").await).await;
    store.advance(SECOND + MS).await;

    let held = holds(&store, "m").await;
    assert_eq!(held.len(), 2);
    let first = held.iter().find(|hold| hold.owner == a.owner).expect("is listed");
    assert_eq!((first.name.as_str(), first.slot, first.fence), ("m", slot, fence));
    assert_eq!((first.node, first.note.as_str()), (a.node, "the first"));
    assert_eq!((first.since, first.expires), (Some(started), started + TTL));
    assert!(held.iter().all(|hold| hold.waiters == 2));

    let all = store.store.locks(None, None).await.expect("lists");
    let names: Vec<&str> = all.locks.iter().map(|hold| hold.name.as_str()).collect();
    assert_eq!((names, all.next_cursor), (vec!["k", "m", "m"], None), "sorted by name, without expired holds");
    assert_eq!(all.locks[0].waiters, 0);
    assert!(holds(&store, "never taken").await.is_empty());
}

pub async fn pages_contain_every_lock_once(store: TestStore) {
    let a = request(&store, "a").await;
    let names: Vec<String> = (0..LOCK_PAGE_SIZE + 20).map(|i| format!("lock {i:04}")).collect();
    join_all(names.iter().map(async |name| acquire(&store, &LockRequest { name: name.clone(), ..a.clone() }).await))
        .await;
    let (mut listed, mut cursor, mut pages) = (Vec::new(), None::<String>, 0);
    loop {
        let page = store.store.locks(None, cursor.as_deref()).await.expect("lists");
        assert!(page.locks.len() <= LOCK_PAGE_SIZE);
        listed.extend(page.locks.into_iter().map(|hold| hold.name));
        pages += 1;
        cursor = page.next_cursor;
        if cursor.is_none() || pages > 10 {
            break;
        }
    }
    assert_eq!(listed, names);
}

pub async fn similar_lock_names_do_not_collide(store: TestStore) {
    const NAMES: [&str; 18] = [
        "a", "aa", "A", "a:", "a:b", ":a", "a:1", "a b", " a", "a ", "{a}", "a%", "a*", "a_", "'a\"\\", "\u{e4}",
        "a\u{308}", "锁🔒",
    ];
    let a = request(&store, "a").await;
    let one = |name: &str| LockRequest { name: name.into(), ..a.clone() };
    for name in NAMES {
        acquire(&store, &one(name)).await;
    }
    for name in NAMES {
        let holds = holds(&store, name).await;
        assert_eq!(holds.iter().map(|hold| hold.name.as_str()).collect::<Vec<_>>(), [name]);
    }
    for (i, name) in NAMES.into_iter().enumerate() {
        if i % 2 == 0 {
            assert!(unlock(&store, &one(name)).await);
        } else {
            assert_eq!(store.store.break_lock(name, None).await.expect("breaks"), 1);
        }
        let remaining = store.store.locks(None, None).await.expect("lists").locks;
        let remaining: BTreeSet<&str> = remaining.iter().map(|hold| hold.name.as_str()).collect();
        assert_eq!(remaining, NAMES[i + 1..].iter().copied().collect(), "only {name:?} went");
    }
}

pub async fn broken_lock_is_free(store: TestStore) {
    let (a, b) = (
        LockRequest { slots: 2, ..request(&store, "a").await },
        LockRequest { slots: 2, ..request(&store, "b").await },
    );
    acquire(&store, &a).await;
    acquire(&store, &b).await;
    assert_eq!(store.store.break_lock("l", None).await.expect("breaks"), 2);
    assert_eq!(store.store.break_lock("l", None).await.expect("replies"), 0);
    assert!(holds(&store, "l").await.is_empty());
    assert!(!extend(&store, &a).await && !unlock(&store, &b).await, "neither holds it any more");
}

pub async fn breaking_one_hold_keeps_the_others(store: TestStore) {
    let two = |request: LockRequest| LockRequest { slots: 2, ..request };
    let (a, b) = (two(request(&store, "a").await), two(request(&store, "b").await));
    acquire(&store, &a).await;
    let (_, slot) = acquire(&store, &b).await;
    assert_eq!(store.store.break_lock("l", Some(LockOwner::fresh())).await.expect("replies"), 0, "no such owner");
    assert_eq!(store.store.break_lock("l", Some(a.owner)).await.expect("breaks"), 1);
    assert_eq!(store.store.break_lock("l", Some(a.owner)).await.expect("replies"), 0, "it has ended");
    let left = holds(&store, "l").await;
    assert_eq!((left.len(), left[0].owner, left[0].slot), (1, b.owner, slot));
    assert!(!extend(&store, &a).await && extend(&store, &b).await, "only b holds it");
}
