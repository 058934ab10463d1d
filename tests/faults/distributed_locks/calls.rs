//! Calls through a network that drops, delays and duplicates messages: each ends once and in time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use duly::call::CallContext;
use duly::{Duly, Error, NodeId};
use serde_json::Value;

use crate::distributed_locks::location::{LONG, Location, in_time, ms};
use crate::distributed_locks::unreliable_network::{Odds, UnreliableProxy};
use test_support::servers::{Binary, Options};

/// Number of calls by default.
const CALLS: u64 = 3_000;
/// Number of concurrent calls.
const CALLERS: u64 = 32;
const NODES: usize = 3;
/// Maximum delay of a call's end after its deadline, on any machine.
const LATE_MAX: Duration = Duration::from_secs(2);
const ODDS: Odds = Odds { drop: 0.04, duplicate: 0.1, delay: 0.1, delay_max: Duration::from_millis(400) };

/// Counters over the results of all calls.
#[derive(Default)]
struct CallResults {
    next: AtomicU64,
    resolved: AtomicU64,
    values: AtomicU64,
    timeouts: AtomicU64,
    /// The node was unreachable, or the store did not reply: the call failed at once.
    others: AtomicU64,
    /// Microseconds after the deadline.
    latest: AtomicU64,
}

/// How often each call was executed, on each node.
type Runs = Arc<Vec<[AtomicU8; NODES]>>;

