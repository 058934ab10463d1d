//! The worker as its users see it: handlers, outcomes, retries, limits, stopping.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use duly::{Args, Clock, Ctx, Duly, Error, Event, Outcome, Push, Retry, State};
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

/// Far longer than anything here takes; a test that waits this long has failed.
const LONG: Duration = Duration::from_secs(20);

#[derive(Serialize, Deserialize, Debug, PartialEq)]
struct Mail {
    to: String,
}
impl Args for Mail {
    const KIND: &'static str = "mail";
}

fn mail() -> Mail {
    Mail { to: "ada".into() }
}

async fn memory() -> Duly {
    Duly::open(":memory:").await.expect("opens")
}

async fn only(duly: &Duly, id: duly::JobId) -> duly::Record {
    duly.get(id).await.expect("looks").expect("is there")
}

#[tokio::test]
async fn a_handler_gets_its_args_and_its_context() {
    let duly = memory().await;
    let id = duly.push(mail().max_attempts(3)).await.expect("pushes").id();
    let (seen, mut got) = mpsc::unbounded_channel();
    let handler = move |job: Mail, ctx: Ctx| {
        let seen = seen.clone();
        async move {
            let state: Option<&u32> = ctx.state();
            let told = (job, ctx.job().id, ctx.attempt(), ctx.fence().0 > 0, state.copied(), ctx.is_cancelled());
            seen.send(told).expect("listens");
        }
    };
    let tally = duly.worker().with(7u32).on(handler).drain().await.expect("drains");
    assert_eq!(tally.acked, 1);
    assert_eq!(got.recv().await.expect("ran"), (mail(), id, 1, true, Some(7), false));
    assert_eq!(only(&duly, id).await.state, State::Done);
}

#[tokio::test]
async fn any_error_type_fails_an_attempt_and_is_kept() {
    let duly = memory().await;
    for kind in ["io", "text", "chain", "panic", "none"] {
        duly.push(Push::new(kind, "1").max_attempts(1)).await.expect("pushes");
    }
    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] std::io::Error);
    let tally = duly
        .worker()
        .on_kind("io", |_| async { Err::<(), _>(std::io::Error::other("no disk")) })
        .on_kind("text", |_| async { Err::<(), _>("plain text") })
        .on_kind("chain", |_| async { Err::<(), _>(Outer(std::io::Error::other("inner"))) })
        .on_kind("panic", |ctx: Ctx| async move {
            if ctx.attempt() > 0 {
                panic!("oh {}", ctx.attempt())
            }
        })
        .on_kind("none", |_| async {})
        .drain()
        .await
        .expect("drains");
    assert_eq!((tally.acked, tally.buried), (1, 4));
    let dead =
        duly.list(duly::Filter { state: Some(State::Dead), limit: 9, ..Default::default() }).await.expect("lists");
    let mut errors = BTreeMap::new();
    for record in dead.jobs {
        let failures = only(&duly, record.job.id).await.failures;
        errors.insert(record.job.kind, failures[0].error.clone());
    }
    assert_eq!(errors["io"], "no disk");
    assert_eq!(errors["text"], "plain text");
    assert_eq!(errors["chain"], "outer: inner");
    assert_eq!(errors["panic"], "panicked: oh 1");
}

