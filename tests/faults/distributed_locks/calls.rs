//! Calls through a network that drops, delays and doubles messages: every one ends once, and in time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use duly::{CallContext, Duly, Error, NodeId};
use serde_json::Value;

use crate::distributed_locks::location::{LONG, Location, in_time, ms};
use crate::distributed_locks::unreliable_network::{Mangle, Odds};
use test_support::servers::{Binary, Fsync, Options};

/// Calls in an ordinary run.
const CALLS: u64 = 3_000;
/// So many wait at a time.
const CALLERS: u64 = 32;
const NODES: usize = 3;
/// A call that ends so long after its deadline is too late on any machine.
const LATE_MAX: Duration = Duration::from_secs(2);
const ODDS: Odds = Odds { drop: 0.04, double: 0.1, delay: 0.1, delay_max: Duration::from_millis(400) };

/// What became of all calls.
#[derive(Default)]
struct Ends {
    next: AtomicU64,
    resolved: AtomicU64,
    values: AtomicU64,
    timeouts: AtomicU64,
    /// The node was deaf, or the store did not answer: told at once.
    others: AtomicU64,
    /// Microseconds after the deadline.
    latest: AtomicU64,
}

/// How often each call was carried out, on each node.
type Runs = Arc<Vec<[AtomicU8; NODES]>>;

