//! What arrives, and what is waited for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use duly::{Outcome, State};

use crate::transfer::stores::*;

pub async fn everything_arrives_unchanged(pair: Pair) {
    let (old, new) = pair.open().await;
    fill(&old, "mail", 300).await;
    fill(&old, "images", 20).await;
    let before = all(&old).await;
    let order = |jobs: &[duly::JobRecord], queue: &str| -> Vec<duly::JobId> {
        jobs.iter().filter(|r| r.state == State::Ready && r.job.queue == queue).map(|r| r.job.id).collect()
    };
    let (mail, images) = (order(&before, "mail"), order(&before, "images"));
    let before = by_id(before);
    assert_eq!(before.len(), 4 * 320);

    let (calls, last) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (called, told) = (calls.clone(), last.clone());
    let moved = old.transfer_to(&new).on_progress(move |progress| {
        called.fetch_add(1, Ordering::Relaxed);
        told.store(progress.moved, Ordering::Relaxed);
        assert_eq!((progress.total, progress.is_waiting), (1_280, false));
    });
    let moved = moved.run().await.expect("moves");
    assert!(calls.load(Ordering::Relaxed) > 8);
    assert_eq!(last.load(Ordering::Relaxed), 1_280);

    let after = all(&new).await;
    assert_eq!((order(&after, "mail"), order(&after, "images")), (mail, images), "in the order of their claims");
    let after = by_id(after);
    for (id, record) in &before {
        assert_eq!(after.get(id), Some(record));
    }
    assert_eq!(after.len(), before.len());
    assert_eq!(
        moved.iter().map(|q| (q.queue.as_str(), q.total())).collect::<Vec<_>>(),
        [("images", 80), ("mail", 1_200)]
    );
    for q in &moved {
        let count = |state| before.values().filter(|r| r.job.queue == q.queue && r.state == state).count() as u64;
        let expected = [State::Ready, State::Scheduled, State::Dead, State::Done].map(count);
        assert_eq!([q.ready, q.scheduled, q.dead, q.done], expected);
        assert!(expected.iter().all(|count| *count > 0) && (q.already_present, q.buried) == (0, 0));
    }
    is_left(&old).await;
    assert!(old.nodes().await.expect("lists").is_empty(), "the mover has left");
}

pub async fn only_named_queues_are_transferred(pair: Pair) {
    let (old, new) = pair.open().await;
    for queue in ["a", "b", "c"] {
        old.push(job("one").queue(queue)).await.expect("pushes");
    }
    let moved = old.transfer_to(&new).queue("a").queue("c").run().await.expect("moves");
    assert_eq!(moved.iter().map(|q| (q.queue.as_str(), q.total())).collect::<Vec<_>>(), [("a", 1), ("c", 1)]);
    let queues = |jobs: Vec<duly::JobRecord>| jobs.into_iter().map(|r| r.job.queue).collect::<Vec<_>>();
    assert_eq!((queues(all(&old).await), queues(all(&new).await)), (vec!["b".into()], vec!["a".into(), "c".into()]));
    assert_eq!(
        old.transfer_to(&new).run().await.expect("moves").iter().map(duly::QueueTransferReport::total).sum::<u64>(),
        1
    );
    assert!(old.transfer_to(&new).run().await.expect("moves").iter().all(|q| q.total() == 0), "nothing is left");
}

pub async fn paused_queue_arrives_paused(pair: Pair) {
    let (old, new) = pair.open().await;
    old.push(job("one").queue("a")).await.expect("pushes");
    old.push(job("one").queue("b")).await.expect("pushes");
    old.pause_queue("a").await.expect("pauses");
    old.transfer_to(&new).run().await.expect("moves");
    let counts = new.counts().await.expect("counts");
    assert_eq!(counts.iter().map(|c| (c.queue.as_str(), c.paused)).collect::<Vec<_>>(), [("a", true), ("b", false)]);
}

pub async fn large_jobs_are_transferred_in_small_batches(pair: Pair) {
    let (old, new) = pair.open().await;
    let large = format!("\"{}\"", "ü".repeat(500_000));
    for _ in 0..4 {
        old.push_all((0..8).map(|_| duly::Push::new("large", large.as_str()))).await.expect("pushes");
    }
    let calls = Arc::new(AtomicU64::new(0));
    let called = calls.clone();
    let moved = old.transfer_to(&new).on_progress(move |_| {
        called.fetch_add(1, Ordering::Relaxed);
    });
    assert_eq!(moved.run().await.expect("moves")[0].ready, 32);
    assert!(calls.load(Ordering::Relaxed) >= 8);
    let counts = new.counts().await.expect("counts");
    assert_eq!(counts[0].ready, 32);
}

pub async fn removed_jobs_do_not_disturb_a_transfer(pair: Pair) {
    let (old, new) = pair.open().await;
    let mut ids: Vec<_> = Vec::new();
    for pushed in old.push_all((0..2_500).map(|_| job("one"))).await.expect("pushes") {
        ids.push(pushed.id());
    }
    for id in ids.drain(..1_500) {
        old.remove(id).await.expect("removes");
    }
    // One gets another place in its line, and one more.
    for id in [ids[0], ids[0]] {
        old.reschedule(id, duly::Due::Now).await.expect("moves");
    }
    ids.rotate_left(1);
    for _ in 0..2 {
        assert_eq!(old.transfer_to(&new).run().await.expect("moves")[0].ready, 1_000);
        is_left(&old).await;
        assert_eq!(new.transfer_to(&old).run().await.expect("moves back")[0].ready, 1_000);
    }
    assert_eq!(all(&old).await.iter().map(|record| record.job.id).collect::<Vec<_>>(), ids);
}

