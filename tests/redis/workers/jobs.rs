//! Jobs from push to handler: args, order and start time.

use std::future::{Ready, ready};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use duly::admin::HistoryQuery;
use duly::bounds::ARGS_BYTES_MAX;
use duly::store::Node;
use duly::store::{Claim, JobStore};
use duly::worker::Event;
use duly::{Ctx, Filter, Priority, Push, State};
use test_support::until;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Location, on_each};
use crate::helpers::{LONG, open};

on_each![
    args_survive_byte_for_byte,
    urgent_jobs_start_first,
    jobs_start_at_due_and_not_before,
    job_is_not_claimed_before_due,
    retries_and_burials_keep_their_errors,
    counts_work_without_history,
    draining_worker_takes_back_from_dead_nodes,
];

type RecordedArgs = Arc<Mutex<Vec<String>>>;

/// Returns a handler that records the args of a job, after this many failed attempts.
fn record_args(
    recorded: &RecordedArgs,
    failures: u32,
) -> impl Fn(Ctx) -> Ready<Result<(), &'static str>> + Send + Sync + 'static {
    let recorded = recorded.clone();
    move |ctx: Ctx| {
        if ctx.attempt() <= failures {
            return ready(Err("not yet"));
        }
        recorded.lock().expect("no thread panics while holding it").push(ctx.job().args.clone());
        ready(Ok(()))
    }
}

async fn args_survive_byte_for_byte(location: Location) {
    let duly = open(&location.url).await;
    let longest = format!("\"{}\"", "ü".repeat((ARGS_BYTES_MAX - 2) / 2));
    let args = [
        "12345678901234567890123456789012345678901234567890",
        "-0.10000000000000000555111512312578270211815834045410156250",
        "1e400",
        "[]",
        "{}",
        "{\"a\":[],\"b\":{},\"a\":null}",
        " [ 1 ,\t2 ]\r\n",
        "\"\\u0000\\ud83d\\ude00 \u{1F600} \u{202e} é e\u{301}\"",
        "\"%s %d \\\\ {q} ' \\\" -- ]] \"",
        "\"\"",
        longest.as_str(),
    ];
    let ids = duly.push_all(args.map(|args| Push::new("note", args))).await.expect("pushes");
    for (pushed, args) in ids.iter().zip(args) {
        assert_eq!(duly.jobs().get(pushed.id()).await.expect("a reply").expect("is there").job.args, args);
    }
    let listed = duly.jobs().list(Filter::all().state(State::Ready)).await.expect("lists").jobs;
    assert!(listed.iter().map(|record| &record.job.args).eq(args), "as pushed, in order");
    // Through a retry, since the store keeps changing fields apart from pushed ones.
    let recorded = RecordedArgs::default();
    let worker = duly.worker().concurrency(1).default_retry(duly::Retry::fixed(Duration::ZERO));
    let summary = worker.on_kind("note", record_args(&recorded, 1)).drain().await;
    assert_eq!(summary.expect("drains").acked, args.len() as u64);
    assert!(recorded.lock().expect("no thread panics while holding it").iter().eq(args.iter()));
}

async fn urgent_jobs_start_first(location: Location) {
    let duly = open(&location.url).await;
    for n in 0..12 {
        let priority = Priority::ALL[3 - n % 4];
        let push = Push::new("note", format!("\"{priority} {n}\"")).priority(priority);
        duly.push(if n < 4 { push.after(Duration::from_millis(1)) } else { push }).await.expect("pushes");
    }
    tokio::time::sleep(Duration::from_millis(5)).await;
    let recorded = RecordedArgs::default();
    duly.worker().concurrency(1).on_kind("note", record_args(&recorded, 0)).drain().await.expect("drains");
    let recorded = recorded.lock().expect("no thread panics while holding it");
    let expected = Priority::ALL.into_iter().enumerate().flat_map(|(rank, priority)| {
        // Jobs that became due were appended behind the ready ones.
        [7 - rank, 11 - rank, 3 - rank].map(|n| format!("\"{priority} {n}\""))
    });
    assert_eq!(*recorded, expected.collect::<Vec<_>>());
}

async fn jobs_start_at_due_and_not_before(location: Location) {
    let duly = open(&location.url).await;
    let (sender, mut starts) = mpsc::unbounded_channel();
    let stop = CancellationToken::new();
    let worker = duly.worker().concurrency(50).on_kind("due", |_| async {}).on_event(move |event| {
        if let Event::Started { held, lateness, .. } = event {
            let _ = sender.send((held.due, *lateness, SystemTime::now()));
        }
    });
    let run = tokio::spawn(worker.run_until(stop.clone()));
    let base = SystemTime::now();
    let jobs = (0..40).map(|n| {
        let wait = Duration::from_millis((n * 37) % 1_000);
        let job = Push::new("due", "{}");
        if n % 2 == 0 { job.after(wait) } else { job.at(base + wait) }
    });
    duly.push_all(jobs).await.expect("pushes");
    let mut latenesses = Vec::new();
    for _ in 0..40 {
        let (due, lateness, started) =
            tokio::time::timeout(LONG, starts.recv()).await.expect("in time").expect("works");
        assert!(started >= due, "started {:?} early", due.duration_since(started));
        latenesses.push(lateness);
    }
    latenesses.sort();
    println!("claimed {:?} after due (median), {:?} (longest)", latenesses[20], latenesses[39]);
    assert!(latenesses[39] < Duration::from_secs(5), "{latenesses:?}");
    stop.cancel();
    assert_eq!(run.await.expect("no panic").expect("ends well").acked, 40);
}