fn one(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

impl Ends {
    fn resolve(&self, n: u64, result: Result<u64, Error>) {
        match result {
            Ok(value) => {
                assert_eq!(value, n, "the answer to this call and no other");
                one(&self.values);
            }
            Err(Error::Timeout { .. }) => one(&self.timeouts),
            Err(Error::NotFound { .. } | Error::Store { .. } | Error::Unknown { .. }) => one(&self.others),
            Err(other) => panic!("call {n}: {other}"),
        }
    }

    fn finish(&self, began: Instant, timeout: Duration) {
        let late = began.elapsed().saturating_sub(timeout);
        self.latest.fetch_max(late.as_micros() as u64, Ordering::Relaxed);
        one(&self.resolved);
    }
}

async fn node(location: &str, at: usize, runs: Runs) -> (Duly, NodeId) {
    let duly = Duly::open(location).await.expect("opens");
    let run = move |n: u64, _: CallContext| {
        runs[usize::try_from(n).expect("fits")][at].fetch_add(1, Ordering::SeqCst);
        async move { Ok::<_, Error>(n) }
    };
    duly.on_call("echo", run).concurrency(1_000).await.expect("registers");
    let node = duly.node_id().expect("is one");
    (duly, node)
}

/// Makes calls of all kinds until there are enough.
async fn call(duly: Duly, nodes: Vec<NodeId>, total: u64, ends: Arc<Ends>) {
    loop {
        let n = ends.next.fetch_add(1, Ordering::SeqCst);
        if n >= total {
            return;
        }
        let (timeout, began) = (ms(100..600), Instant::now());
        let call = duly.call("echo", &n).timeout(timeout);
        if n.is_multiple_of(8) {
            all(call, n, &nodes, &ends).await;
        } else {
            let node = *fastrand::choice(&nodes).expect("some");
            let call = if n.is_multiple_of(2) { call.node(node) } else { call };
            ends.resolve(n, call.reply::<u64>().await);
        }
        ends.finish(began, timeout);
    }
}

async fn all(call: duly::Call, n: u64, nodes: &[NodeId], ends: &Ends) {
    let mut replies = match call.all().replies::<u64>().await {
        Ok(replies) => replies,
        Err(error) => return ends.resolve(n, Err(error)),
    };
    let (mut seen, mut count) = (Vec::new(), 0);
    while let Some(reply) = replies.next().await {
        count += 1;
        if let Some(node) = reply.node.filter(|node| nodes.contains(node)) {
            assert!(!seen.contains(&node), "call {n}: {node} comes twice");
            seen.push(node);
        }
        // The caller is a node as well, and answers that it has no such method.
        if reply.node.is_none_or(|node| nodes.contains(&node)) {
            ends.resolve(n, reply.result);
        }
    }
    assert_eq!(count, replies.expected(), "call {n}: each node that was called ends once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_ends_once_and_in_time_with_dropped_delayed_or_duplicate_messages() {
    let total = test_support::env_number("DULY_CALLS").unwrap_or(CALLS);
    let server = Options::new(Binary::Redis).aof(Fsync::EverySecond).start();
    let network = Mangle::start(server.port(), ODDS);
    let url = Location::on(&server.url()).with("lease=1s").through(&network.address());
    let runs: Runs = Arc::new((0..total).map(|_| Default::default()).collect());
    let (mut handles, mut nodes) = (Vec::new(), Vec::new());
    for at in 0..NODES {
        let (duly, id) = node(&url, at, runs.clone()).await;
        handles.push(duly);
        nodes.push(id);
    }
    let (caller, ends) = (Duly::open(&url).await.expect("opens"), Arc::new(Ends::default()));
    let began = Instant::now();
    let callers: Vec<_> =
        (0..CALLERS).map(|_| tokio::spawn(call(caller.clone(), nodes.clone(), total, ends.clone()))).collect();
    let enough = LONG + Duration::from_millis(20) * u32::try_from(total).expect("fits");
    while !callers.iter().all(tokio::task::JoinHandle::is_finished) {
        assert!(began.elapsed() < enough, "{} of {total} calls have ended", ends.resolved.load(Ordering::SeqCst));
        tokio::time::sleep(ms(300..1_500)).await;
        network.cut();
    }
    for caller in callers {
        caller.await.expect("no panic");
    }
    report(&network, &ends, began.elapsed());
    assert_eq!(ends.resolved.load(Ordering::SeqCst), total, "as many ends as calls");
    let latest = Duration::from_micros(ends.latest.load(Ordering::SeqCst));
    assert!(latest < LATE_MAX, "{latest:?} after the deadline");
    let most = runs.iter().flatten().map(|runs| runs.load(Ordering::SeqCst)).max();
    assert_eq!(most, Some(1), "no node carries a call out twice");
    assert!(ends.values.load(Ordering::SeqCst) > total / 2, "most are answered");
    something_was_done(&network, &caller, &handles).await;
}

fn report(network: &Mangle, ends: &Ends, took: Duration) {
    let read = |count: &AtomicU64| count.load(Ordering::SeqCst);
    let done = network.done();
    println!(
        "{} calls ended in {took:?}: {} values, {} timeouts, {} told that nobody is there; worst {} us after its deadline; \
         messages: {} passed, {} dropped, {} doubled, {} delayed; {} connections cut",
        read(&ends.resolved),
        read(&ends.values),
        read(&ends.timeouts),
        read(&ends.others),
        read(&ends.latest),
        read(&done.passed),
        read(&done.dropped),
        read(&done.doubled),
        read(&done.delayed),
        read(&done.cuts),
    );
}

/// Where nothing was dropped, delayed, doubled or cut, nothing was shown.
async fn something_was_done(network: &Mangle, caller: &Duly, nodes: &[Duly]) {
    let done = network.done();
    for count in [&done.dropped, &done.doubled, &done.delayed, &done.cuts] {
        assert!(count.load(Ordering::SeqCst) > 10);
    }
    let (mut calls_twice, mut replies_twice, mut replies_late) = (0, 0, 0);
    for duly in nodes.iter().chain([caller]) {
        let node = duly.node_id().expect("is one");
        let stats = in_time(async {
            loop {
                // This, too, goes through that network.
                if let Ok(stats) = caller.call("duly.stats", &()).node(node).reply::<Value>().await {
                    return stats;
                }
            }
        })
        .await;
        calls_twice += stats["calls"]["replayed"].as_u64().expect("a count");
        let of = |why: &str| stats["calls"][why].as_u64().expect("a count");
        replies_twice += of("doubled_replies");
        replies_late += of("late_replies");
    }
    println!(
        "{calls_twice} calls came again and were refused, {replies_twice} replies came again, {replies_late} late"
    );
    assert!(calls_twice > 10, "calls that were doubled have arrived");
    assert!(replies_twice > 0, "so have replies, while others were waited for");
    assert!(replies_late > 10, "and replies that nobody waited for");
}
