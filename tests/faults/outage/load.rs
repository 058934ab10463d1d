//! Load on a store while its servers fail: pushers, workers, and the final check.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use duly::worker::Event;
use duly::{Args, Ctx, Duly, Filter, JobId, Outcome, Push, State};
use serde::{Deserialize, Serialize};
use test_support::{TIMEOUT, until};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::outage::ledger::Ledger;

/// Two per queue, so that a blocked pusher delays no other queue.
const PUSHERS: usize = 6;
const WORKERS: usize = 3;
pub const QUEUES: [&str; 3] = ["red", "green", "blue"];

/// A job with a number that no other acknowledged job has.
#[derive(Serialize, Deserialize)]
pub struct Mark(pub u64);

impl Args for Mark {
    const KIND: &'static str = "mark";
}

/// Pushers and workers on one store, until they are stopped.
pub struct Load {
    pub ledger: Arc<Ledger>,
    url: String,
    stop_pushing: CancellationToken,
    stop_working: CancellationToken,
    pushers: Vec<JoinHandle<()>>,
    workers: Vec<JoinHandle<duly::Result<duly::worker::RunSummary>>>,
    /// Number of pushes with an unknown outcome.
    pub unknown: Arc<AtomicUsize>,
}

impl Load {
    /// Starts the load on servers that keep everything they have acknowledged.
    pub async fn begin(url: &str) -> Load {
        let url = format!("{url}?prefix={}&lease=1s&keep=0", JobId::fresh());
        Load::on(url, Ledger::default()).await
    }

    /// Starts the load on servers with failover, which may lose everything except acknowledged pushes.
    pub async fn begin_with_lost_outcomes(url: &str) -> Load {
        let url = format!("{url}?prefix={}&lease=1s&keep=0&replicas=1", JobId::fresh());
        Load::on(url, Ledger::may_lose_outcomes()).await
    }

    /// Each pusher and worker has its own connection, as if it were a separate process.
    async fn on(url: String, ledger: Ledger) -> Load {
        let (ledger, unknown) = (Arc::new(ledger), Arc::new(AtomicUsize::new(0)));
        let (stop_pushing, stop_working) = (CancellationToken::new(), CancellationToken::new());
        let (pushers, workers) = (Vec::new(), Vec::new());
        let mut load = Load { ledger, url, stop_pushing, stop_working, pushers, workers, unknown };
        for worker in 0..WORKERS {
            let duly = Duly::open(&load.url).await.expect("opens");
            load.workers.push(tokio::spawn(work(worker, duly, load.ledger.clone(), load.stop_working.clone())));
        }
        for queue in QUEUES.into_iter().cycle().take(PUSHERS) {
            let duly = Duly::open(&load.url).await.expect("opens");
            let (ledger, stop, unknown) = (load.ledger.clone(), load.stop_pushing.clone(), load.unknown.clone());
            load.pushers.push(tokio::spawn(push(duly, queue, ledger, stop, unknown)));
        }
        load
    }

    /// Waits until this many more pushes were acknowledged.
    pub async fn wait_until_pushed(&self, more: usize) {
        let goal = self.ledger.pushed() + more;
        until("more was pushed", async || self.ledger.pushed() >= goal).await;
    }

    /// Pushes one job into each queue without waiting for replicas, and waits until all have started.
    pub async fn wait_until_worked(&self) {
        let duly = Duly::open(self.url.replace("&replicas=1", "")).await.expect("opens");
        for queue in QUEUES {
            let id = JobId::fresh();
            until(&format!("a job is pushed to {queue}"), async || {
                let pushed = duly.push(Push::from(Mark(u64::MAX)).id(id).queue(queue)).await;
                pushed.inspect_err(|error| assert!(error.is_retryable(), "{error}")).is_ok()
            })
            .await;
            until(&format!("a job of {queue} runs"), async || self.ledger.has_started(id)).await;
        }
    }

