//! The loop on a store that fails: refused, unanswered, slow.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::task::JoinHandle;

use super::*;
use crate::job::push::Push;
use crate::job::{JobId, State};
use crate::store::faulty::{FaultyStore, InjectedFault};

/// Far longer than anything here takes; a test that waits this long has failed.
const TEST_TIMEOUT: Duration = Duration::from_secs(20);
/// As good as always.
const ALWAYS: usize = usize::MAX;

/// A worker that runs on a store with faults to come.
struct WorkerFixture {
    duly: Duly,
    store: Arc<FaultyStore>,
    /// Starts of attempts.
    starts: Arc<AtomicUsize>,
    stop: CancellationToken,
    run: JoinHandle<Result<RunSummary>>,
}

impl WorkerFixture {
    async fn new(url: &str) -> Self {
        let mut duly = Duly::open(url).await.expect("opens");
        let store = FaultyStore::new(duly.store());
        duly.store = store.clone();
        let (starts, stop) = (Arc::new(AtomicUsize::new(0)), CancellationToken::new());
        let counted = starts.clone();
        let worker = duly.worker().on_kind("mail", move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
            async {}
        });
        let run = tokio::spawn(worker.run_until(stop.clone()));
        let bed = WorkerFixture { duly, store, starts, stop, run };
        bed.wait_until("it has looked for jobs", |bed| bed.store.call_count("claim") > 0).await;
        bed
    }

    async fn wait_until(&self, what: &str, so: impl Fn(&WorkerFixture) -> bool) {
        let looked = async {
            while !so(self) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(TEST_TIMEOUT, looked).await.unwrap_or_else(|_| panic!("waited in vain: {what}"));
    }

    /// Pushes a job, and waits until nothing of it is left to do.
    async fn push_and_wait_until_final(&self) {
        let id = self.duly.push(Push::new("mail", "{}")).await.expect("pushes").id();
        self.wait_for_state(id, State::is_final).await;
    }

    async fn wait_for_state(&self, id: JobId, so: impl Fn(State) -> bool) {
        let seen = async {
            while !so(self.state(id).await) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(TEST_TIMEOUT, seen).await.expect("it never is so");
    }

    async fn state(&self, id: JobId) -> State {
        self.duly.get(id).await.expect("looks").expect("is kept").state
    }

    async fn shut_down(self) -> RunSummary {
        self.stop.cancel();
        tokio::time::timeout(TEST_TIMEOUT, self.run).await.expect("in time").expect("no panic").expect("ends well")
    }
}

#[tokio::test]
async fn slow_reply_does_not_delay_heartbeats() {
    let bed = WorkerFixture::new(":memory:?lease=300ms").await;
    let before = bed.store.call_count("beat");
    bed.store.inject("beat", InjectedFault::WithholdReply, ALWAYS);
    bed.wait_until("it beats on", |bed| bed.store.call_count("beat") >= before + 5).await;
    // The look once a second does not depend on the answer either.
    bed.push_and_wait_until_final().await;
    assert_eq!(bed.shut_down().await.acked, 1);
}

#[tokio::test]
async fn job_of_a_claim_with_lost_reply_is_run() {
    // With so long a lease no beat tells of what was forgotten.
    let bed = WorkerFixture::new(":memory:?lease=1h").await;
    bed.store.inject("claim", InjectedFault::LoseReply, 1);
    bed.push_and_wait_until_final().await;
    let starts = bed.starts.load(Ordering::SeqCst);
    assert_eq!((bed.shut_down().await.acked, starts), (1, 1));
}

/// Two claims are in flight where each is for many.
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
        // Again and again while it works, also two in a row.
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
    let tally = tokio::time::timeout(TEST_TIMEOUT, worker.drain()).await.expect("in time").expect("ends well");
    assert_eq!((tally.acked, tally.lost, starts.load(Ordering::SeqCst)), (JOBS as u64, 0, JOBS));
}

