//! Queues and time: limits, order, weights, due times.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use duly::store::JobStore;
use duly::worker::Event;
use duly::{CancellationToken, Clock, Ctx, Duly, Push, PushExt};
use tokio::sync::mpsc;

use crate::worker::{Mail, TIMEOUT, mail, memory};

#[tokio::test]
async fn concurrency_limits_hold_per_queue_and_in_total() {
    let duly = memory().await;
    let jobs = (0..60).map(|n| Push::new("count", "{}").queue(["a", "b"][n % 2]));
    duly.push_all(jobs).await.expect("pushes");
    let running: Arc<Mutex<BTreeMap<String, usize>>> = Arc::default();
    let peaks: Arc<Mutex<BTreeMap<String, usize>>> = Arc::default();
    let (now, peak) = (running.clone(), peaks.clone());
    let count = move |ctx: Ctx| {
        let (now, peak) = (now.clone(), peak.clone());
        async move {
            let queue = ctx.job().queue.clone();
            {
                let mut now = now.lock().expect("lock");
                *now.entry(queue.clone()).or_default() += 1;
                let all = now.values().sum();
                let mut peak = peak.lock().expect("lock");
                for (name, count) in [(queue.clone(), now[&queue]), ("all".into(), all)] {
                    let entry = peak.entry(name).or_default();
                    *entry = count.max(*entry);
                }
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
            *now.lock().expect("lock").get_mut(&queue).expect("counted") -= 1;
        }
    };
    let summary = duly.worker().queue("a", 3).queue("b", 4).concurrency(5).on_kind("count", count).drain().await;
    assert_eq!(summary.expect("drains").acked, 60);
    let peaks = peaks.lock().expect("lock");
    assert!(peaks["a"] <= 3 && peaks["b"] <= 4 && peaks["all"] <= 5, "{peaks:?}");
}

#[tokio::test]
async fn queues_are_worked_in_strict_order() {
    let duly = memory().await;
    duly.push_all((0..20).map(|n| Push::new("note", "{}").queue(["second", "first"][n % 2]))).await.expect("pushes");
    let order: Arc<Mutex<Vec<String>>> = Arc::default();
    let starts = order.clone();
    let handler = move |ctx: Ctx| {
        starts.lock().expect("lock").push(ctx.job().queue.clone());
        async {}
    };
    let worker = duly.worker().queue("first", 1).queue("second", 1).concurrency(1).on_kind("note", handler);
    worker.drain().await.expect("drains");
    let order = order.lock().expect("lock");
    assert!(order[..10].iter().all(|queue| queue == "first"), "{order:?}");
}

#[tokio::test]
async fn weights_give_each_queue_its_share() {
    let duly = memory().await;
    duly.push_all((0..800).map(|n| Push::new("note", "{}").queue(["much", "little"][n % 2]))).await.expect("pushes");
    let order: Arc<Mutex<Vec<String>>> = Arc::default();
    let starts = order.clone();
    let handler = move |ctx: Ctx| {
        starts.lock().expect("lock").push(ctx.job().queue.clone());
        async {}
    };
    let worker = duly.worker().queue("much", 4).queue("little", 4).concurrency(4);
    worker.weight("much", 3).weight("little", 1).on_kind("note", handler).drain().await.expect("drains");
    let order = order.lock().expect("lock");
    let much = order[..400].iter().filter(|queue| *queue == "much").count();
    assert!((240..360).contains(&much), "three of four, about: {much} of 400");
}

#[tokio::test]
async fn job_starts_at_due_and_not_before() {
    let duly = memory().await;
    let (sender, mut received) = mpsc::unbounded_channel();
    let stop = CancellationToken::new();
    let worker = duly.worker().on(|_: Mail, _| async {}).on_event(move |event| {
        if let Event::Started { held, lateness, .. } = event {
            let _ = sender.send((held.due, *lateness));
        }
    });
    let run = tokio::spawn(worker.run_until(stop.clone()));
    let mut latest = Duration::ZERO;
    for n in 0..20u32 {
        duly.push(mail().after(Duration::from_millis(30) + Duration::from_micros(777) * n)).await.expect("pushes");
    }
    for _ in 0..20 {
        let (due, late) = tokio::time::timeout(TIMEOUT, received.recv()).await.expect("in time").expect("open");
        assert!(std::time::SystemTime::now() >= due, "early");
        latest = latest.max(late);
    }
    assert!(latest < Duration::from_secs(2), "{latest:?}");
    stop.cancel();
    run.await.expect("no panic").expect("ends well");
}

#[tokio::test]
async fn any_number_of_done_jobs_can_be_kept() {
    let duly = memory().await;
    duly.push_all((0..3).map(|_| mail())).await.expect("pushes");
    duly.worker().on(|_: Mail, _| async {}).drain().await.expect("drains");
    for (done_max, pruned) in [(usize::MAX, 0), (2, 1), (0, 2)] {
        assert_eq!(duly.store().prune("default", done_max).await.expect("prunes"), pruned, "{done_max}");
    }
}

#[tokio::test]
async fn test_can_advance_the_clock() {
    let clock = Clock::manual();
    let duly = Duly::builder(":memory:").clock(clock.clone()).open().await.expect("opens");
    duly.push(mail().after(Duration::from_secs(86_400))).await.expect("pushes");
    let drain = || duly.worker().on(|_: Mail, _| async {}).drain();
    assert_eq!(drain().await.expect("drains").acked, 0);
    clock.advance(Duration::from_secs(86_400));
    assert_eq!(drain().await.expect("drains").acked, 1);
}

#[tokio::test]
async fn invalid_worker_settings_are_reported() {
    let duly = memory().await;
    let error = async |worker: duly::Worker| worker.drain().await.expect_err("refused").to_string();
    assert!(error(duly.worker()).await.contains("no handler"));
    let worker = || duly.worker().on(|_: Mail, _| async {});
    assert!(error(worker().concurrency(0)).await.contains("at least 1"));
    assert!(error(worker().queue("a", 0)).await.contains("from 1"));
    assert!(error(worker().queue("a", 1).queue("a", 1)).await.contains("twice"));
    assert!(error(worker().queue("a b", 1)).await.contains("' '"));
    assert!(error(worker().queue("a", 1).weight("b", 1)).await.contains("not a queue of this worker"));
}

/// A worker that reports its name and queue for every job it starts.
fn reporting_worker(
    duly: &Duly,
    name: &'static str,
    starts: mpsc::UnboundedSender<(&'static str, String)>,
) -> duly::Worker {
    duly.worker().on_event(move |event| {
        if let Event::Started { held, .. } = event {
            let _ = starts.send((name, held.job.queue.clone()));
        }
    })
}

#[tokio::test]
async fn worker_without_free_slots_leaves_jobs_to_others() {
    // With a long lease, no node claims without a wake: a swallowed wake would never be made up for.
    let duly = Duly::open(":memory:?lease=1h").await.expect("opens");
    let (starts, mut received) = mpsc::unbounded_channel();
    let stop = CancellationToken::new();
    let pending = |_: Ctx| std::future::pending::<()>();
    let full = reporting_worker(&duly, "full", starts.clone()).queue("a", 1).queue("b", 1).concurrency(1);
    let full = full.grace(Duration::ZERO).on_kind("wait", pending).on_kind("quick", |_: Ctx| async {});
    let full = tokio::spawn(full.run_until(stop.clone()));
    let mut next = async || tokio::time::timeout(TIMEOUT, received.recv()).await.expect("in time").expect("open");
    duly.push(Push::new("quick", "{}").queue("b")).await.expect("pushes");
    assert_eq!(next().await, ("full", "b".into()));
    tokio::time::sleep(Duration::from_millis(200)).await; // now it is idle in both queues
    duly.push(Push::new("wait", "{}").queue("a")).await.expect("pushes");
    assert_eq!(next().await, ("full", "a".into()));

    let other = reporting_worker(&duly, "other", starts).queue("b", 5);
    let other = tokio::spawn(other.on_kind("quick", |_: Ctx| async {}).run_until(stop.clone()));
    for _ in 0..5 {
        duly.push(Push::new("quick", "{}").queue("b")).await.expect("pushes");
        assert_eq!(next().await, ("other", "b".into()));
    }
    stop.cancel();
    for run in [full, other] {
        run.await.expect("no panic").expect("ends well");
    }
}
