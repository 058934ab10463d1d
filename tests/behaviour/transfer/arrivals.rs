//! Jobs, pauses and capacities in the target store, and running jobs that a transfer waits for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use duly::job::UniqueScope;
use duly::store::JobStore;
use duly::{Outcome, State};
use test_support::until;

use crate::transfer::stores::*;

pub async fn everything_arrives_unchanged(pair: StorePair) {
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
    let (count, moved) = (calls.clone(), last.clone());
    let transfer = old.transfer_to(&new).on_progress(move |progress| {
        count.fetch_add(1, Ordering::Relaxed);
        moved.store(progress.moved, Ordering::Relaxed);
        assert_eq!((progress.total, progress.is_waiting), (1_280, false));
    });
    let reports = transfer.run().await.expect("transfers");
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
        reports.iter().map(|q| (q.queue.as_str(), q.total())).collect::<Vec<_>>(),
        [("images", 80), ("mail", 1_200)]
    );
    for report in &reports {
        let count = |state| before.values().filter(|r| r.job.queue == report.queue && r.state == state).count() as u64;
        let expected = [State::Ready, State::Scheduled, State::Dead, State::Done].map(count);
        assert_eq!([report.ready, report.scheduled, report.dead, report.done], expected);
        assert!(expected.iter().all(|count| *count > 0) && (report.already_present, report.buried) == (0, 0));
    }
    assert_empty(&old).await;
    assert!(old.nodes().list().await.expect("lists").is_empty(), "the node of the transfer has left");
}

pub async fn only_named_queues_are_transferred(pair: StorePair) {
    let (old, new) = pair.open().await;
    for queue in ["a", "b", "c"] {
        old.push(job("one").queue(queue)).await.expect("pushes");
    }
    let reports = old.transfer_to(&new).queue("a").queue("c").run().await.expect("transfers");
    assert_eq!(reports.iter().map(|q| (q.queue.as_str(), q.total())).collect::<Vec<_>>(), [("a", 1), ("c", 1)]);
    let queues = |jobs: Vec<duly::JobRecord>| jobs.into_iter().map(|r| r.job.queue).collect::<Vec<_>>();
    assert_eq!((queues(all(&old).await), queues(all(&new).await)), (vec!["b".into()], vec!["a".into(), "c".into()]));
    assert_eq!(
        old.transfer_to(&new)
            .run()
            .await
            .expect("transfers")
            .iter()
            .map(duly::admin::QueueTransferReport::total)
            .sum::<u64>(),
        1
    );
    assert!(old.transfer_to(&new).run().await.expect("transfers").iter().all(|q| q.total() == 0), "nothing is left");
}

pub async fn paused_queue_arrives_paused(pair: StorePair) {
    let (old, new) = pair.open().await;
    old.push(job("one").queue("a")).await.expect("pushes");
    old.push(job("one").queue("b")).await.expect("pushes");
    old.queues().pause("a").await.expect("pauses");
    old.transfer_to(&new).run().await.expect("transfers");
    let counts = new.queues().counts().await.expect("counts");
    assert_eq!(counts.iter().map(|c| (c.queue.as_str(), c.paused)).collect::<Vec<_>>(), [("a", true), ("b", false)]);
}

pub async fn large_jobs_are_transferred_in_small_batches(pair: StorePair) {
    let (old, new) = pair.open().await;
    let large = format!("\"{}\"", "ü".repeat(500_000));
    for _ in 0..4 {
        old.push_all((0..8).map(|_| duly::Push::new("large", large.as_str()))).await.expect("pushes");
    }
    let calls = Arc::new(AtomicU64::new(0));
    let count = calls.clone();
    let transfer = old.transfer_to(&new).on_progress(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
    });
    assert_eq!(transfer.run().await.expect("transfers")[0].ready, 32);
    assert!(calls.load(Ordering::Relaxed) >= 8);
    let counts = new.queues().counts().await.expect("counts");
    assert_eq!(counts[0].ready, 32);
}

pub async fn removed_jobs_do_not_disturb_a_transfer(pair: StorePair) {
    let (old, new) = pair.open().await;
    let mut ids: Vec<_> = Vec::new();
    for pushed in old.push_all((0..2_500).map(|_| job("one"))).await.expect("pushes") {
        ids.push(pushed.id());
    }
    for id in ids.drain(..1_500) {
        old.jobs().remove(id).await.expect("removes");
    }
    // One job goes to the tail twice.
    for id in [ids[0], ids[0]] {
        old.jobs().reschedule(id, duly::job::Due::Now).await.expect("reschedules");
    }
    ids.rotate_left(1);
    for _ in 0..2 {
        assert_eq!(old.transfer_to(&new).run().await.expect("transfers")[0].ready, 1_000);
        assert_empty(&old).await;
        assert_eq!(new.transfer_to(&old).run().await.expect("transfers back")[0].ready, 1_000);
    }
    assert_eq!(all(&old).await.iter().map(|record| record.job.id).collect::<Vec<_>>(), ids);
}

