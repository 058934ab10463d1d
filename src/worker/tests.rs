//! The run loop on a store that fails: refused requests, lost replies, slow replies.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use test_support::{in_time, until};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::error::Result;
use crate::job::push::Push;
use crate::job::{JobId, State};
use crate::node::Node;
use crate::store::faulty::{FaultyStore, InjectedFault};
use crate::store::{Claim, JobStore, Store};
use crate::sync::LockExt;

/// More faults than any test triggers.
const ALWAYS: usize = usize::MAX;

/// A running worker on a store with injected faults.
struct WorkerFixture {
    duly: Duly,
    store: Arc<FaultyStore>,
    /// The store without faults.
    inner: Arc<dyn Store>,
    /// The number of started attempts.
    starts: Arc<AtomicUsize>,
    stop: CancellationToken,
    run: JoinHandle<Result<RunSummary>>,
}

impl WorkerFixture {
    async fn new(url: &str) -> Self {
        let mut duly = Duly::open(url).await.expect("opens");
        let inner = duly.store();
        let store = FaultyStore::new(inner.clone());
        duly.store = store.clone();
        let (starts, stop) = (Arc::new(AtomicUsize::new(0)), CancellationToken::new());
        let counted = starts.clone();
        let worker = duly.worker().on_kind("mail", move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
            async {}
        });
        let run = tokio::spawn(worker.run_until(stop.clone()));
        let fixture = WorkerFixture { duly, store, inner, starts, stop, run };
        fixture.wait_until("the worker has claimed", |fixture| fixture.store.call_count("claim") > 0).await;
        fixture
    }

    async fn wait_until(&self, expected: &str, is_met: impl Fn(&WorkerFixture) -> bool) {
        until(expected, async || is_met(self)).await;
    }

    /// Pushes a job and waits until it is done or dead.
    async fn push_and_wait_until_final(&self) {
        let id = self.duly.push(Push::new("mail", "{}")).await.expect("pushes").id();
        self.wait_for_state(id, State::is_final).await;
    }

    async fn wait_for_state(&self, id: JobId, is_expected: impl Fn(State) -> bool) {
        until("the job has the state", async || is_expected(self.state(id).await)).await;
    }

    async fn state(&self, id: JobId) -> State {
        self.duly.jobs().get(id).await.expect("reads").expect("is kept").state
    }

    async fn shut_down(self) -> RunSummary {
        self.stop.cancel();
        in_time(self.run).await.expect("no panic").expect("ends well")
    }
}

#[tokio::test]
async fn slow_reply_does_not_delay_heartbeats() {
    let fixture = WorkerFixture::new(":memory:?lease=300ms").await;
    let before = fixture.store.call_count("heartbeat");
    fixture.store.inject("heartbeat", InjectedFault::WithholdReply, ALWAYS);
    fixture.wait_until("heartbeats go on", |fixture| fixture.store.call_count("heartbeat") >= before + 5).await;
    // The check once a second does not depend on the reply either.
    fixture.push_and_wait_until_final().await;
    assert_eq!(fixture.shut_down().await.acked, 1);
}

#[tokio::test]
async fn job_of_a_claim_with_lost_reply_is_run() {
    // With a lease this long, no heartbeat reports the forgotten job.
    let fixture = WorkerFixture::new(":memory:?lease=1h").await;
    fixture.store.inject("claim", InjectedFault::LoseReply, 1);
    fixture.push_and_wait_until_final().await;
    let starts = fixture.starts.load(Ordering::SeqCst);
    assert_eq!((fixture.shut_down().await.acked, starts), (1, 1));
}