#[tokio::test]
async fn args_that_do_not_decode_are_told_and_kept() {
    let duly = memory().await;
    let id = duly.push(Push::new("mail", r#"{"to":5}"#).max_attempts(1)).await.expect("pushes").id();
    duly.worker().on(|_: Mail, _| async {}).drain().await.expect("drains");
    let record = only(&duly, id).await;
    assert_eq!(record.state, State::Dead);
    assert!(record.failures[0].error.contains("the args do not decode as worker::Mail"), "{record:?}");
}

#[tokio::test]
async fn outcomes_are_values() {
    let duly = memory().await;
    let ids = duly.push_all(["retry", "bury", "release"].map(|kind| Push::new(kind, "{}"))).await.expect("pushes");
    let tally = duly
        .worker()
        .on_kind("retry", |_| async { Outcome::retry(Duration::from_secs(60), "later") })
        .on_kind("bury", |_| async { Ok::<_, Error>(Outcome::bury("never")) })
        .on_kind("release", |_| async { Outcome::release(Duration::from_secs(60)) })
        .drain()
        .await
        .expect("drains");
    assert_eq!((tally.retried, tally.buried, tally.released), (1, 1, 1));
    let states = [State::Scheduled, State::Dead, State::Scheduled];
    let attempts = [1, 1, 0];
    for ((pushed, state), attempts) in ids.iter().zip(states).zip(attempts) {
        let record = only(&duly, pushed.id()).await;
        assert_eq!((record.state, record.attempts), (state, attempts));
    }
}

#[tokio::test]
async fn failures_are_retried_by_their_kind_until_the_last_attempt() {
    let duly = memory().await;
    let id = duly.push(mail().max_attempts(4)).await.expect("pushes").id();
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let failing = move |_: Mail, ctx: Ctx| {
        let counted = counted.clone();
        async move {
            counted.fetch_add(1, Ordering::SeqCst);
            Err::<(), _>(format!("attempt {}", ctx.attempt()))
        }
    };
    let worker = duly.worker().on(failing).retry("mail", Retry::every(Duration::ZERO)).retry_all(Retry::every(LONG));
    let tally = worker.drain().await.expect("drains");
    assert_eq!((calls.load(Ordering::SeqCst), tally.retried, tally.buried), (4, 3, 1));
    let record = only(&duly, id).await;
    let errors: Vec<_> = record.failures.iter().map(|failure| failure.error.as_str()).collect();
    assert_eq!(errors, ["attempt 1", "attempt 2", "attempt 3", "attempt 4"]);
}

#[tokio::test]
async fn an_attempt_that_runs_too_long_is_timed_out() {
    let duly = memory().await;
    let id = duly.push(mail().timeout(Duration::from_millis(20)).max_attempts(1)).await.expect("pushes").id();
    duly.worker().on(|_: Mail, _| std::future::pending::<()>()).drain().await.expect("drains");
    let record = only(&duly, id).await;
    assert_eq!((record.state, record.failures[0].error.as_str()), (State::Dead, "timed out after 20ms"));
}

#[tokio::test]
async fn a_kind_that_nobody_knows_is_left_for_others() {
    let duly = memory().await;
    let id = duly.push(Push::new("strange", "{}")).await.expect("pushes").id();
    let tally = duly.worker().on(|_: Mail, _| async {}).drain().await.expect("drains");
    assert_eq!(tally.released, 1);
    let record = only(&duly, id).await;
    assert_eq!((record.state, record.attempts), (State::Scheduled, 0), "not counted, never buried");
}

#[tokio::test]
async fn limits_hold_for_each_queue_and_for_all() {
    let duly = memory().await;
    let jobs = (0..60).map(|n| Push::new("count", "{}").queue(["a", "b"][n % 2]));
    duly.push_all(jobs).await.expect("pushes");
    let running: Arc<Mutex<BTreeMap<String, usize>>> = Arc::default();
    let most: Arc<Mutex<BTreeMap<String, usize>>> = Arc::default();
    let (now, peak) = (running.clone(), most.clone());
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
    let tally = duly.worker().queue("a", 3).queue("b", 4).concurrency(5).on_kind("count", count).drain().await;
    assert_eq!(tally.expect("drains").acked, 60);
    let most = most.lock().expect("lock");
    assert!(most["a"] <= 3 && most["b"] <= 4 && most["all"] <= 5, "{most:?}");
}

#[tokio::test]
async fn queues_are_worked_in_strict_order() {
    let duly = memory().await;
    duly.push_all((0..20).map(|n| Push::new("note", "{}").queue(["second", "first"][n % 2]))).await.expect("pushes");
    let order: Arc<Mutex<Vec<String>>> = Arc::default();
    let noted = order.clone();
    let note = move |ctx: Ctx| {
        noted.lock().expect("lock").push(ctx.job().queue.clone());
        async {}
    };
    let worker = duly.worker().queue("first", 1).queue("second", 1).concurrency(1).on_kind("note", note);
    worker.drain().await.expect("drains");
    let order = order.lock().expect("lock");
    assert!(order[..10].iter().all(|queue| queue == "first"), "{order:?}");
}

#[tokio::test]
async fn weights_give_each_queue_its_share() {
    let duly = memory().await;
    duly.push_all((0..800).map(|n| Push::new("note", "{}").queue(["much", "little"][n % 2]))).await.expect("pushes");
    let order: Arc<Mutex<Vec<String>>> = Arc::default();
    let noted = order.clone();
    let note = move |ctx: Ctx| {
        noted.lock().expect("lock").push(ctx.job().queue.clone());
        async {}
    };
    let worker = duly.worker().queue("much", 4).queue("little", 4).concurrency(4);
    worker.weight("much", 3).weight("little", 1).on_kind("note", note).drain().await.expect("drains");
    let order = order.lock().expect("lock");
    let much = order[..400].iter().filter(|queue| *queue == "much").count();
    assert!((240..360).contains(&much), "three of four, about: {much} of 400");
}

#[tokio::test]
async fn a_job_starts_at_its_time_and_not_before() {
    let duly = memory().await;
    let (seen, mut got) = mpsc::unbounded_channel();
    let stop = CancellationToken::new();
    let worker = duly.worker().on(|_: Mail, _| async {}).on_event(move |event| {
        if let Event::Started { held, late } = event {
            let _ = seen.send((held.due, *late));
        }
    });
    let run = tokio::spawn(worker.run_until(stop.clone()));
    let mut latest = Duration::ZERO;
    for n in 0..20u32 {
        duly.push(mail().after(Duration::from_millis(30) + Duration::from_micros(777) * n)).await.expect("pushes");
    }
    for _ in 0..20 {
        let (due, late) = tokio::time::timeout(LONG, got.recv()).await.expect("in time").expect("open");
        assert!(std::time::SystemTime::now() >= due, "early");
        latest = latest.max(late);
    }
    assert!(latest < Duration::from_secs(2), "{latest:?}");
    stop.cancel();
    run.await.expect("no panic").expect("ends well");
}

#[tokio::test]
async fn time_can_be_moved_by_a_test() {
    let clock = Clock::manual();
    let duly = Duly::builder(":memory:").clock(clock.clone()).open().await.expect("opens");
    duly.push(mail().after(Duration::from_secs(86_400))).await.expect("pushes");
    let drain = || duly.worker().on(|_: Mail, _| async {}).drain();
    assert_eq!(drain().await.expect("drains").acked, 0);
    clock.advance(Duration::from_secs(86_400));
    assert_eq!(drain().await.expect("drains").acked, 1);
}

/// A worker with one job that runs until it is let go.
async fn busy(
    duly: &Duly,
    grace: Duration,
) -> (tokio::task::JoinHandle<duly::Result<duly::Tally>>, [CancellationToken; 2], Arc<Notify>) {
    let tokens = [CancellationToken::new(), CancellationToken::new()];
    let (started, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (tell, wait) = (started.clone(), go.clone());
    let handler = move |_: Mail, _: Ctx| {
        let (tell, wait) = (tell.clone(), wait.clone());
        async move {
            tell.notify_one();
            wait.notified().await;
        }
    };
    let worker = duly.worker().on(handler).grace(grace);
    let run = tokio::spawn(worker.run_until_either(tokens[0].clone(), tokens[1].clone()));
    tokio::time::timeout(LONG, started.notified()).await.expect("starts");
    (run, tokens, go)
}

#[tokio::test]
async fn a_stopping_worker_lets_running_jobs_finish() {
    let duly = memory().await;
    let id = duly.push(mail()).await.expect("pushes").id();
    let (run, [stop, _], go) = busy(&duly, LONG).await;
    stop.cancel();
    duly.push(mail()).await.expect("pushes");
    go.notify_one();
    let tally = tokio::time::timeout(LONG, run).await.expect("in time").expect("no panic").expect("ends well");
    assert_eq!((tally.acked, tally.settled()), (1, 1), "and claims no more");
    assert_eq!(only(&duly, id).await.state, State::Done);
}

#[tokio::test]
async fn what_does_not_finish_in_the_grace_time_is_released_at_once() {
    for second_signal in [false, true] {
        let duly = memory().await;
        let id = duly.push(mail()).await.expect("pushes").id();
        let grace = if second_signal { 100 * LONG } else { Duration::from_millis(30) };
        let (run, [stop, at_once], _go) = busy(&duly, grace).await;
        stop.cancel();
        if second_signal {
            at_once.cancel();
        }
        let tally = tokio::time::timeout(LONG, run).await.expect("in time").expect("no panic").expect("ends well");
        assert_eq!(tally.released, 1);
        let record = only(&duly, id).await;
        assert_eq!((record.state, record.attempts, record.crashes), (State::Ready, 0, 0));
        assert!(duly.nodes().await.expect("lists").is_empty(), "the node has left");
    }
}

#[tokio::test]
async fn a_job_that_keeps_crashing_is_buried_without_using_up_attempts() {
    let clock = Clock::manual();
    let duly = Duly::builder(":memory:").clock(clock.clone()).open().await.expect("opens");
    let id = duly.push(mail().max_attempts(1)).await.expect("pushes").id();
    let store = duly.store();
    let claim = |suspect| duly::store::Claim { queue: "default".into(), max: 1, redo: false, suspect };
    let mut suspect = None;
    for _ in 0..4 {
        // A node that claims and is gone, as a process that its job has taken down.
        let node = duly::Node::fresh(Vec::new());
        store.beat(&node).await.expect("beats");
        assert_eq!(store.claim(node.id, claim(suspect)).await.expect("claims").jobs.len(), 1);
        store.leave(node.id).await.expect("leaves");
        suspect = Some(node.id);
    }
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let worker = duly.worker().on(move |_: Mail, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        async {}
    });
    let tally = worker.drain().await.expect("drains");
    assert_eq!((tally.buried, calls.load(Ordering::SeqCst)), (1, 0));
    let record = only(&duly, id).await;
    assert_eq!((record.state, record.crashes, record.failures.len()), (State::Dead, 4, 5));
}

#[tokio::test]
async fn what_a_handler_pushes_carries_the_trace_on() {
    let duly = memory().await;
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    duly.push(Push::new("parent", "{}").traceparent(trace)).await.expect("pushes");
    let (seen, mut got) = mpsc::unbounded_channel();
    duly.worker()
        .on_kind("parent", |ctx: Ctx| async move { ctx.push(mail()).await.map(drop) })
        .on(move |_: Mail, ctx: Ctx| {
            let _ = seen.send(ctx.job().traceparent.clone());
            async {}
        })
        .drain()
        .await
        .expect("drains");
    assert_eq!(got.recv().await.expect("ran").as_deref(), Some(trace));
}

#[tokio::test]
async fn a_worker_says_what_is_wrong_with_it() {
    let duly = memory().await;
    let wrong = async |worker: duly::Worker| worker.drain().await.expect_err("refused").to_string();
    assert!(wrong(duly.worker()).await.contains("no handler"));
    let with = || duly.worker().on(|_: Mail, _| async {});
    assert!(wrong(with().concurrency(0)).await.contains("at least 1"));
    assert!(wrong(with().queue("a", 0)).await.contains("from 1"));
    assert!(wrong(with().queue("a", 1).queue("a", 1)).await.contains("twice"));
    assert!(wrong(with().queue("a b", 1)).await.contains("' '"));
    assert!(wrong(with().queue("a", 1).weight("b", 1)).await.contains("not a queue of this worker"));
}

#[tokio::test]
async fn a_worker_that_does_not_know_what_it_holds_is_told_and_runs_it() {
    let duly = Duly::open(":memory:?lease=300ms").await.expect("opens");
    let first = duly.push(mail()).await.expect("pushes").id();
    let (seen, mut got) = mpsc::unbounded_channel();
    let (stop, go) = (CancellationToken::new(), Arc::new(Notify::new()));
    let (joined, mut node) = mpsc::unbounded_channel();
    let wait = go.clone();
    let worker = duly
        .worker()
        .concurrency(1)
        .on(move |_: Mail, ctx: Ctx| {
            let (seen, wait) = (seen.clone(), wait.clone());
            async move {
                let _ = seen.send(ctx.job().id);
                wait.notified().await;
            }
        })
        .on_event(move |event| {
            if let Event::Joined { node } = event {
                let _ = joined.send(*node);
            }
        });
    let run = tokio::spawn(worker.run_until(stop.clone()));
    let mut ran = async || tokio::time::timeout(LONG, got.recv()).await.expect("in time").expect("open");
    assert_eq!(ran().await, first);

    // The worker is full. A claim in its name whose answer it never sees: the job is held, and nobody runs it.
    let lost = duly.push(mail()).await.expect("pushes").id();
    let claim = duly::store::Claim { queue: "default".into(), max: 1, redo: false, suspect: None };
    let node = node.recv().await.expect("joined");
    assert_eq!(duly.store().claim(node, claim).await.expect("claims").jobs[0].job.id, lost);

    go.notify_one();
    assert_eq!(ran().await, lost, "the count of the beats differs, and the store is asked what it holds");
    go.notify_one();
    stop.cancel();
    assert_eq!(run.await.expect("no panic").expect("ends well").acked, 2);
}

#[tokio::test]
async fn an_attempt_learns_that_its_job_is_another_nodes() {
    let duly = Duly::open(":memory:?lease=300ms").await.expect("opens");
    duly.push(mail()).await.expect("pushes");
    let (told, mut got) = mpsc::unbounded_channel();
    let stop = CancellationToken::new();
    let worker = duly.worker().on(move |_: Mail, ctx: Ctx| {
        let told = told.clone();
        async move {
            let _ = told.send((ctx.fence(), false));
            ctx.cancelled().await;
            let _ = told.send((ctx.fence(), true));
        }
    });
    let run = tokio::spawn(worker.run_until(stop.clone()));
    let mut next = async || tokio::time::timeout(LONG, got.recv()).await.expect("in time").expect("open");
    let (fence, _) = next().await;

    // Its outcome is recorded behind its back, as if another node had taken it over and finished it.
    let node = duly.nodes().await.expect("lists")[0].id;
    let redo = duly::store::Claim { queue: "default".into(), max: 1, redo: true, suspect: None };
    let held = duly.store().claim(node, redo).await.expect("claims").jobs.remove(0);
    let end = duly::store::End::of(&held, Outcome::Ack, Duration::ZERO);
    duly.store().settle(node, vec![end]).await.expect("settles");

    assert_eq!(next().await, (fence, true));
    stop.cancel();
    assert_eq!(run.await.expect("no panic").expect("ends well").lost, 1, "and its own outcome is refused");
}
