//! What a worker outside is given, on a store that fails.

use std::time::Duration;

use super::*;
use crate::job::push::Push;
use crate::store::faulty::{Fault, Faulty};

/// A store that fails on demand, with one job in it.
async fn with_a_job() -> (Duly, Arc<Faulty>) {
    let mut duly = Duly::open(":memory:").await.expect("opens");
    let store = Faulty::new(duly.store());
    duly.store = store.clone();
    duly.push(Push::new("work", "1")).await.expect("pushes");
    (duly, store)
}

/// The store is asked what is held, and has answered, but the answer is under way: what is settled meanwhile must not come back by it.
#[tokio::test]
async fn a_list_of_what_is_held_brings_back_nothing_that_was_settled() {
    let (duly, store) = with_a_job().await;
    let remote = Remotes::new(duly).join("ada", vec!["default".into()], Vec::new(), LEASE).await.expect("joins");
    let held = remote.claim(1, Duration::ZERO).await.expect("claims").pop().expect("the job");
    store.next("claim", Fault::LoseAnswer, 1);
    remote.claim(1, Duration::ZERO).await.expect_err("its answer is lost");
    store.next("claim", Fault::Late(Duration::from_millis(300)), 1);
    let settling = Settling { id: held.job.id, fence: held.fence, said: Said::Ack, result: None };
    let settled = async {
        // The list is made by then, and not here.
        tokio::time::sleep(Duration::from_millis(100)).await;
        remote.settle(vec![settling]).await
    };
    let (again, settled) = tokio::join!(remote.claim(1, Duration::ZERO), settled);
    assert_eq!(settled.expect("settles"), [], "it was held");
    assert!(again.expect("claims").is_empty(), "it is not given twice");
    assert!(remote.claim(1, Duration::ZERO).await.expect("claims").is_empty(), "nor later");
}

/// Recorded without an answer, and then no longer among what is held: who says it again is not told that it was lost.
#[tokio::test]
async fn what_was_recorded_without_an_answer_is_not_lost() {
    let (duly, store) = with_a_job().await;
    let remote = Remotes::new(duly).join("ada", vec!["default".into()], Vec::new(), LEASE).await.expect("joins");
    let held = remote.claim(1, Duration::ZERO).await.expect("claims").pop().expect("the job");
    let ack = |fence| vec![Settling { id: held.job.id, fence, said: Said::Ack, result: None }];
    store.next("settle", Fault::LoseAnswer, 1);
    remote.settle(ack(held.fence)).await.expect_err("its answer is lost");
    store.next("claim", Fault::LoseAnswer, 1);
    remote.claim(1, Duration::ZERO).await.expect_err("and that of a claim");
    assert!(remote.claim(1, Duration::ZERO).await.expect("asks what is held").is_empty());
    assert_eq!(remote.settle(ack(held.fence)).await.expect("says it again"), []);
    assert_eq!(remote.beat(Some(&[held.job.id])).await.expect("beats").lost, []);
    let older = crate::job::Fence(held.fence.0 - 1);
    assert_eq!(remote.settle(ack(older)).await.expect("another claim"), [held.job.id], "which nobody has recorded");
}

/// The same where the job has come again before anybody asked what is held.
#[tokio::test]
async fn what_was_recorded_without_an_answer_and_has_come_again_is_not_lost() {
    let (duly, store) = with_a_job().await;
    let remote = Remotes::new(duly).join("ada", vec!["default".into()], Vec::new(), LEASE).await.expect("joins");
    let first = remote.claim(1, Duration::ZERO).await.expect("claims").pop().expect("the job");
    let said = |said, fence| vec![Settling { id: first.job.id, fence, said, result: None }];
    let release = || Said::Release { after: Duration::ZERO };
    store.next("settle", Fault::LoseAnswer, 1);
    remote.settle(said(release(), first.fence)).await.expect_err("its answer is lost");
    let again = remote.claim(1, Duration::ZERO).await.expect("claims").pop().expect("the job again");
    assert!(again.fence > first.fence);
    assert_eq!(remote.settle(said(release(), first.fence)).await.expect("says it again"), []);
    assert_eq!(remote.settle(said(Said::Ack, again.fence)).await.expect("settles"), [], "it is still in hand");
}

/// It goes, whatever becomes of what it held: nobody can say it again for it.
#[tokio::test]
async fn who_leaves_has_left_although_the_store_refuses_to_take_its_jobs_back() {
    let (duly, store) = with_a_job().await;
    let remotes = Remotes::new(duly.clone());
    let remote = remotes.join("ada", vec!["default".into()], Vec::new(), LEASE).await.expect("joins");
    remote.claim(1, Duration::ZERO).await.expect("claims").pop().expect("the job");
    store.next("settle", Fault::Refuse, 1);
    remotes.leave(remote.id(), None).await.expect_err("says that it could not");
    assert!(!duly.nodes().await.expect("looks").iter().any(|node| node.id == remote.id() && node.alive));
}

/// The worker did not hear that its attempt was ended for it: its own word is not what was recorded.
#[tokio::test]
async fn what_was_taken_away_is_lost_whatever_its_worker_says_then() {
    let duly = Duly::open(":memory:").await.expect("opens");
    duly.push(Push::new("work", "1").timeout(Duration::from_millis(1))).await.expect("pushes");
    let remote = Remotes::new(duly).join("ada", vec!["default".into()], Vec::new(), LEASE).await.expect("joins");
    let held = remote.claim(1, Duration::ZERO).await.expect("claims").pop().expect("the job");
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(remote.beat(Some(&[held.job.id])).await.expect("beats").lost, [held.job.id], "it has timed out");
    assert_eq!(remote.beat(Some(&[held.job.id])).await.expect("beats").lost, [held.job.id], "and is still not its own");
    let ack = vec![Settling { id: held.job.id, fence: held.fence, said: Said::Ack, result: None }];
    assert_eq!(remote.settle(ack).await.expect("settles"), [held.job.id]);
}