/// Two large claims are in flight at once.
#[tokio::test]
async fn large_claims_with_lost_replies_run_every_job_once() {
    const JOBS: usize = 5_000;
    let mut duly = Duly::open(":memory:?lease=1h").await.expect("opens");
    let store = FaultyStore::new(duly.store());
    duly.store = store.clone();
    duly.push_all((0..JOBS).map(|_| Push::new("mail", "{}"))).await.expect("pushes");
    let starts = Arc::new(AtomicUsize::new(0));
    let (counted, faulty) = (starts.clone(), store.clone());
    let worker = duly.worker().queue("default", 400).on_kind("mail", move |_| {
        // Over and over while it works, sometimes two in a row.
        let fault = match counted.fetch_add(1, Ordering::SeqCst) % 700 {
            0 => Some((InjectedFault::LoseReply, 2)),
            350 => Some((InjectedFault::Refuse, 1)),
            _ => None,
        };
        if let Some((fault, times)) = fault {
            faulty.inject("claim", fault, times);
        }
        async {}
    });
    let summary = in_time(worker.drain()).await.expect("ends well");
    assert_eq!((summary.acked, summary.lost, starts.load(Ordering::SeqCst)), (JOBS as u64, 0, JOBS));
}

/// The worker sends no heartbeats while a reply is on its way, and another node takes the job.
#[tokio::test]
async fn job_that_was_lost_before_its_claim_reply_arrived_is_not_started() {
    let dir = test_support::temp_dir();
    let file = format!("{}?lease=500ms", dir.path().join("duly.db").display());
    for url in [":memory:?lease=500ms", &file] {
        let fixture = WorkerFixture::new(url).await;
        let worker = fixture.duly.nodes().list().await.expect("reads")[0].id;
        fixture.store.inject("claim", InjectedFault::HoldReply, 1);
        let id = fixture.duly.push(Push::new("mail", "{}")).await.expect("pushes").id();
        fixture.wait_for_state(id, |state| state == State::Running).await;
        fixture.store.inject("heartbeat", InjectedFault::Refuse, ALWAYS);
        let other = Node { lease: Duration::from_millis(500), ..Node::fresh(vec!["default".into()]) };
        until("the other node takes the job", async || {
            fixture.inner.heartbeat(&other).await.expect("heartbeat");
            let claim = Claim { suspect: Some(worker), ..Claim::new("default", 1) };
            !fixture.inner.claim(other.id, claim).await.expect("claims").jobs.is_empty()
        })
        .await;
        let claims = fixture.store.call_count("claim");
        fixture.store.release_replies();
        fixture.wait_until("the worker handles the reply", |fixture| fixture.store.call_count("claim") > claims).await;
        let starts = fixture.starts.clone();
        assert_eq!((fixture.shut_down().await.lost, starts.load(Ordering::SeqCst)), (0, 0), "{url}");
    }
}

/// Until its outcome is recorded, a crash of the process would count as one of a job that ran alone.
#[tokio::test]
async fn other_jobs_start_only_after_the_outcome_of_a_crash_suspect_is_recorded() {
    const REFUSALS: usize = 5;
    let mut duly = Duly::open(":memory:?lease=300ms").await.expect("opens");
    let (inner, id) = (duly.store(), JobId::from_name("suspect"));
    duly.push(Push::new("mail", "{}").id(id)).await.expect("pushes");
    for _ in 0..crate::store::CRASH_SUSPECT_MIN {
        let node = || Node { lease: Duration::from_millis(300), ..Node::fresh(vec!["default".into()]) };
        let (dying, other) = (node(), node());
        inner.heartbeat(&dying).await.expect("joins");
        inner.claim(dying.id, Claim::new("default", 1)).await.expect("claims");
        until("the job is taken back", async || {
            inner.heartbeat(&other).await.expect("heartbeat");
            let claim = Claim { suspect: Some(dying.id), ..Claim::new("default", 0) };
            inner.claim(other.id, claim).await.expect("takes back").taken_back > 0
        })
        .await;
        inner.leave(other.id).await.expect("leaves");
    }
    let store = FaultyStore::new(inner);
    duly.store = store.clone();
    store.inject("settle", InjectedFault::Refuse, REFUSALS);
    let settles: Arc<std::sync::Mutex<Vec<usize>>> = Arc::default();
    let (starts, seen, pusher) = (settles.clone(), store.clone(), duly.clone());
    let worker = duly.worker().on_kind("mail", move |_| {
        let mut starts = starts.lock_unpoisoned();
        starts.push(seen.call_count("settle"));
        let (is_first, pusher) = (starts.len() == 1, pusher.clone());
        async move {
            if is_first {
                pusher.push(Push::new("mail", "{}")).await?;
            }
            Ok::<_, crate::Error>(())
        }
    });
    let summary = in_time(worker.drain()).await.expect("ends well");
    let settles = settles.lock_unpoisoned();
    assert_eq!((summary.acked, settles.len(), settles[0]), (2, 2, 0));
    assert!(settles[1] > REFUSALS, "it started after {} settles", settles[1]);
}

