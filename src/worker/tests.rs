//! The loop on a store that fails: refused, unanswered, slow.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::task::JoinHandle;

use super::*;
use crate::job::push::Push;
use crate::job::{JobId, State};
use crate::store::faulty::{Fault, Faulty};

/// Far longer than anything here takes; a test that waits this long has failed.
const LONG: Duration = Duration::from_secs(20);
/// As good as always.
const ALWAYS: usize = usize::MAX;

/// A worker that runs on a store with faults to come.
struct Bed {
    duly: Duly,
    store: Arc<Faulty>,
    /// Starts of attempts.
    starts: Arc<AtomicUsize>,
    stop: CancellationToken,
    run: JoinHandle<Result<Tally>>,
}

impl Bed {
    async fn new(url: &str) -> Self {
        let mut duly = Duly::open(url).await.expect("opens");
        let store = Faulty::new(duly.store());
        duly.store = store.clone();
        let (starts, stop) = (Arc::new(AtomicUsize::new(0)), CancellationToken::new());
        let counted = starts.clone();
        let worker = duly.worker().on_kind("mail", move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
            async {}
        });
        let run = tokio::spawn(worker.run_until(stop.clone()));
        let bed = Bed { duly, store, starts, stop, run };
        bed.until("it has looked for jobs", |bed| bed.store.asked("claim") > 0).await;
        bed
    }

    async fn until(&self, what: &str, so: impl Fn(&Bed) -> bool) {
        let looked = async {
            while !so(self) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LONG, looked).await.unwrap_or_else(|_| panic!("waited in vain: {what}"));
    }

    /// Pushes a job, and waits until nothing of it is left to do.
    async fn done(&self) {
        let id = self.duly.push(Push::new("mail", "{}")).await.expect("pushes").id();
        self.until_job(id, State::is_final).await;
    }

    async fn until_job(&self, id: JobId, so: impl Fn(State) -> bool) {
        let seen = async {
            while !so(self.state(id).await) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LONG, seen).await.expect("it never is so");
    }

    async fn state(&self, id: JobId) -> State {
        self.duly.get(id).await.expect("looks").expect("is kept").state
    }

    async fn end(self) -> Tally {
        self.stop.cancel();
        tokio::time::timeout(LONG, self.run).await.expect("in time").expect("no panic").expect("ends well")
    }
}

#[tokio::test]
async fn a_slow_answer_holds_up_no_beat() {
    let bed = Bed::new(":memory:?lease=300ms").await;
    let before = bed.store.asked("beat");
    bed.store.next("beat", Fault::KeepAnswer, ALWAYS);
    bed.until("it beats on", |bed| bed.store.asked("beat") >= before + 5).await;
    // The look once a second does not depend on the answer either.
    bed.done().await;
    assert_eq!(bed.end().await.acked, 1);
}

#[tokio::test]
async fn a_claim_whose_answer_was_lost_leaves_no_job_behind() {
    // With so long a lease no beat tells of what was forgotten.
    let bed = Bed::new(":memory:?lease=1h").await;
    bed.store.next("claim", Fault::LoseAnswer, 1);
    bed.done().await;
    let starts = bed.starts.load(Ordering::SeqCst);
    assert_eq!((bed.end().await.acked, starts), (1, 1));
}

/// Two claims are in flight where each is for many.
#[tokio::test]
async fn of_claims_for_many_whose_answers_were_lost_every_job_runs_once() {
    const JOBS: usize = 5_000;
    let mut duly = Duly::open(":memory:?lease=1h").await.expect("opens");
    let store = Faulty::new(duly.store());
    duly.store = store.clone();
    duly.push_all((0..JOBS).map(|_| Push::new("mail", "{}"))).await.expect("pushes");
    let starts = Arc::new(AtomicUsize::new(0));
    let (counted, faulty) = (starts.clone(), store.clone());
    let worker = duly.worker().queue("default", 400).on_kind("mail", move |_| {
        // Again and again while it works, also two in a row.
        let fault = match counted.fetch_add(1, Ordering::SeqCst) % 700 {
            0 => Some((Fault::LoseAnswer, 2)),
            350 => Some((Fault::Refuse, 1)),
            _ => None,
        };
        if let Some((fault, times)) = fault {
            faulty.next("claim", fault, times);
        }
        async {}
    });
    let tally = tokio::time::timeout(LONG, worker.drain()).await.expect("in time").expect("ends well");
    assert_eq!((tally.acked, tally.lost, starts.load(Ordering::SeqCst)), (JOBS as u64, 0, JOBS));
}

