//! Locks, and waits for jobs, on a store that fails.

use std::sync::Arc;
use std::time::Duration;

use crate::client::Duly;
use crate::clock::Clock;
use crate::peers::Hall;
use crate::store::faulty::{Fault, Faulty};
use crate::store::{LockAsk, Owner};

const LONG: Duration = Duration::from_secs(20);
const MS: Duration = Duration::from_millis(1);

async fn faulty() -> (Duly, Arc<Faulty>) {
    let mut duly = Duly::open(":memory:").await.expect("opens");
    let faulty = Faulty::new(duly.store());
    duly.store = faulty.clone();
    (duly, faulty)
}

/// Asks for `a` as the hall does.
fn ask(hall: &Hall, wait: bool) -> LockAsk {
    let (name, owner, node, lease) = ("a".to_owned(), Owner::fresh(), hall.node(), crate::LEASE);
    LockAsk { name, owner, node, lease, slots: 1, ttl: LONG, wait, note: String::new() }
}

async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, work).await.expect("in time")
}

#[tokio::test]
async fn a_lock_whose_answer_was_lost_is_held_once() {
    let (duly, faulty) = faulty().await;
    faulty.next("lock", Fault::LoseAnswer, 2);
    let guard = soon(duly.lock("a").acquire()).await.expect("asks again");
    assert_eq!(faulty.asked("lock"), 3);
    assert_eq!(duly.locks(None).await.expect("lists").locks.len(), 1);
    guard.release().await.expect("is held");
    assert!(duly.locks(None).await.expect("lists").locks.is_empty());
}

#[tokio::test]
async fn a_try_whose_answer_was_lost_leaves_no_lock_behind() {
    let (duly, faulty) = faulty().await;
    faulty.next("lock", Fault::LoseAnswer, 1);
    duly.lock("a").try_acquire().await.expect_err("nobody knows");
    soon(async {
        while !duly.locks(None).await.expect("lists").locks.is_empty() {
            tokio::time::sleep(MS).await
        }
    })
    .await;
}

#[tokio::test]
async fn a_guard_is_lost_when_it_cannot_be_extended_in_time() {
    let (duly, faulty) = faulty().await;
    let guard = duly.lock("a").ttl(300 * MS).acquire().await.expect("is free");
    faulty.next("extend_locks", Fault::Refuse, usize::MAX);
    soon(guard.lost()).await;
    assert!(guard.is_lost());
    assert!(faulty.asked("extend_locks") > 2, "it was tried again and again");
}

#[tokio::test]
async fn a_guard_is_lost_in_time_although_the_store_never_answers() {
    let (duly, faulty) = faulty().await;
    let guard = duly.lock("a").ttl(300 * MS).acquire().await.expect("is free");
    faulty.next("extend_locks", Fault::KeepAnswer, usize::MAX);
    soon(guard.lost()).await;
}

#[tokio::test]
async fn an_extension_that_failed_is_tried_again_and_the_lock_kept() {
    let (duly, faulty) = faulty().await;
    let guard = duly.lock("a").ttl(400 * MS).acquire().await.expect("is free");
    faulty.next("extend_locks", Fault::LoseAnswer, 3);
    soon(async {
        while faulty.asked("extend_locks") < 5 {
            tokio::time::sleep(MS).await;
        }
    })
    .await;
    assert!(!guard.is_lost());
}

#[tokio::test]
async fn a_dropped_guard_is_not_extended_any_more() {
    let (duly, faulty) = faulty().await;
    faulty.next("unlock", Fault::Refuse, 5);
    drop(duly.lock("a").ttl(300 * MS).acquire().await.expect("is free"));
    let before = faulty.asked("extend_locks");
    soon(async {
        while !duly.locks(None).await.expect("lists").locks.is_empty() {
            tokio::time::sleep(MS).await
        }
    })
    .await;
    assert_eq!(faulty.asked("extend_locks"), before, "renewal does not outlive the guard");
    assert!(faulty.asked("unlock") > 1, "the release is tried again");
}