pub async fn jobs_pushed_during_the_transfer_are_transferred(pair: Pair) {
    let (old, new) = pair.open().await;
    let mut ids = fill(&old, "default", 50).await;
    let going = Arc::new(AtomicBool::new(true));
    let (pusher, go) = (old.clone(), going.clone());
    let pushing = tokio::spawn(async move {
        let mut ids = Vec::new();
        while go.load(Ordering::Relaxed) && ids.len() < 200 {
            ids.push(pusher.push(job("late")).await.expect("pushes").id());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        ids
    });
    old.transfer_to(&new).run().await.expect("moves");
    going.store(false, Ordering::Relaxed);
    ids.extend(pushing.await.expect("no panic"));
    old.transfer_to(&new).run().await.expect("moves the rest");
    each_once(all(&new).await.into_iter().map(|record| record.job.id), &ids);
    is_left(&old).await;
}

pub async fn transfer_waits_for_running_jobs(pair: Pair) {
    let (old, new) = pair.open().await;
    let hand = Hand::join(&old, "default").await;
    let id = old.push(job("long").keep(KEEP)).await.expect("pushes").id();
    let held = hand.claim(1).await.remove(0);
    let waited = Arc::new(AtomicBool::new(false));
    let waits = waited.clone();
    let moving = old.transfer_to(&new).on_progress(move |progress| {
        waits.fetch_or(progress.is_waiting, Ordering::Relaxed);
    });
    let moving = tokio::spawn(moving.run());
    while !waited.load(Ordering::Relaxed) {
        assert!(!moving.is_finished(), "a job is held");
        old.store().heartbeat(&hand.node).await.expect("beats");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(!moving.is_finished());
    hand.settle(&held, Outcome::Ack).await;
    let moved = moving.await.expect("no panic").expect("moves");
    assert_eq!((moved[0].ready, moved[0].done), (0, 1));
    assert_eq!(new.get(id).await.expect("looks").expect("is there").state, State::Done);
}

pub async fn jobs_held_by_a_dead_node_are_transferred(pair: Pair) {
    let (old, new) = pair.open().await;
    let hand = Hand::join(&old, "default").await;
    old.push_all((0..700).map(|_| job("held"))).await.expect("pushes");
    assert_eq!(hand.claim(700).await.len(), 700);
    old.store().leave(hand.node.id).await.expect("leaves without a word about its jobs");
    let moved = old.transfer_to(&new).run().await.expect("moves");
    assert_eq!(moved[0].ready, 700);
    assert!(all(&new).await.iter().all(|record| record.crashes == 1));
}

pub async fn job_with_taken_key_arrives_dead(pair: Pair) {
    let (old, new) = pair.open().await;
    let id = old.push(job("moved").unique("x")).await.expect("pushes").id();
    old.push(job("other")).await.expect("pushes");
    let own = new.push(job("own").unique("x")).await.expect("pushes").id();
    let moved = old.transfer_to(&new).run().await.expect("moves").remove(0);
    assert_eq!((moved.ready, moved.dead, moved.buried, moved.already_present), (1, 1, 1, 0));
    let record = new.get(id).await.expect("looks").expect("is there");
    assert_eq!((record.state, record.attempts), (State::Dead, 0));
    assert!(record.failures[0].error.contains("unique key"), "{record:?}");
    assert_eq!(new.get(own).await.expect("looks").expect("is there").state, State::Ready);
    is_left(&old).await;
}

pub async fn transfer_there_and_back_keeps_everything(pair: Pair) {
    let (old, new) = pair.open().await;
    fill(&old, "default", 60).await;
    let before = by_id(all(&old).await);
    for _ in 0..2 {
        old.transfer_to(&new).run().await.expect("moves");
        new.transfer_to(&old).run().await.expect("moves back");
    }
    assert_eq!(by_id(all(&old).await), before);
    is_left(&new).await;
}

pub async fn capacity_is_transferred(pair: Pair) {
    let (old, new) = pair.open().await;
    let limit = |jobs, bytes| duly::Capacity { jobs, bytes };
    for (queue, limit) in
        [("one", limit(Some(7), None)), ("empty", limit(None, Some(1_000))), ("theirs", limit(Some(5), None))]
    {
        old.set_capacity(queue, limit).await.expect("limits");
    }
    new.set_capacity("theirs", limit(Some(9), Some(9))).await.expect("limits");
    // More than the limit lets in: what moves is not pushed.
    old.set_capacity("one", duly::Capacity::default()).await.expect("lifts");
    old.push_all((0..8).map(|_| job("one").queue("one"))).await.expect("pushes");
    old.set_capacity("one", limit(Some(7), None)).await.expect("limits");
    old.transfer_to(&new).run().await.expect("moves");
    let counts = new.counts().await.expect("counts");
    let of = |queue: &str| counts.iter().find(|count| count.queue == queue).map(|count| (count.ready, count.capacity));
    assert_eq!(of("one"), Some((8, limit(Some(7), None))));
    assert_eq!(of("empty"), Some((0, limit(None, Some(1_000)))), "also of a queue without a job");
    assert_eq!(of("theirs"), Some((0, limit(Some(9), Some(9)))), "what somebody wants there stays");
    let full = new.push(job("one").queue("one")).await.expect_err("it is full");
    assert_eq!(full.code(), "full");
}