    /// Stops the load, waits until all jobs have completed, and checks the store. Returns how many acknowledged jobs
    /// never started.
    pub async fn end(self) -> usize {
        self.stop_pushing.cancel();
        for pusher in self.pushers {
            pusher.await.expect("no panic");
        }
        let duly = Duly::open(&self.url).await.expect("opens");
        let deadline = Instant::now() + TIMEOUT;
        while !(self.ledger.missing().is_empty() && is_empty(&duly).await) && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.stop_working.cancel();
        for worker in self.workers {
            worker.await.expect("no panic").expect("no error ends a worker");
        }
        let (missing, dead) = (self.ledger.missing().len(), dead(&duly).await);
        let (pushed, unknown) = (self.ledger.pushed(), self.unknown.load(Ordering::Relaxed));
        println!("{pushed} pushed, {unknown} unknown, {} dead, {missing} lost", dead.len());
        assert_eq!(self.ledger.violations(), Vec::<String>::new());
        assert!(is_empty(&duly).await, "jobs are left after {TIMEOUT:?}: {:?}", duly.queues().counts().await);
        if let Some(id) = self.ledger.vanished(&dead).first() {
            panic!("job {id} has started, and is neither done, dead nor in the store: {:#?}", self.ledger.history(*id));
        }
        assert_eq!(duly.verify().await.expect("a report").violations, Vec::new(), "no job is held or corrupt");
        missing
    }
}

/// Returns whether no job is waiting or running.
async fn is_empty(duly: &Duly) -> bool {
    let counts = duly.queues().counts().await;
    counts.is_ok_and(|all| all.iter().all(|count| count.ready + count.scheduled + count.running == 0))
}

/// Returns the dead jobs.
async fn dead(duly: &Duly) -> BTreeSet<JobId> {
    let mut dead = BTreeSet::new();
    let mut filter = Filter::all().state(State::Dead).limit(1000);
    loop {
        let page = duly.jobs().list(filter.clone()).await.expect("lists");
        dead.extend(page.jobs.iter().map(|record| record.job.id));
        filter.cursor = page.next_cursor;
        if filter.cursor.is_none() {
            return dead;
        }
    }
}

async fn work(
    number: usize,
    duly: Duly,
    ledger: Arc<Ledger>,
    stop: CancellationToken,
) -> duly::Result<duly::worker::RunSummary> {
    let event_ledger = ledger.clone();
    let handler = move |Mark(mark): Mark, ctx: Ctx| {
        let outcome = any_outcome();
        ledger.started(number, &ctx, mark, &outcome);
        async move { outcome }
    };
    let on_event = move |event: &Event<'_>| {
        if let Event::Settled { held, outcome, .. } = event {
            event_ledger.settled(held.job.id, outcome);
        }
    };
    let mut worker = duly.worker().concurrency(20).on(handler).on_event(on_event);
    for queue in QUEUES {
        worker = worker.queue(queue, 20);
    }
    worker.run_until(stop).await
}

/// Returns an ack mostly, and any other outcome sometimes.
fn any_outcome() -> Outcome {
    let after = Duration::from_millis(fastrand::u64(..3) * 25);
    match fastrand::u32(..20) {
        0 | 1 => Outcome::retry(after, "once more"),
        2 | 3 => Outcome::release(after),
        4 => Outcome::bury("enough"),
        _ => Outcome::Ack,
    }
}

/// Pushes single jobs and small batches, now and a little later; retries failed pushes. Half of the pushes have
/// explicit ids, which the retry reuses; the others create new jobs each time.
async fn push(duly: Duly, queue: &str, ledger: Arc<Ledger>, stop: CancellationToken, unknown: Arc<AtomicUsize>) {
    static NUMBERS: AtomicU64 = AtomicU64::new(0);
    while !stop.is_cancelled() {
        let count = fastrand::u64(1..6);
        let first = NUMBERS.fetch_add(count, Ordering::Relaxed);
        let ids: Option<Vec<JobId>> = fastrand::bool().then(|| (0..count).map(|_| JobId::fresh()).collect());
        let after = fastrand::u64(..3);
        loop {
            let jobs = (0..count).map(|n| {
                let job = Push::from(Mark(first + n)).queue(queue).after(Duration::from_millis(50 * after));
                match &ids {
                    Some(ids) => job.id(ids[n as usize]),
                    None => job,
                }
            });
            match duly.push_all(jobs).await {
                Ok(pushed) => {
                    break pushed.iter().zip(first..).for_each(|(pushed, n)| ledger.acknowledged(pushed.id(), n));
                }
                Err(error) => {
                    assert!(error.is_retryable(), "{error}");
                    unknown.fetch_add(usize::from(error.code() == "unknown"), Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