#[tokio::test]
async fn a_release_whose_answer_was_lost_is_a_release() {
    let (duly, faulty) = faulty().await;
    let guard = duly.lock("a").acquire().await.expect("is free");
    faulty.next("unlock", Fault::LoseAnswer, 1);
    soon(guard.release()).await.expect("is released");
    assert!(duly.lock("a").try_acquire().await.expect("answers").is_some());
}

#[tokio::test]
async fn a_lost_lock_whose_release_was_not_answered_was_not_held() {
    let (duly, faulty) = faulty().await;
    let guard = duly.lock("a").acquire().await.expect("is free");
    assert_eq!(duly.break_lock("a").await.expect("breaks"), 1);
    soon(guard.lost()).await;
    faulty.next("unlock", Fault::LoseAnswer, 1);
    assert_eq!(soon(guard.release()).await.expect_err("was lost before").code(), "conflict");
}

#[tokio::test]
async fn a_hold_that_is_over_when_the_answer_comes_is_not_handed_out() {
    let (duly, faulty) = faulty().await;
    let lock = || duly.lock("a").ttl(50 * MS);
    faulty.next("lock", Fault::Late(200 * MS), 1);
    let guard = soon(lock().acquire()).await.expect("asks again");
    assert!(!guard.is_lost());
    assert_eq!(faulty.asked("lock"), 2);
    guard.release().await.expect("is held");
    faulty.next("lock", Fault::Late(200 * MS), 1);
    assert_eq!(lock().try_acquire().await.expect_err("is over").code(), "timeout");
}

#[tokio::test]
async fn a_waiter_outlives_a_store_that_fails() {
    let (duly, faulty) = faulty().await;
    let guard = duly.lock("a").acquire().await.expect("is free");
    let waiting = tokio::spawn(duly.lock("a").acquire());
    soon(async {
        while duly.lock("a").checked().await.expect("looks").is_none_or(|held| held.waiting == 0) {
            tokio::time::sleep(MS).await;
        }
    })
    .await;
    faulty.next("lock", Fault::Refuse, 3);
    guard.release().await.expect("is held");
    let next = soon(waiting).await.expect("no panic").expect("gets it");
    assert!(next.fence() > guard.fence());
}

/// Somebody elsewhere who keeps no guard may hold the lock by now.
#[tokio::test]
async fn a_turn_that_nobody_wants_gives_up_a_place_and_no_hold() {
    let (duly, faulty) = faulty().await;
    let hall = duly.hall().expect("starts");
    hall.attended().await.expect("enters");
    let (held, left_behind) = (ask(&hall, false), ask(&hall, true));
    assert!(duly.store.lock(&held).await.expect("answers").hold.is_some());
    assert!(duly.store.lock(&left_behind).await.expect("answers").hold.is_none());
    faulty.next("leave_line", Fault::Refuse, 2);
    for owner in [held.owner, left_behind.owner] {
        hall.inner.heard(crate::store::Heard::Turn { name: "a".to_owned(), owner });
    }
    let checked = async || duly.lock("a").checked().await.expect("looks").expect("is held");
    soon(async {
        while checked().await.waiting > 0 || faulty.asked("leave_line") < 4 {
            tokio::time::sleep(MS).await;
        }
    })
    .await;
    assert_eq!(checked().await.owner, held.owner);
    assert!(duly.store.unlock(&held).await.expect("answers"), "it is held");
}

/// A pause that the process itself does not notice: by its own clock the time is over before anybody tells it.
#[tokio::test]
async fn after_a_pause_longer_than_its_ttl_a_guard_knows_that_it_is_lost() {
    let clock = Clock::manual();
    let duly = Duly::builder(":memory:").clock(clock.clone()).open().await.expect("opens");
    let guard = duly.lock("a").ttl(Duration::from_secs(30)).acquire().await.expect("is free");
    assert!(!guard.is_lost());
    clock.advance(Duration::from_secs(31));
    assert!(guard.is_lost());
    assert!(guard.left().is_zero());
    assert_eq!(guard.extend().await.expect_err("is over").code(), "conflict");
}