fn increment(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

impl CallResults {
    fn resolve(&self, n: u64, result: Result<u64, Error>) {
        match result {
            Ok(value) => {
                assert_eq!(value, n, "the reply to this call and no other");
                increment(&self.values);
            }
            Err(Error::Timeout { .. }) => increment(&self.timeouts),
            Err(Error::NotFound { .. } | Error::Store { .. } | Error::Unknown { .. }) => increment(&self.others),
            Err(other) => panic!("call {n}: {other}"),
        }
    }

    fn finish(&self, start: Instant, timeout: Duration) {
        let late = start.elapsed().saturating_sub(timeout);
        self.latest.fetch_max(late.as_micros() as u64, Ordering::Relaxed);
        increment(&self.resolved);
    }
}

async fn node(location: &str, index: usize, runs: Runs) -> (Duly, NodeId) {
    let duly = Duly::open(location).await.expect("opens");
    let run = move |n: u64, _: CallContext| {
        runs[usize::try_from(n).expect("fits")][index].fetch_add(1, Ordering::SeqCst);
        async move { Ok::<_, Error>(n) }
    };
    duly.on_call("echo", run).concurrency(1_000).await.expect("registers");
    let node = duly.node_id().expect("is increment");
    (duly, node)
}

/// Makes calls of all kinds until `total` is reached.
async fn call(duly: Duly, nodes: Vec<NodeId>, total: u64, results: Arc<CallResults>) {
    loop {
        let n = results.next.fetch_add(1, Ordering::SeqCst);
        if n >= total {
            return;
        }
        let (timeout, start) = (ms(100..600), Instant::now());
        let call = duly.call("echo", &n).timeout(timeout);
        if n.is_multiple_of(8) {
            all(call, n, &nodes, &results).await;
        } else {
            let node = *fastrand::choice(&nodes).expect("some");
            let call = if n.is_multiple_of(2) { call.node(node) } else { call };
            results.resolve(n, call.reply::<u64>().await);
        }
        results.finish(start, timeout);
    }
}

async fn all(call: duly::call::Call, n: u64, nodes: &[NodeId], results: &CallResults) {
    let mut replies = match call.all().replies::<u64>().await {
        Ok(replies) => replies,
        Err(error) => return results.resolve(n, Err(error)),
    };
    let (mut replied, mut count) = (Vec::new(), 0);
    while let Some(reply) = replies.next().await {
        count += 1;
        if let Some(node) = reply.node.filter(|node| nodes.contains(node)) {
            assert!(!replied.contains(&node), "call {n}: {node} replies twice");
            replied.push(node);
        }
        // The caller is a node as well, and replies that it has no such method.
        if reply.node.is_none_or(|node| nodes.contains(&node)) {
            results.resolve(n, reply.result);
        }
    }
    assert_eq!(count, replies.expected(), "call {n}: each called node yields one reply");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_ends_once_and_in_time_with_dropped_delayed_or_duplicate_messages() {
    let total = test_support::env_number("DULY_CALLS").unwrap_or(CALLS);
    let server = Options::durable(Binary::Redis).start();
    let network = UnreliableProxy::start(server.port(), ODDS);
    let url = Location::on(&server.url()).with("lease=1s").through(&network.address());
    let runs: Runs = Arc::new((0..total).map(|_| Default::default()).collect());
    let (mut handles, mut nodes) = (Vec::new(), Vec::new());
    for index in 0..NODES {
        let (duly, id) = node(&url, index, runs.clone()).await;
        handles.push(duly);
        nodes.push(id);
    }
    let (caller, results) = (Duly::open(&url).await.expect("opens"), Arc::new(CallResults::default()));
    let start = Instant::now();
    let callers: Vec<_> =
        (0..CALLERS).map(|_| tokio::spawn(call(caller.clone(), nodes.clone(), total, results.clone()))).collect();
    let timeout_total = LONG + Duration::from_millis(20) * u32::try_from(total).expect("fits");
    while !callers.iter().all(tokio::task::JoinHandle::is_finished) {
        assert!(
            start.elapsed() < timeout_total,
            "{} of {total} calls have ended",
            results.resolved.load(Ordering::SeqCst)
        );
        tokio::time::sleep(ms(300..1_500)).await;
        network.cut();
    }
    for caller in callers {
        caller.await.expect("no panic");
    }
    report(&network, &results, start.elapsed());
    assert_eq!(results.resolved.load(Ordering::SeqCst), total, "as many results as calls");
    let latest = Duration::from_micros(results.latest.load(Ordering::SeqCst));
    assert!(latest < LATE_MAX, "{latest:?} after the deadline");
    let runs_max = runs.iter().flatten().map(|runs| runs.load(Ordering::SeqCst)).max();
    assert_eq!(runs_max, Some(1), "no node executes a call twice");
    assert!(results.values.load(Ordering::SeqCst) > total / 2, "runs_max calls get a reply");
    assert_faults_happened(&network, &caller, &handles).await;
}

fn report(network: &UnreliableProxy, results: &CallResults, elapsed: Duration) {
    let read = |count: &AtomicU64| count.load(Ordering::SeqCst);
    let faults = network.faults();
    println!(
        "{} calls ended in {elapsed:?}: {} values, {} timeouts, {} other failures; worst {} us after its deadline; \
         messages: {} passed, {} dropped, {} duplicated, {} delayed; {} connections cut",
        read(&results.resolved),
        read(&results.values),
        read(&results.timeouts),
        read(&results.others),
        read(&results.latest),
        read(&faults.passed),
        read(&faults.dropped),
        read(&faults.duplicated),
        read(&faults.delayed),
        read(&faults.cuts),
    );
}

/// Control: without dropped, delayed, duplicated or cut traffic the test would prove nothing.
async fn assert_faults_happened(network: &UnreliableProxy, caller: &Duly, nodes: &[Duly]) {
    let faults = network.faults();
    for count in [&faults.dropped, &faults.duplicated, &faults.delayed, &faults.cuts] {
        assert!(count.load(Ordering::SeqCst) > 10);
    }
    let (mut calls_twice, mut replies_twice, mut replies_late) = (0, 0, 0);
    for duly in nodes.iter().chain([caller]) {
        let node = duly.node_id().expect("is increment");
        let stats = in_time(async {
            loop {
                // This call also goes through the unreliable network.
                if let Ok(stats) = caller.call("duly.stats", &()).node(node).reply::<Value>().await {
                    return stats;
                }
            }
        })
        .await;
        calls_twice += stats["calls"]["replayed"].as_u64().expect("a count");
        let count = |name: &str| stats["calls"][name].as_u64().expect("a count");
        replies_twice += count("duplicate_replies");
        replies_late += count("late_replies");
    }
    println!(
        "{calls_twice} duplicate calls were rejected, {replies_twice} duplicate replies, {replies_late} late replies"
    );
    assert!(calls_twice > 10, "duplicated calls have arrived");
    assert!(replies_twice > 0, "duplicated replies have arrived while others were pending");
    assert!(replies_late > 10, "replies without a pending call have arrived");
}
