//! Locks: who holds one, until when, under which fence.

use std::collections::BTreeSet;
use std::time::Duration;

use duly::store::{LOCK_EXTENDS_MAX, LOCK_PAGE_SIZE, LockOwner, LockRecord, LockReply, LockRequest};
use duly::{Fence, LEASE, NodeId};
use futures_util::future::join_all;

use crate::test_store::*;

pub const TTL: Duration = Duration::from_secs(10);

/// One acquisition by a guest: of the plain lock "l", without waiting.
pub async fn ask(store: &TestStore, guest: &'static str) -> LockRequest {
    let node = store.guest(guest).await;
    let note = format!("{guest} of the test");
    LockRequest {
        name: "l".into(),
        owner: LockOwner::fresh(),
        node,
        lease: LEASE,
        slots: 1,
        ttl: TTL,
        wait: false,
        note,
    }
}

/// The same for another lock.
pub async fn ask_for(store: &TestStore, guest: &'static str, name: &str) -> LockRequest {
    LockRequest { name: name.into(), ..ask(store, guest).await }
}

pub async fn answer(store: &TestStore, ask: &LockRequest) -> LockReply {
    store.store.lock(ask).await.expect("answers")
}

/// Asks, and holds the lock.
pub async fn take(store: &TestStore, ask: &LockRequest) -> (Fence, u32) {
    answer(store, ask).await.hold.expect("the lock is free")
}

/// Asks, and does not hold the lock.
pub async fn refused(store: &TestStore, ask: &LockRequest) -> LockReply {
    let taken = answer(store, ask).await;
    assert_eq!(taken.hold, None, "somebody else has it, or comes first");
    taken
}

pub async fn unlock(store: &TestStore, ask: &LockRequest) -> bool {
    store.store.unlock(ask).await.expect("answers")
}

async fn extend(store: &TestStore, ask: &LockRequest) -> bool {
    let extended = store.store.extend_locks(std::slice::from_ref(ask)).await.expect("answers");
    assert_eq!(extended.len(), 1);
    extended[0]
}

/// The holds of one lock.
async fn holds(store: &TestStore, name: &str) -> Vec<LockRecord> {
    let page = store.store.locks(Some(name), None).await.expect("lists");
    assert_eq!(page.next_cursor, None);
    page.locks
}

pub async fn free_lock_is_acquired_with_a_fence(store: TestStore) {
    let taken = answer(&store, &ask(&store, "a").await).await;
    let (fence, slot) = taken.hold.expect("is free");
    assert!(fence > Fence(0));
    assert_eq!(slot, 1);
    assert_eq!((taken.waiters_ahead, taken.expires_in), (0, None));
}

pub async fn held_lock_is_refused(store: TestStore) {
    take(&store, &ask(&store, "a").await).await;
    let other = refused(&store, &ask(&store, "b").await).await;
    assert_eq!((other.waiters_ahead, other.expires_in), (0, Some(TTL)));
}

pub async fn one_of_many_concurrent_requests_gets_the_lock(store: TestStore) {
    let mut asks = Vec::new();
    for guest in ["a", "b", "c", "d", "e"].repeat(10) {
        asks.push(ask(&store, guest).await);
    }
    let taken = join_all(asks.iter().map(|ask| answer(&store, ask))).await;
    assert_eq!(taken.iter().filter(|taken| taken.hold.is_some()).count(), 1);
    assert_eq!(holds(&store, "l").await.len(), 1);
}

pub async fn two_owners_of_one_node_exclude_each_other(store: TestStore) {
    let (one, two) = (ask(&store, "a").await, ask(&store, "a").await);
    let (fence, _) = take(&store, &one).await;
    refused(&store, &two).await;
    assert!(!extend(&store, &two).await && !unlock(&store, &two).await);
    assert!(unlock(&store, &one).await);
    assert!(take(&store, &two).await.0 > fence);
}