/// More than one step tells of; and one that fails, or that lasts longer than a sign of life may, is not the end of it.
#[tokio::test]
async fn connections_that_the_store_has_forgotten_are_told_again() {
    const HELD: usize = crate::store::CONNECTIONS_MAX + 10;
    let (duly, faulty) = faulty().await;
    let hall = duly.hall().expect("starts");
    let names: Vec<String> = (0..HELD).map(|n| format!("connection {n:04}")).collect();
    let held = futures_util::future::join_all(names.iter().map(|name| duly.hold_connection(name.as_str()))).await;
    assert!(held.iter().all(Result::is_ok));
    assert!(faulty.asked("set_connections") < HELD / 2, "many in one step");
    for fault in [Fault::Refuse, Fault::Late(1_200 * MS)] {
        for some in names.chunks(crate::store::CONNECTIONS_MAX) {
            duly.store.set_connections(hall.node(), &[], some).await.expect("forgets");
        }
        faulty.next("keep_connections", fault, 2);
        hall.inner.heard(crate::store::Heard::Gap);
        for name in [&names[0], &names[HELD - 1]] {
            soon(async {
                while duly.store.connection(name).await.expect("looks") != Some(hall.node()) {
                    tokio::time::sleep(MS).await;
                }
            })
            .await;
        }
    }
}

/// Pushes so many jobs, and lets somebody wait for each until all of them do.
async fn waiting(duly: &Duly, jobs: usize) -> Vec<tokio::task::JoinHandle<Option<crate::Record>>> {
    let pushed = duly.push_all((0..jobs).map(|_| crate::Push::new("k", "1"))).await.expect("pushes");
    let wait = |id: crate::JobId| {
        let duly = duly.clone();
        tokio::spawn(async move { duly.wait(id).await.expect("waits") })
    };
    pushed.iter().map(|pushed| wait(pushed.id())).collect()
}

async fn run_all(duly: &Duly) {
    duly.worker().on_any_kind(async |_| crate::Outcome::Ack).drain().await.expect("works");
}

#[tokio::test]
async fn thousands_wait_and_nobody_asks_the_store_again() {
    const JOBS: usize = 2_000;
    let (duly, faulty) = faulty().await;
    let waits = waiting(&duly, JOBS).await;
    soon(async {
        while faulty.asked("get") < 2 * JOBS {
            tokio::time::sleep(MS).await;
        }
    })
    .await;
    assert_eq!((faulty.asked("watch_ends"), faulty.asked("ended")), (1, 0), "one has asked for all");
    // A while in which nothing happens.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!((faulty.asked("get"), faulty.asked("watch_ends"), faulty.asked("ended")), (2 * JOBS, 1, 0));
    run_all(&duly).await;
    for waiting in waits {
        let told = tokio::time::timeout(Duration::from_secs(2), waiting).await.expect("told at once");
        assert!(told.expect("no panic").is_some_and(|record| record.state == crate::State::Done));
    }
    assert_eq!(faulty.asked("get"), 3 * JOBS, "each once more, when it had ended");
}

#[tokio::test]
async fn who_waits_on_a_store_that_tells_nothing_learns_of_the_end_by_a_look() {
    let (duly, faulty) = faulty().await;
    faulty.next("watch_ends", Fault::Refuse, usize::MAX);
    let waits = waiting(&duly, 3).await;
    soon(async {
        while faulty.asked("ended") == 0 {
            tokio::time::sleep(MS).await;
        }
    })
    .await;
    run_all(&duly).await;
    for waiting in waits {
        assert!(soon(waiting).await.expect("no panic").is_some_and(|record| record.state == crate::State::Done));
    }
}