/// A job claimed before the worker became quiet, with a reply after that, is released for other nodes.
#[tokio::test]
async fn quiet_worker_releases_jobs_claimed_before() {
    let fixture = WorkerFixture::new(":memory:").await;
    fixture.store.inject("claim", InjectedFault::DelayReply(Duration::from_secs(5)), 1);
    let id = fixture.duly.push(Push::new("mail", "{}")).await.expect("pushes").id();
    fixture.wait_for_state(id, |state| state == State::Running).await;
    let node = fixture.duly.nodes().list().await.expect("reads")[0].id;
    // It may not be subscribed yet.
    until("the worker becomes quiet", async || {
        fixture.duly.call("duly.quiet", &()).node(node).reply::<u64>().await.ok() == Some(1)
    })
    .await;
    assert_eq!(fixture.state(id).await, State::Running, "the claim is still in flight");
    fixture.wait_for_state(id, |state| state == State::Ready).await;
    assert_eq!(fixture.starts.load(Ordering::SeqCst), 0);
    // `why` explains that the job waits because the worker is quiet.
    until("`why` names the quiet worker", async || fixture.duly.jobs().why(id).await.expect("reads").code() == "quiet")
        .await;
    assert_eq!(fixture.shut_down().await.acked, 0);
}

#[tokio::test]
async fn settle_with_lost_reply_is_not_reported_as_lost_job() {
    let fixture = WorkerFixture::new(":memory:").await;
    fixture.store.inject("settle", InjectedFault::LoseReply, 1);
    fixture.push_and_wait_until_final().await;
    fixture.wait_until("it has settled again", |fixture| fixture.store.call_count("settle") >= 2).await;
    let (starts, summary) = (fixture.starts.load(Ordering::SeqCst), fixture.shut_down().await);
    assert_eq!((summary.lost, summary.acked, starts), (0, 1, 1), "and it counts, once");
}

#[tokio::test]
async fn hanging_queue_does_not_delay_outcomes_of_another() {
    let mut duly = Duly::open(":memory:").await.expect("opens");
    let store = FaultyStore::new(duly.store());
    duly.store = store.clone();
    store.inject("settle", InjectedFault::WithholdReply, 1);
    let worker = duly.worker().queue("red", 5).queue("green", 5).grace(Duration::ZERO).on_kind("mail", |_| async {});
    let stop = CancellationToken::new();
    let run = tokio::spawn(worker.run_until(stop.clone()));
    duly.push(Push::new("mail", "{}").queue("red")).await.expect("pushes");
    until("the settle of red hangs", async || store.call_count("settle") > 0).await;
    let id = duly.push(Push::new("mail", "{}").queue("green")).await.expect("pushes").id();
    until("green is done without red", async || {
        duly.jobs().get(id).await.expect("reads").expect("is kept").state.is_final()
    })
    .await;
    stop.cancel();
    let summary = in_time(run).await.expect("no panic").expect("ends well");
    assert_eq!((summary.acked, summary.unrecorded), (1, 1));
}

#[tokio::test]
async fn store_errors_do_not_end_the_loop() {
    let fixture = WorkerFixture::new(":memory:").await;
    for op in ["claim", "settle", "heartbeat", "prune"] {
        fixture.store.inject(op, InjectedFault::Refuse, 3);
    }
    fixture.push_and_wait_until_final().await;
    assert_eq!(fixture.shut_down().await.acked, 1);
}