/// A push without a script estimates the store's time. The estimate must never be ahead of it.
async fn job_is_not_claimed_before_due(location: Location) {
    let (pusher, claimer) = (open(&location.url).await, open(&location.url).await);
    let (store, node) = (claimer.store(), Node::fresh(vec!["default".into()]));
    store.heartbeat(&node).await.expect("sends a heartbeat");
    for n in 0..60 {
        let push = Push::new("due", "{}");
        let push = if n % 3 == 0 { push.after(Duration::from_micros(200)) } else { push };
        pusher.push(push).await.expect("pushes");
        let claim = Claim::new("default", 1);
        let claimed = store.claim(node.id, claim).await.expect("claims");
        for held in &claimed.jobs {
            assert!(held.due <= claimed.now, "{:?} early", held.due.duration_since(claimed.now));
            assert!(held.job.pushed <= claimed.now, "{:?} early", held.job.pushed.duration_since(claimed.now));
        }
    }
    store.leave(node.id).await.expect("leaves");
}

async fn retries_and_burials_keep_their_errors(location: Location) {
    let duly = open(&location.url).await;
    let id = duly.push(Push::new("fails", "{}").max_attempts(3)).await.expect("pushes").id();
    let worker = duly
        .worker()
        .default_retry(duly::Retry::fixed(Duration::ZERO))
        .on_kind("fails", |ctx: Ctx| async move { Err::<(), _>(format!("oh {} ü", ctx.attempt())) });
    let summary = worker.drain().await.expect("drains");
    assert_eq!((summary.retried, summary.buried), (2, 1));
    let record = duly.jobs().get(id).await.expect("a reply").expect("is there");
    let errors: Vec<(u32, &str)> = record.failures.iter().map(|f| (f.attempt, f.error.as_str())).collect();
    assert_eq!((record.state, record.attempts), (State::Dead, 3));
    assert_eq!(errors, [(1, "oh 1 ü"), (2, "oh 2 ü"), (3, "oh 3 ü")]);
    assert!(record.failures.windows(2).all(|two| two[0].at <= two[1].at));
}

async fn counts_work_without_history(location: Location) {
    let (off, on) = (open(location.with("history=off")).await, open(&location.url).await);
    let recorded = RecordedArgs::default();
    for n in 0..20 {
        let push = Push::new("note", n.to_string()).keep(Duration::from_secs(60));
        // By every path: alone, in a batch, later, with a unique key.
        let push = if n % 3 == 0 { push.unique(format!("key {n}")) } else { push };
        off.push(if n % 5 == 0 { push.after(Duration::from_millis(1)) } else { push }).await.expect("pushes");
    }
    off.push_all((0..10).map(|n| Push::new("note", n.to_string()))).await.expect("pushes");
    off.worker().on_kind("note", record_args(&recorded, 0)).drain().await.expect("drains");
    assert!(on.queues().history(HistoryQuery::default()).await.expect("a report").points.is_empty());
    on.push(Push::new("note", "1")).await.expect("pushes");
    assert_eq!(
        off.queues().history(HistoryQuery::default()).await.expect("a report").total().pushed,
        1,
        "other handles may keep a history"
    );
    let counts = &on.queues().counts().await.expect("counts")[0];
    assert_eq!(counts.bytes, counts.ready + counts.scheduled);
    assert!(on.verify().await.expect("verifies").violations.is_empty());
}

/// It must be in contact for a whole lease first.
async fn draining_worker_takes_back_from_dead_nodes(location: Location) {
    let duly = open(&format!("{}&lease=1s", location.url)).await;
    duly.push(Push::new("note", "1")).await.expect("pushes");
    let (store, mut dead) = (duly.store(), Node::fresh(vec!["default".to_owned()]));
    dead.lease = Duration::from_secs(1);
    store.heartbeat(&dead).await.expect("sends a heartbeat");
    let claim = Claim::new("default", 1);
    assert_eq!(store.claim(dead.id, claim).await.expect("claims").jobs.len(), 1);
    let is_alive =
        async || duly.nodes().list().await.expect("a reply").iter().any(|node| node.id == dead.id && node.alive);
    until("its lease expires", async || !is_alive().await).await;
    let recorded = RecordedArgs::default();
    let summary = duly.worker().on_kind("note", record_args(&recorded, 0)).drain().await.expect("drains");
    assert_eq!(summary.acked, 1, "its job was taken back and run");
}