pub async fn fences_grow_with_every_acquisition(store: TestStore) {
    let (a, b) = (ask(&store, "a").await, ask(&store, "b").await);
    let other = ask_for(&store, "a", "another lock").await;
    let mut fences = vec![take(&store, &a).await.0];
    fences.push(take(&store, &other).await.0);

    assert!(unlock(&store, &a).await);
    fences.push(take(&store, &b).await.0);

    store.advance(TTL + MS).await;
    fences.push(take(&store, &a).await.0);
    fences.push(take(&store, &other).await.0);

    assert_eq!(store.store.break_lock("l").await.expect("breaks"), 1);
    fences.push(take(&store, &a).await.0);

    store.advance(TTL + MS).await;
    fences.push(take(&store, &a).await.0); // the same owner, but not the same hold

    assert!(fences.is_sorted_by(|before, after| before < after), "{fences:?}");
}

pub async fn lock_expires_after_its_ttl_in_milliseconds(store: TestStore) {
    let other = ask(&store, "b").await;
    take(&store, &LockRequest { ttl: 1_500 * MS, ..ask(&store, "a").await }).await;
    store.advance(1_499 * MS).await;
    assert_eq!(refused(&store, &other).await.expires_in, Some(MS));
    store.advance(2 * MS).await;
    take(&store, &LockRequest { ttl: MS, ..other }).await;
    store.advance(2 * MS).await;
    take(&store, &ask(&store, "a").await).await;
}

pub async fn repeated_request_returns_the_same_hold(store: TestStore) {
    let (a, b) = (ask(&store, "a").await, ask(&store, "b").await);
    let hold = take(&store, &a).await;
    store.advance(TTL - SECOND).await;
    assert_eq!(answer(&store, &a).await, LockReply { hold: Some(hold), waiters_ahead: 0, expires_in: None });
    assert_eq!(refused(&store, &b).await.expires_in, Some(TTL), "from the last ask");
    assert_eq!(holds(&store, "l").await.len(), 1);
    assert!(unlock(&store, &a).await);
    take(&store, &b).await;
}

pub async fn extend_by_another_owner_is_rejected(store: TestStore) {
    let (a, b) = (ask(&store, "a").await, ask(&store, "b").await);
    take(&store, &a).await;
    store.advance(4 * SECOND).await;
    assert!(!extend(&store, &LockRequest { owner: LockOwner::fresh(), ..a.clone() }).await, "its node is not enough");
    assert_eq!(refused(&store, &b).await.expires_in, Some(TTL - 4 * SECOND));
    assert!(extend(&store, &a).await);
    assert_eq!(refused(&store, &b).await.expires_in, Some(TTL));
    assert!(extend(&store, &LockRequest { ttl: 2 * SECOND, ..a.clone() }).await);
    assert_eq!(refused(&store, &b).await.expires_in, Some(2 * SECOND), "from now, not on top");
}

pub async fn expired_lock_is_not_extended(store: TestStore) {
    let (a, b) = (ask(&store, "a").await, ask(&store, "b").await);
    assert!(!extend(&store, &a).await, "it never held the lock");
    take(&store, &a).await;
    store.advance(TTL + MS).await;
    assert!(!extend(&store, &a).await, "nobody has it, but its time is over");
    take(&store, &b).await;
    assert!(!extend(&store, &a).await);
    assert_eq!(holds(&store, "l").await[0].owner, b.owner);
}

pub async fn refused_request_does_not_extend_the_lock(store: TestStore) {
    let (winner, loser) = (ask(&store, "a").await, ask(&store, "b").await);
    let loser = LockRequest { ttl: 100 * TTL, ..loser };
    take(&store, &winner).await;
    for left in (1..10).rev() {
        store.advance(SECOND).await;
        assert!(!extend(&store, &loser).await);
        assert_eq!(refused(&store, &loser).await.expires_in, Some(left * SECOND));
    }
    store.advance(SECOND + MS).await;
    take(&store, &loser).await;
}

pub async fn repeated_release_counts_once(store: TestStore) {
    let a = ask(&store, "a").await;
    assert!(!unlock(&store, &a).await, "it never held the lock");
    take(&store, &a).await;
    assert!(unlock(&store, &a).await);
    assert!(!unlock(&store, &a).await, "not held any more");
    assert!(!extend(&store, &a).await);
    take(&store, &ask(&store, "b").await).await;
}

pub async fn release_after_expiry_does_not_free_the_next_owners_lock(store: TestStore) {
    let (a, b) = (ask(&store, "a").await, ask(&store, "b").await);
    take(&store, &a).await;
    store.advance(TTL + MS).await;
    take(&store, &b).await;
    assert!(!unlock(&store, &a).await);
    refused(&store, &ask(&store, "a").await).await;
    assert!(unlock(&store, &b).await);
}