pub async fn jobs_pushed_during_the_transfer_are_transferred(pair: StorePair) {
    let (old, new) = pair.open().await;
    let mut ids = fill(&old, "default", 50).await;
    let keep_pushing = Arc::new(AtomicBool::new(true));
    let (pusher, go) = (old.clone(), keep_pushing.clone());
    let pushing = tokio::spawn(async move {
        let mut ids = Vec::new();
        while go.load(Ordering::Relaxed) && ids.len() < 200 {
            ids.push(pusher.push(job("late")).await.expect("pushes").id());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        ids
    });
    old.transfer_to(&new).run().await.expect("transfers");
    keep_pushing.store(false, Ordering::Relaxed);
    ids.extend(pushing.await.expect("no panic"));
    old.transfer_to(&new).run().await.expect("transfers the rest");
    assert_each_once(all(&new).await.into_iter().map(|record| record.job.id), &ids);
    assert_empty(&old).await;
}

pub async fn transfer_waits_for_running_jobs(pair: StorePair) {
    let (old, new) = pair.open().await;
    let worker = ManualNode::join(&old, "default").await;
    let id = old.push(job("long").keep(KEEP)).await.expect("pushes").id();
    let held = worker.claim(1).await.remove(0);
    let has_waited = Arc::new(AtomicBool::new(false));
    let waited = has_waited.clone();
    let transfer = old.transfer_to(&new).on_progress(move |progress| {
        waited.fetch_or(progress.is_waiting, Ordering::Relaxed);
    });
    let transfer = tokio::spawn(transfer.run());
    until("the transfer waits", async || {
        assert!(!transfer.is_finished(), "a job is held");
        old.store().heartbeat(&worker.node).await.expect("sends a heartbeat");
        has_waited.load(Ordering::Relaxed)
    })
    .await;
    assert!(!transfer.is_finished());
    worker.settle(&held, Outcome::Ack).await;
    let reports = transfer.await.expect("no panic").expect("transfers");
    assert_eq!((reports[0].ready, reports[0].done), (0, 1));
    assert_eq!(new.jobs().get(id).await.expect("reads").expect("is there").state, State::Done);
}

pub async fn jobs_held_by_a_dead_node_are_transferred(pair: StorePair) {
    let (old, new) = pair.open().await;
    let worker = ManualNode::join(&old, "default").await;
    old.push_all((0..700).map(|_| job("held"))).await.expect("pushes");
    assert_eq!(worker.claim(700).await.len(), 700);
    old.store().leave(worker.node.id).await.expect("leaves without settling");
    let reports = old.transfer_to(&new).run().await.expect("transfers");
    assert_eq!(reports[0].ready, 700);
    assert!(all(&new).await.iter().all(|record| record.crashes == 1));
}

pub async fn job_with_taken_key_arrives_dead(pair: StorePair) {
    let (old, new) = pair.open().await;
    let key = |kind: &str| job(kind).unique("x").unique_scope(UniqueScope::Queue);
    let id = old.push(key("moved")).await.expect("pushes").id();
    old.push(job("other")).await.expect("pushes");
    let existing = new.push(key("existing")).await.expect("pushes").id();
    let report = old.transfer_to(&new).run().await.expect("transfers").remove(0);
    assert_eq!((report.ready, report.dead, report.buried, report.already_present), (1, 1, 1, 0));
    let record = new.jobs().get(id).await.expect("reads").expect("is there");
    assert_eq!((record.state, record.attempts), (State::Dead, 0));
    assert!(record.failures[0].error.contains("unique key"), "{record:?}");
    assert_eq!(new.jobs().get(existing).await.expect("reads").expect("is there").state, State::Ready);
    assert_empty(&old).await;
}

pub async fn transfer_there_and_back_keeps_everything(pair: StorePair) {
    let (old, new) = pair.open().await;
    fill(&old, "default", 60).await;
    let before = by_id(all(&old).await);
    for _ in 0..2 {
        old.transfer_to(&new).run().await.expect("transfers");
        new.transfer_to(&old).run().await.expect("transfers back");
    }
    assert_eq!(by_id(all(&old).await), before);
    assert_empty(&new).await;
}

pub async fn capacity_is_transferred(pair: StorePair) {
    let (old, new) = pair.open().await;
    let capacity = |jobs, bytes| duly::admin::Capacity::unlimited().jobs(jobs).bytes(bytes);
    for (queue, value) in [
        ("one", capacity(Some(7), None)),
        ("empty", capacity(None, Some(1_000))),
        ("existing", capacity(Some(5), None)),
    ] {
        old.queues().set_capacity(queue, value).await.expect("sets");
    }
    new.queues().set_capacity("existing", capacity(Some(9), Some(9))).await.expect("sets");
    // More jobs than the capacity: a transfer is not a push.
    old.queues().set_capacity("one", duly::admin::Capacity::default()).await.expect("removes");
    old.push_all((0..8).map(|_| job("one").queue("one"))).await.expect("pushes");
    old.queues().set_capacity("one", capacity(Some(7), None)).await.expect("sets");
    old.transfer_to(&new).run().await.expect("transfers");
    let counts = new.queues().counts().await.expect("counts");
    let find =
        |queue: &str| counts.iter().find(|count| count.queue == queue).map(|count| (count.ready, count.capacity));
    assert_eq!(find("one"), Some((8, capacity(Some(7), None))));
    assert_eq!(find("empty"), Some((0, capacity(None, Some(1_000)))), "also of a queue without a job");
    assert_eq!(find("existing"), Some((0, capacity(Some(9), Some(9)))), "a capacity of the target stays");
    let full = new.push(job("one").queue("one")).await.expect_err("it is full");
    assert_eq!(full.code(), "full");
}