/// What was claimed before somebody told the worker to be quiet, and is answered after, is for others to run.
#[tokio::test]
async fn quiet_worker_releases_jobs_claimed_before() {
    let bed = WorkerFixture::new(":memory:").await;
    bed.store.inject("claim", InjectedFault::DelayReply(Duration::from_secs(5)), 1);
    let id = bed.duly.push(Push::new("mail", "{}")).await.expect("pushes").id();
    bed.wait_for_state(id, |state| state == State::Running).await;
    let node = bed.duly.nodes().await.expect("looks")[0].id;
    let obeys = async {
        // It may not hear yet.
        while bed.duly.call("duly.quiet", &()).node(node).reply::<u64>().await.ok() != Some(1) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, obeys).await.expect("it never obeys");
    assert_eq!(bed.state(id).await, State::Running, "told while the claim is under way");
    bed.wait_for_state(id, |state| state == State::Ready).await;
    assert_eq!(bed.starts.load(Ordering::SeqCst), 0);
    // Everybody sees it, and why the job waits.
    let told = async {
        while bed.duly.why(id).await.expect("looks").code() != "quiet" {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, told).await.expect("nobody is told");
    assert_eq!(bed.shut_down().await.acked, 0);
}

#[tokio::test]
async fn settle_with_lost_reply_is_not_reported_as_lost_job() {
    let bed = WorkerFixture::new(":memory:").await;
    bed.store.inject("settle", InjectedFault::LoseReply, 1);
    bed.push_and_wait_until_final().await;
    bed.wait_until("it has asked again", |bed| bed.store.call_count("settle") >= 2).await;
    let (starts, tally) = (bed.starts.load(Ordering::SeqCst), bed.shut_down().await);
    assert_eq!((tally.lost, tally.acked, starts), (0, 1, 1), "and it counts, once");
}

#[tokio::test]
async fn hanging_queue_does_not_delay_outcomes_of_another() {
    let mut duly = Duly::open(":memory:").await.expect("opens");
    let store = FaultyStore::new(duly.store());
    duly.store = store.clone();
    store.hang_settles("red");
    let started = Arc::new(AtomicUsize::new(0));
    let counted = started.clone();
    let worker = duly.worker().queue("red", 5).queue("green", 5).grace(Duration::ZERO).on_kind("mail", move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        async {}
    });
    let stop = CancellationToken::new();
    let run = tokio::spawn(worker.run_until(stop.clone()));
    duly.push(Push::new("mail", "{}").queue("red")).await.expect("pushes");
    while started.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let id = duly.push(Push::new("mail", "{}").queue("green")).await.expect("pushes").id();
    let done = async {
        while !duly.get(id).await.expect("looks").expect("is kept").state.is_final() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, done).await.expect("green waits for red");
    stop.cancel();
    let tally = tokio::time::timeout(TEST_TIMEOUT, run).await.expect("in time").expect("no panic").expect("ends well");
    assert_eq!((tally.acked, tally.unrecorded), (1, 1));
}

#[tokio::test]
async fn store_errors_do_not_end_the_loop() {
    let bed = WorkerFixture::new(":memory:").await;
    for op in ["claim", "settle", "beat", "prune"] {
        bed.store.inject(op, InjectedFault::Refuse, 3);
    }
    bed.push_and_wait_until_final().await;
    assert_eq!(bed.shut_down().await.acked, 1);
}

#[tokio::test]
async fn tick_with_lost_or_refused_reply_pushes_one_job() {
    let bed = WorkerFixture::new(":memory:").await;
    bed.store.inject("due_crons", InjectedFault::Refuse, 2);
    bed.store.inject("fire_crons", InjectedFault::LoseReply, 1);
    bed.duly.cron("each", "* * * * * *").push(Push::new("mail", "{}")).await.expect("puts");
    bed.wait_until("some ticks have run", |bed| bed.starts.load(Ordering::SeqCst) >= 3).await;
    let record = bed.duly.pause_cron("each").await.expect("pauses");
    let last = record.last_job().expect("has fired");
    let done = async || bed.duly.get(last).await.expect("looks").is_some_and(|record| record.state.is_final());
    while !done().await {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let jobs = bed.duly.list(crate::Filter::default()).await.expect("lists").jobs;
    assert_eq!(bed.starts.load(Ordering::SeqCst), jobs.len(), "each once: {jobs:?}");
    bed.stop.cancel();
    bed.run.await.expect("no panic").expect("works");
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
        // That is under way by then; what follows waits for the next turn, and goes with the outcome.
        tokio::time::sleep(Duration::from_millis(50)).await;
        ctx.log("sent");
    });
    let stop = CancellationToken::new();
    let run = tokio::spawn(worker.run_until(stop.clone()));
    let done = async {
        while !duly.get(id).await.expect("looks").expect("is kept").state.is_final() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, done).await.expect("in time");
    stop.cancel();
    run.await.expect("no panic").expect("ends well");
    let found = duly.get(id).await.expect("looks").expect("is kept");
    assert_eq!(found.log.iter().map(|line| line.line.as_str()).collect::<Vec<_>>(), ["begun", "sent"]);
    assert!(store.call_count("settle") >= 3);
}