pub async fn release_after_expiry_returns_not_held(store: TestStore) {
    let a = ask(&store, "a").await;
    take(&store, &a).await;
    store.advance(TTL + MS).await;
    assert!(!unlock(&store, &a).await);
}

/// A paused node may still believe in its hold until the time that it was told is over.
pub async fn lock_of_a_silent_node_lasts_until_its_ttl(store: TestStore) {
    let other = ask(&store, "b").await;
    take(&store, &ask(&store, "a").await).await;
    take(&store, &LockRequest { node: NodeId::fresh(), ..ask_for(&store, "b", "of a stranger").await }).await;
    store.silence("a");
    store.advance(TTL - MS).await;
    refused(&store, &other).await;
    refused(&store, &ask_for(&store, "b", "of a stranger").await).await;
    store.advance(2 * MS).await;
    take(&store, &other).await;
}

pub async fn node_that_withdraws_keeps_its_locks(store: TestStore) {
    let a = ask(&store, "a").await;
    take(&store, &a).await;
    store.depart("a").await;
    refused(&store, &ask(&store, "b").await).await;
    assert!(extend(&store, &a).await && unlock(&store, &a).await);
}

/// As a server does for a holder that reaches it now through one process and now through another.
pub async fn lock_extended_by_another_node_ends_by_ttl_alone(store: TestStore) {
    let a = ask(&store, "a").await;
    take(&store, &a).await;
    store.depart("a").await;
    let through_b = LockRequest { node: store.guest("b").await, ..a.clone() };
    assert!(extend(&store, &through_b).await);
    refused(&store, &ask(&store, "c").await).await;
    store.depart("b").await;
    refused(&store, &ask(&store, "c").await).await;
    store.advance(TTL + MS).await;
    take(&store, &ask(&store, "c").await).await;
}

pub async fn every_lock_has_an_expiry(store: TestStore) {
    let a = ask(&store, "a").await;
    for name in ["taken", "repeated", "extended", "waited for", "left", "counted", "broken"] {
        take(&store, &LockRequest { name: name.into(), ..a.clone() }).await;
    }
    answer(&store, &LockRequest { name: "repeated".into(), ..a.clone() }).await;
    assert!(extend(&store, &LockRequest { name: "extended".into(), ..a.clone() }).await);
    let waiter = LockRequest { wait: true, ..ask_for(&store, "b", "waited for").await };
    refused(&store, &waiter).await;
    refused(&store, &LockRequest { name: "left".into(), ..waiter.clone() }).await;
    assert!(!unlock(&store, &LockRequest { name: "left".into(), ..waiter }).await);
    take(&store, &LockRequest { slots: 3, ..ask_for(&store, "b", "counted").await }).await;
    assert_eq!(store.store.break_lock("broken").await.expect("breaks"), 1);
    take(&store, &ask_for(&store, "b", "broken").await).await;

    let listed = store.store.locks(None, None).await.expect("lists").locks;
    assert_eq!(listed.len(), 8);
    assert!(listed.iter().all(|lock| lock.since == store.now() && lock.expires == store.now() + TTL));
    store.advance(TTL + MS).await;
    assert!(store.store.locks(None, None).await.expect("lists").locks.is_empty());
}

pub async fn at_most_n_owners_hold_n_slots_with_own_fences(store: TestStore) {
    let mut taken = Vec::new();
    for guest in ["a", "a", "b"] {
        taken.push(take(&store, &LockRequest { slots: 3, ..ask(&store, guest).await }).await);
    }
    let slots: BTreeSet<u32> = taken.iter().map(|(_, slot)| *slot).collect();
    assert_eq!(slots, BTreeSet::from([1, 2, 3]));
    assert!(taken.is_sorted_by(|before, after| before.0 < after.0), "each has a fence of its own: {taken:?}");
    let late = LockRequest { slots: 3, ..ask(&store, "c").await };
    assert_eq!(refused(&store, &late).await.expires_in, Some(TTL));
    assert_eq!(holds(&store, "l").await.len(), 3);
}