#[tokio::test]
async fn tick_with_lost_or_refused_reply_pushes_one_job() {
    let fixture = WorkerFixture::new(":memory:").await;
    fixture.store.inject("due_crons", InjectedFault::Refuse, 2);
    fixture.store.inject("fire_crons", InjectedFault::LoseReply, 1);
    fixture.duly.cron("each", "* * * * * *").push(Push::new("mail", "{}")).await.expect("puts");
    fixture.wait_until("some ticks have run", |fixture| fixture.starts.load(Ordering::SeqCst) >= 3).await;
    let record = fixture.duly.crons().pause("each").await.expect("pauses");
    let last = record.last_job().expect("has fired");
    let done =
        async || fixture.duly.jobs().get(last).await.expect("reads").is_some_and(|record| record.state.is_final());
    until("the last job is done", done).await;
    let jobs = fixture.duly.jobs().list(crate::Filter::default()).await.expect("lists").jobs;
    assert_eq!(fixture.starts.load(Ordering::SeqCst), jobs.len(), "each once: {jobs:?}");
    fixture.stop.cancel();
    fixture.run.await.expect("no panic").expect("works");
}

#[tokio::test]
async fn log_lines_are_kept_once_when_outcome_is_sent_twice() {
    let mut duly = Duly::open(":memory:").await.expect("opens");
    let store = FaultyStore::new(duly.store());
    duly.store = store.clone();
    let id = duly.push(Push::new("mail", "{}")).await.expect("pushes").id();
    store.inject("settle", InjectedFault::Refuse, 2);
    let worker = duly.worker().on_kind("mail", |ctx: crate::Ctx| async move {
        ctx.log("begun");
        // The first line is being sent by then. The second waits for the next interval and goes with the outcome.
        tokio::time::sleep(Duration::from_millis(50)).await;
        ctx.log("sent");
    });
    let stop = CancellationToken::new();
    let run = tokio::spawn(worker.run_until(stop.clone()));
    until("the job is done", async || duly.jobs().get(id).await.expect("reads").expect("is kept").state.is_final())
        .await;
    stop.cancel();
    run.await.expect("no panic").expect("ends well");
    let found = duly.jobs().get(id).await.expect("reads").expect("is kept");
    assert_eq!(found.log.iter().map(|line| line.line.as_str()).collect::<Vec<_>>(), ["begun", "sent"]);
    assert!(store.call_count("settle") >= 3);
}

/// The runtime of this test has one thread, and the handler blocks it until the loop has turned several times.
#[tokio::test]
async fn loop_continues_while_a_handler_blocks_the_only_thread() {
    const TURNS: usize = 5;
    const BLOCKED_MAX: Duration = Duration::from_secs(20);
    let duly = Duly::open(":memory:?lease=1s").await.expect("opens");
    let (turns, stop) = (Arc::new(AtomicUsize::new(0)), CancellationToken::new());
    let (seen, stopped) = (turns.clone(), stop.clone());
    let worker = duly
        .worker()
        .alive_interval(Duration::from_millis(10))
        .on_event({
            let turns = turns.clone();
            move |event| {
                turns.fetch_add(usize::from(matches!(event, Event::Alive)), Ordering::SeqCst);
            }
        })
        .on_kind("block", move |_| {
            let (before, begun) = (seen.load(Ordering::SeqCst), crate::clock::monotonic_now());
            while seen.load(Ordering::SeqCst) < before + TURNS && begun.elapsed() < BLOCKED_MAX {
                std::thread::sleep(Duration::from_millis(5));
            }
            let turned = seen.load(Ordering::SeqCst) - before;
            stopped.cancel();
            async move { if turned >= TURNS { Ok(()) } else { Err(format!("{turned} turns")) } }
        });
    let id = duly.push(Push::new("block", "{}").keep(Duration::from_secs(60))).await.expect("pushes").id();
    let summary = worker.run_until(stop).await.expect("ends well");
    assert_eq!((summary.acked, summary.retried, summary.lost), (1, 0, 0));
    assert_eq!(duly.jobs().get(id).await.expect("reads").map(|record| record.state), Some(State::Done));
}

