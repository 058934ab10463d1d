//! Load on a store while something happens to its servers: pushers, workers, and the checker's end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use duly::{Args, Ctx, Duly, JobId, Push};
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::ledger::Ledger;

/// Far longer than a fault and what follows it may take; what takes this long is stuck.
const LONGEST: Duration = Duration::from_secs(60);
const PUSHERS: usize = 4;
const WORKERS: usize = 3;
const QUEUES: [&str; 3] = ["red", "green", "blue"];

#[derive(Serialize, Deserialize)]
pub struct Mark;

impl Args for Mark {
    const KIND: &'static str = "mark";
}

/// Pushers and workers on one store, until told to stop.
pub struct Storm {
    pub ledger: Arc<Ledger>,
    stop_pushing: CancellationToken,
    stop_working: CancellationToken,
    pushers: Vec<JoinHandle<()>>,
    workers: Vec<JoinHandle<duly::Result<duly::Tally>>>,
    /// Pushes whose outcome was not told.
    pub unknown: Arc<AtomicUsize>,
}

impl Storm {
    /// Each pusher and worker has a connection of its own, as if it were a process of its own.
    pub async fn begin(url: &str) -> Storm {
        let url = format!("{url}?prefix={}&lease=1s&keep=0", JobId::fresh());
        Storm::on(&url).await
    }

    pub async fn on(url: &str) -> Storm {
        let (ledger, unknown) = (Arc::new(Ledger::default()), Arc::new(AtomicUsize::new(0)));
        let (stop_pushing, stop_working) = (CancellationToken::new(), CancellationToken::new());
        let mut storm = Storm { ledger, stop_pushing, stop_working, pushers: Vec::new(), workers: Vec::new(), unknown };
        for _ in 0..WORKERS {
            let duly = Duly::open(url).await.expect("opens");
            storm.workers.push(tokio::spawn(work(duly, storm.ledger.clone(), storm.stop_working.clone())));
        }
        for _ in 0..PUSHERS {
            let duly = Duly::open(url).await.expect("opens");
            let (ledger, stop, unknown) = (storm.ledger.clone(), storm.stop_pushing.clone(), storm.unknown.clone());
            storm.pushers.push(tokio::spawn(push(duly, ledger, stop, unknown)));
        }
        storm
    }

    /// Waits until so many pushes more were acknowledged.
    pub async fn until_pushed(&self, more: usize) {
        let (goal, until) = (self.ledger.pushed() + more, Instant::now() + LONGEST);
        while self.ledger.pushed() < goal {
            assert!(Instant::now() < until, "pushes stopped at {} of {goal}", self.ledger.pushed());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Ends the load; answers how many acknowledged jobs never started.
    pub async fn end(self) -> usize {
        self.stop_pushing.cancel();
        for pusher in self.pushers {
            pusher.await.expect("no panic");
        }
        let until = Instant::now() + LONGEST;
        let mut missing = self.ledger.missing().len();
        while missing > 0 && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(20)).await;
            missing = self.ledger.missing().len();
        }
        self.stop_working.cancel();
        for worker in self.workers {
            worker.await.expect("no panic").expect("no error ends a worker");
        }
        println!("{} pushed, {} unknown, {missing} lost", self.ledger.pushed(), self.unknown.load(Ordering::Relaxed));
        assert_eq!(self.ledger.wrong(), Vec::<String>::new());
        missing
    }
}

async fn work(duly: Duly, ledger: Arc<Ledger>, stop: CancellationToken) -> duly::Result<duly::Tally> {
    let handler = move |_: Mark, ctx: Ctx| {
        let ledger = ledger.clone();
        async move { ledger.started(ctx.job().id, ctx.fence(), ctx.due(), SystemTime::now()) }
    };
    let mut worker = duly.worker().concurrency(20).on(handler);
    for queue in QUEUES {
        worker = worker.queue(queue, 20);
    }
    worker.run_until(stop).await
}

/// Pushes single jobs and small batches, now and a little later; what fails is pushed again under the same ids.
async fn push(duly: Duly, ledger: Arc<Ledger>, stop: CancellationToken, unknown: Arc<AtomicUsize>) {
    while !stop.is_cancelled() {
        let ids: Vec<JobId> = (0..fastrand::usize(1..6)).map(|_| JobId::fresh()).collect();
        let (queue, after) = (fastrand::choice(QUEUES).expect("some"), fastrand::u64(..3));
        loop {
            let jobs =
                ids.iter().map(|id| Push::from(Mark).id(*id).queue(queue).after(Duration::from_millis(50 * after)));
            match duly.push_all(jobs).await {
                Ok(_) => break ids.iter().for_each(|id| ledger.acknowledged(*id)),
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