pub async fn freed_slot_is_acquired_again(store: TestStore) {
    let mut asks = Vec::new();
    for guest in ["a", "b", "c"] {
        let ask = LockRequest { slots: 3, ..ask(&store, guest).await };
        asks.push((take(&store, &ask).await, ask));
    }
    let ((_, slot), freed) = &asks[1];
    let newest = asks[2].0.0;
    assert!(unlock(&store, freed).await);
    let next = LockRequest { slots: 3, ..ask(&store, "d").await };
    let (fence, given) = take(&store, &next).await;
    assert_eq!(given, *slot);
    assert!(fence > newest);
    refused(&store, &LockRequest { owner: LockOwner::fresh(), ..next }).await;
}

pub async fn each_slot_has_its_own_expiry(store: TestStore) {
    let short = LockRequest { slots: 2, ttl: 2 * SECOND, ..ask(&store, "a").await };
    let long = LockRequest { slots: 2, ..ask(&store, "a").await };
    take(&store, &long).await;
    let (_, slot) = take(&store, &short).await;
    let late = LockRequest { slots: 2, ..ask(&store, "b").await };
    assert_eq!(refused(&store, &late).await.expires_in, Some(2 * SECOND), "the first that ends");
    store.advance(2 * SECOND + MS).await;
    assert_eq!(take(&store, &late).await.1, slot);
    assert!(!extend(&store, &short).await && extend(&store, &long).await);
}

/// Whoever has only the name and the owner of a hold knows nothing of slots.
pub async fn hold_is_found_in_any_slot(store: TestStore) {
    let mut asks = Vec::new();
    for guest in ["a", "b", "c"] {
        asks.push(LockRequest { slots: 3, ..ask(&store, guest).await });
        take(&store, &asks[asks.len() - 1]).await;
    }
    store.advance(TTL - SECOND).await;
    let bare: Vec<LockRequest> = asks.iter().map(|ask| LockRequest { slots: 1, ..ask.clone() }).collect();
    let stranger = LockRequest { owner: LockOwner::fresh(), ..bare[0].clone() };
    assert!(!extend(&store, &stranger).await && !unlock(&store, &stranger).await);
    let many = [bare[2].clone(), stranger, bare[0].clone(), bare[1].clone()];
    assert_eq!(store.store.extend_locks(&many).await.expect("answers"), [true, false, true, true]);
    store.advance(2 * SECOND).await;
    assert_eq!(holds(&store, "l").await.len(), 3, "they last");
    for ask in bare.iter().rev() {
        assert!(unlock(&store, ask).await && !extend(&store, ask).await);
    }
    assert!(holds(&store, "l").await.is_empty());
}

pub async fn extend_many_extends_all_holds(store: TestStore) {
    let a = ask(&store, "a").await;
    let asks: Vec<LockRequest> =
        (0..LOCK_EXTENDS_MAX).map(|i| LockRequest { name: format!("{i}"), ..a.clone() }).collect();
    // Every third is somebody else's, every fifth has been given back.
    let ours = |i: usize| !i.is_multiple_of(3);
    let kept = |i: usize| ours(i) && !i.is_multiple_of(5);
    let stranger = LockOwner::fresh();
    join_all(asks.iter().enumerate().map(async |(i, ask)| {
        let owner = if ours(i) { ask.owner } else { stranger };
        take(&store, &LockRequest { owner, ..ask.clone() }).await;
        if ours(i) && !kept(i) {
            assert!(unlock(&store, ask).await);
        }
    }))
    .await;

    store.advance(TTL - SECOND).await;
    let extended = store.store.extend_locks(&asks).await.expect("answers");
    assert_eq!(extended, (0..LOCK_EXTENDS_MAX).map(kept).collect::<Vec<bool>>());
    store.advance(SECOND + MS).await;
    let left = store.store.locks(None, None).await.expect("lists").locks;
    assert_eq!(left.len(), (0..LOCK_EXTENDS_MAX).filter(|i| kept(*i)).count());
    assert!(store.store.extend_locks(&[]).await.expect("answers").is_empty());
}