/// The only thread of the runtime is blocked for longer than the job's timeout and the lease. A second client of the
/// file watches the job and the node.
#[tokio::test]
async fn handler_that_blocks_past_its_timeout_fails_and_its_process_does_not_count_as_dead() {
    const LEASE: Duration = Duration::from_secs(1);
    let dir = test_support::temp_dir();
    let file = format!("{}?lease=1s", dir.path().join("duly.db").display());
    let duly = Duly::open(&file).await.expect("opens");
    let push = Push::new("block", "{}").timeout(LEASE);
    let id = duly.push(push).await.expect("pushes").id();
    let watch = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("builds");
        runtime.block_on(async {
            let other = Duly::open(&file).await.expect("opens");
            let get = async || other.jobs().get(id).await.expect("reads").expect("is kept");
            until("the attempt has failed", async || get().await.attempts > 0).await;
            // If the node had lost its lease, this node would take its jobs back.
            other.worker().on_kind("other", async |_: crate::Ctx| ()).drain().await.expect("drains");
            tokio::time::sleep(LEASE * 2).await;
            (get().await, other.nodes().list().await.expect("reads"))
        })
    };
    let (stop, (sender, mut seen)) = (CancellationToken::new(), tokio::sync::mpsc::unbounded_channel());
    let stopped = stop.clone();
    let worker = duly.worker().on_kind("block", move |_| {
        let watched = std::thread::spawn(watch.clone()).join().expect("no panic");
        sender.send(watched).expect("is open");
        stopped.cancel();
        async {}
    });
    let summary = worker.run_until(stop).await.expect("ends well");
    assert_eq!((summary.acked, summary.retried, summary.lost), (0, 1, 0));
    let (record, nodes) = seen.recv().await.expect("has run");
    assert_eq!((record.state.is_final(), record.attempts, record.crashes), (false, 1, 0), "{:?}", record.state);
    let error = &record.failures[0].error;
    assert!(error.contains("blocked its thread past its timeout of 1s"), "{error}");
    assert!(nodes.iter().any(|node| node.alive && node.profile.quiet), "it keeps its lease: {nodes:?}");
}

/// While the only thread of the runtime is blocked, a new job stays ready for other nodes.
#[tokio::test]
async fn blocked_worker_claims_nothing_until_its_handler_returns() {
    const TURNS: usize = 5;
    const BLOCKED_MAX: Duration = Duration::from_secs(20);
    let duly = Duly::open(":memory:?lease=1s").await.expect("opens");
    let (turns, stop) = (Arc::new(AtomicUsize::new(0)), CancellationToken::new());
    let (seen, pusher, stopped) = (turns.clone(), duly.clone(), stop.clone());
    let wait_for_turns = move || {
        let (before, begun) = (seen.load(Ordering::SeqCst), crate::clock::monotonic_now());
        while seen.load(Ordering::SeqCst) < before + TURNS && crate::clock::monotonic_now() - begun < BLOCKED_MAX {
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let worker = duly
        .worker()
        .alive_interval(Duration::from_millis(10))
        .on_event(move |event| {
            turns.fetch_add(usize::from(matches!(event, Event::Alive)), Ordering::SeqCst);
        })
        .on_kind("block", move |_| {
            wait_for_turns();
            let other = pusher.clone();
            let run_elsewhere = move |wait: &dyn Fn()| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("builds");
                let id = runtime.block_on(other.push(Push::new("other", "{}"))).expect("pushes").id();
                wait();
                runtime.block_on(other.jobs().get(id)).expect("reads").map(|record| record.state)
            };
            let wait = wait_for_turns.clone();
            let state = std::thread::spawn(move || run_elsewhere(&wait)).join().expect("no panic");
            async move { if state == Some(State::Ready) { Ok(()) } else { Err(format!("{state:?}")) } }
        })
        .on_kind("other", move |_| {
            stopped.cancel();
            async {}
        });
    duly.push(Push::new("block", "{}")).await.expect("pushes");
    let summary = worker.run_until(stop).await.expect("ends well");
    assert_eq!((summary.acked, summary.retried, summary.lost), (2, 0, 0));
}
