//! Crash suspects in the run loop of a worker that is paused: it sends no heartbeats, and another node takes its jobs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use test_support::{in_time, until};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::client::Duly;
use crate::error::Result;
use crate::job::Outcome;
use crate::job::push::Push;
use crate::node::Node;
use crate::store::faulty::{FaultyStore, InjectedFault};
use crate::store::{AttemptEnd, CRASH_SUSPECT_MIN, Claim, JobStore, Store};
use crate::worker::RunSummary;

const LEASE: Duration = Duration::from_millis(500);
/// More faults than any test triggers.
const ALWAYS: usize = usize::MAX;

fn node() -> Node {
    Node { lease: LEASE, ..Node::fresh(vec!["default".into()]) }
}

/// A worker on a store with crash suspects and injected faults.
struct SuspectFixture {
    duly: Duly,
    store: Arc<FaultyStore>,
    /// The store without faults.
    inner: Arc<dyn Store>,
    starts: Arc<AtomicUsize>,
}

impl SuspectFixture {
    async fn new(suspects: usize) -> Self {
        let mut duly = Duly::open(":memory:?lease=500ms").await.expect("opens");
        let inner = duly.store();
        duly.push_all((0..suspects).map(|_| Push::new("mail", "{}"))).await.expect("pushes");
        for _ in 0..CRASH_SUSPECT_MIN {
            let (dead, next) = (node(), node());
            inner.heartbeat(&dead).await.expect("joins");
            inner.heartbeat(&next).await.expect("joins");
            inner.claim(dead.id, Claim::new("default", suspects)).await.expect("claims");
            inner.leave(dead.id).await.expect("its jobs can be taken back at once");
            let claim = Claim { suspect: Some(dead.id), ..Claim::new("default", 0) };
            inner.claim(next.id, claim).await.expect("takes back");
            inner.leave(next.id).await.expect("leaves");
        }
        let store = FaultyStore::new(inner.clone());
        duly.store = store.clone();
        SuspectFixture { duly, store, inner, starts: Arc::default() }
    }

    /// Starts the worker, and waits until it has sent this request.
    async fn run_until_sent(&self, op: &'static str) -> (JoinHandle<Result<RunSummary>>, CancellationToken) {
        let (starts, stop) = (self.starts.clone(), CancellationToken::new());
        let worker = self.duly.worker().on_kind("mail", move |_| {
            starts.fetch_add(1, Ordering::SeqCst);
            async {}
        });
        let run = tokio::spawn(worker.run_until(stop.clone()));
        until("the request is sent", async || self.store.call_count(op) > 0).await;
        (run, stop)
    }

    /// Withholds heartbeats until another node has taken the jobs of the worker and done them, and lets them go on.
    async fn pause_until_taken(&self, jobs: usize) {
        let worker = self.duly.nodes().list().await.expect("reads")[0].id;
        self.store.inject("heartbeat", InjectedFault::Refuse, ALWAYS);
        let (other, mut taken) = (node(), 0);
        until("another node takes the jobs", async || {
            self.inner.heartbeat(&other).await.expect("heartbeat");
            let claim = Claim { suspect: Some(worker), ..Claim::new("default", jobs) };
            let held = self.inner.claim(other.id, claim).await.expect("claims").jobs;
            taken += held.len();
            let ack = |held| AttemptEnd::new(Arc::new(held), Outcome::Ack, Duration::ZERO);
            self.inner.settle(other.id, held.into_iter().map(ack).collect()).await.expect("settles");
            taken >= jobs
        })
        .await;
        self.store.inject("heartbeat", InjectedFault::Refuse, 0);
    }
}

#[tokio::test]
async fn suspect_that_was_lost_before_the_reply_to_its_mark_is_not_started() {
    let fixture = SuspectFixture::new(1).await;
    fixture.store.inject("set_alone", InjectedFault::HoldReply, 1);
    let (run, stop) = fixture.run_until_sent("set_alone").await;
    fixture.pause_until_taken(1).await;
    fixture.store.release_replies();
    let asks_again = async || fixture.store.call_count("set_alone") > 1 || fixture.starts.load(Ordering::SeqCst) > 0;
    until("the worker asks again", asks_again).await;
    stop.cancel();
    in_time(run).await.expect("no panic").expect("ends well");
    assert_eq!(fixture.starts.load(Ordering::SeqCst), 0);
}

/// The first of three suspects has ended, and two others start together once its outcome is recorded.
#[tokio::test]
async fn suspects_that_were_lost_before_their_trial_are_not_started() {
    let fixture = SuspectFixture::new(3).await;
    fixture.store.inject("settle", InjectedFault::HoldReply, 1);
    let (run, stop) = fixture.run_until_sent("settle").await;
    fixture.pause_until_taken(2).await;
    let claims = fixture.store.call_count("claim");
    fixture.store.release_replies();
    until("the worker requests the list of its jobs", async || fixture.store.call_count("claim") > claims).await;
    stop.cancel();
    in_time(run).await.expect("no panic").expect("ends well");
    assert_eq!(fixture.starts.load(Ordering::SeqCst), 1);
}