pub async fn locks_are_listed(store: TestStore) {
    let started = store.now();
    let a = LockRequest { slots: 2, note: "the first".into(), ..ask_for(&store, "a", "m").await };
    let (fence, slot) = take(&store, &a).await;
    store.advance(SECOND).await;
    take(&store, &LockRequest { slots: 2, note: String::new(), ..ask_for(&store, "b", "m").await }).await;
    for guest in ["c", "d"] {
        refused(&store, &LockRequest { slots: 2, wait: true, ..ask_for(&store, guest, "m").await }).await;
    }
    take(&store, &LockRequest { ttl: SECOND, ..ask_for(&store, "a", "n, which ends").await }).await;
    take(&store, &ask_for(&store, "a", "k").await).await;
    store.advance(SECOND + MS).await;

    let m = holds(&store, "m").await;
    assert_eq!(m.len(), 2);
    let first = m.iter().find(|hold| hold.owner == a.owner).expect("is listed");
    assert_eq!((first.name.as_str(), first.slot, first.fence), ("m", slot, fence));
    assert_eq!((first.node, first.note.as_str()), (a.node, "the first"));
    assert_eq!((first.since, first.expires), (started, started + TTL));
    assert!(m.iter().all(|hold| hold.waiters == 2));

    let all = store.store.locks(None, None).await.expect("lists");
    let names: Vec<&str> = all.locks.iter().map(|hold| hold.name.as_str()).collect();
    assert_eq!((names, all.next_cursor), (vec!["k", "m", "m"], None), "by name, and only what has not ended");
    assert_eq!(all.locks[0].waiters, 0);
    assert!(holds(&store, "never taken").await.is_empty());
}

pub async fn pages_contain_every_lock_once(store: TestStore) {
    let a = ask(&store, "a").await;
    let names: Vec<String> = (0..LOCK_PAGE_SIZE + 20).map(|i| format!("lock {i:04}")).collect();
    join_all(names.iter().map(async |name| take(&store, &LockRequest { name: name.clone(), ..a.clone() }).await)).await;
    let (mut seen, mut cursor, mut pages) = (Vec::new(), None::<String>, 0);
    loop {
        let page = store.store.locks(None, cursor.as_deref()).await.expect("lists");
        assert!(page.locks.len() <= LOCK_PAGE_SIZE);
        seen.extend(page.locks.into_iter().map(|hold| hold.name));
        pages += 1;
        cursor = page.next_cursor;
        if cursor.is_none() || pages > 10 {
            break;
        }
    }
    assert_eq!(seen, names);
}

pub async fn similar_lock_names_do_not_collide(store: TestStore) {
    const NAMES: [&str; 18] = [
        "a", "aa", "A", "a:", "a:b", ":a", "a:1", "a b", " a", "a ", "{a}", "a%", "a*", "a_", "'a\"\\", "\u{e4}",
        "a\u{308}", "锁🔒",
    ];
    let a = ask(&store, "a").await;
    let one = |name: &str| LockRequest { name: name.into(), ..a.clone() };
    for name in NAMES {
        take(&store, &one(name)).await;
    }
    for name in NAMES {
        let holds = holds(&store, name).await;
        assert_eq!(holds.iter().map(|hold| hold.name.as_str()).collect::<Vec<_>>(), [name]);
    }
    for (i, name) in NAMES.into_iter().enumerate() {
        if i % 2 == 0 {
            assert!(unlock(&store, &one(name)).await);
        } else {
            assert_eq!(store.store.break_lock(name).await.expect("breaks"), 1);
        }
        let left = store.store.locks(None, None).await.expect("lists").locks;
        let left: BTreeSet<&str> = left.iter().map(|hold| hold.name.as_str()).collect();
        assert_eq!(left, NAMES[i + 1..].iter().copied().collect(), "only {name:?} went");
    }
}

pub async fn broken_lock_is_free(store: TestStore) {
    let (a, b) =
        (LockRequest { slots: 2, ..ask(&store, "a").await }, LockRequest { slots: 2, ..ask(&store, "b").await });
    take(&store, &a).await;
    take(&store, &b).await;
    assert_eq!(store.store.break_lock("l").await.expect("breaks"), 2);
    assert_eq!(store.store.break_lock("l").await.expect("answers"), 0);
    assert!(holds(&store, "l").await.is_empty());
    assert!(!extend(&store, &a).await && !unlock(&store, &b).await, "both are told");
}