#[tokio::test]
async fn who_waits_in_more_queues_than_the_store_tells_of_learns_of_the_end_by_a_look() {
    let (duly, faulty) = faulty().await;
    let queue = |no: usize| format!("q{no:04}");
    let push = |no| crate::Push::new("k", "1").queue(queue(no));
    let pushed = duly.push_all((0..=crate::store::ENDS_QUEUES_MAX).map(push)).await.expect("pushes");
    let wait = |pushed: &crate::Pushed| {
        let (duly, id) = (duly.clone(), pushed.id());
        tokio::spawn(async move { duly.wait(id).await.expect("waits") })
    };
    let mut waits: Vec<_> = pushed.iter().map(wait).collect();
    soon(async {
        while faulty.asked("get") < 2 * pushed.len() {
            tokio::time::sleep(MS).await;
        }
    })
    .await;
    // Whichever is the one too many: of those that came first and last by name, both are heard of.
    let ends: Vec<_> = [waits.pop(), Some(waits.remove(0))].into_iter().flatten().collect();
    for (at, waiting) in [crate::store::ENDS_QUEUES_MAX, 0].into_iter().zip(ends) {
        duly.remove(pushed[at].id()).await.expect("is there");
        assert!(soon(waiting).await.expect("no panic").is_none(), "is gone");
    }
    waits.iter().for_each(tokio::task::JoinHandle::abort);
}

/// Whoever breaks a lock says so once, and that may be when nobody hears it.
#[tokio::test]
async fn a_lock_that_was_broken_unheard_is_lost_once_it_is_known_that_something_was_missed() {
    let (duly, faulty) = faulty().await;
    let hall = duly.hall().expect("starts");
    let guard = duly.lock("a").ttl(20 * LONG).acquire().await.expect("is free");
    let kept = duly.lock("b").ttl(10 * LONG).acquire().await.expect("is free");
    // Its owner gives it up behind the guard's back: nobody is told.
    let ask = LockAsk { owner: guard.owner(), ..ask(&hall, false) };
    assert!(duly.store.unlock(&ask).await.expect("answers"));
    // The way is still shaky.
    faulty.next("extend_locks", Fault::Refuse, 1);
    hall.inner.heard(crate::store::Heard::Gap);
    soon(guard.lost()).await;
    assert!(!kept.is_lost());
}

#[tokio::test]
async fn a_worker_that_does_not_come_round_to_its_orders_is_told_of_as_busy() {
    let duly = Duly::open(":memory:").await.expect("opens");
    let hall = duly.hall().expect("starts");
    let mut node = crate::node::Node::fresh(vec!["default".to_owned()]);
    node.id = hall.identity();
    let (orders, _kept) = tokio::sync::mpsc::channel(1);
    let _at_work = hall.at_work(&node, orders);
    let stop = async || soon(duly.call("duly.stop", &()).node(node.id).reply::<u64>()).await;
    assert_eq!(stop().await.expect("takes the order"), 1);
    let id = crate::job::JobId::fresh();
    let args = serde_json::json!({ "id": id });
    let cancel = soon(duly.call("duly.cancel", &args).node(node.id).reply::<bool>()).await;
    for refused in [stop().await.map(drop), cancel.map(drop)] {
        let error = refused.expect_err("has not come round to the first").to_string();
        assert!(error.contains("has not come round"), "{error}");
    }
}

#[tokio::test]
async fn a_connection_that_the_store_was_not_told_the_end_of_is_told_again() {
    let (duly, faulty) = faulty().await;
    let held = duly.hold_connection("browser 7").await.expect("is free");
    faulty.next("set_connections", Fault::Refuse, 1);
    drop(held);
    soon(async {
        while duly.store.connection("browser 7").await.expect("looks").is_some() {
            tokio::time::sleep(MS).await;
        }
    })
    .await;
    assert!(faulty.asked("set_connections") >= 3);
}

#[tokio::test]
async fn whose_time_is_over_says_that_the_store_was_away() {
    let (duly, faulty) = faulty().await;
    faulty.next("lock", Fault::Refuse, usize::MAX);
    let error = soon(duly.lock("a").wait(200 * MS).acquire()).await.expect_err("no answer").to_string();
    assert!(error.contains("refused on demand"), "{error}");
}