/// What was claimed before somebody told the worker to be quiet, and is answered after, is for others to run.
#[tokio::test]
async fn a_worker_that_was_told_to_be_quiet_starts_nothing() {
    let bed = Bed::new(":memory:").await;
    bed.store.next("claim", Fault::Late(Duration::from_secs(5)), 1);
    let id = bed.duly.push(Push::new("mail", "{}")).await.expect("pushes").id();
    bed.until_job(id, |state| state == State::Running).await;
    let node = bed.duly.nodes().await.expect("looks")[0].id;
    let obeys = async {
        // It may not hear yet.
        while bed.duly.call("duly.quiet", &()).node(node).reply::<u64>().await.ok() != Some(1) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LONG, obeys).await.expect("it never obeys");
    assert_eq!(bed.state(id).await, State::Running, "told while the claim is under way");
    bed.until_job(id, |state| state == State::Ready).await;
    assert_eq!(bed.starts.load(Ordering::SeqCst), 0);
    // Everybody sees it, and why the job waits.
    let told = async {
        while bed.duly.why(id).await.expect("looks").code() != "quiet" {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LONG, told).await.expect("nobody is told");
    assert_eq!(bed.end().await.acked, 0);
}

#[tokio::test]
async fn a_settle_whose_answer_was_lost_is_no_robbery() {
    let bed = Bed::new(":memory:").await;
    bed.store.next("settle", Fault::LoseAnswer, 1);
    bed.done().await;
    bed.until("it has asked again", |bed| bed.store.asked("settle") >= 2).await;
    let (starts, tally) = (bed.starts.load(Ordering::SeqCst), bed.end().await);
    assert_eq!((tally.lost, tally.acked, starts), (0, 1, 1), "and it counts, once");
}

#[tokio::test]
async fn a_queue_whose_shard_hangs_holds_up_no_outcome_of_another() {
    let mut duly = Duly::open(":memory:").await.expect("opens");
    let store = Faulty::new(duly.store());
    duly.store = store.clone();
    store.hang("red");
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
    tokio::time::timeout(LONG, done).await.expect("green waits for red");
    stop.cancel();
    let tally = tokio::time::timeout(LONG, run).await.expect("in time").expect("no panic").expect("ends well");
    assert_eq!((tally.acked, tally.unrecorded), (1, 1));
}

#[tokio::test]
async fn no_error_of_the_store_ends_the_loop() {
    let bed = Bed::new(":memory:").await;
    for op in ["claim", "settle", "beat", "prune"] {
        bed.store.next(op, Fault::Refuse, 3);
    }
    bed.done().await;
    assert_eq!(bed.end().await.acked, 1);
}

#[tokio::test]
async fn a_tick_whose_answer_was_lost_or_that_was_refused_is_one_job() {
    let bed = Bed::new(":memory:").await;
    bed.store.next("due_crons", Fault::Refuse, 2);
    bed.store.next("fire_crons", Fault::LoseAnswer, 1);
    bed.duly.cron("each", "* * * * * *").push(Push::new("mail", "{}")).await.expect("puts");
    bed.until("some ticks have run", |bed| bed.starts.load(Ordering::SeqCst) >= 3).await;
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
async fn what_an_attempt_has_said_is_kept_once_although_its_outcome_is_sent_twice() {
    let mut duly = Duly::open(":memory:").await.expect("opens");
    let store = Faulty::new(duly.store());
    duly.store = store.clone();
    let id = duly.push(Push::new("mail", "{}")).await.expect("pushes").id();
    store.next("settle", Fault::Refuse, 2);
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
    tokio::time::timeout(LONG, done).await.expect("in time");
    stop.cancel();
    run.await.expect("no panic").expect("ends well");
    let found = duly.get(id).await.expect("looks").expect("is kept");
    assert_eq!(found.log.iter().map(|line| line.line.as_str()).collect::<Vec<_>>(), ["begun", "sent"]);
    assert!(store.asked("settle") >= 3);
}
