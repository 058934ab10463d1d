//! Many random and hostile requests: none causes a server error, and memory stays flat.
//!
//! Short by default; `./torture http` runs a million. `DULY_BAD_REQUESTS=n` sets the number, `DULY_SEED=n` repeats a
//! run.

mod request;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fastrand::Rng;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use crate::api::support::Site;

/// The default number of requests.
const REQUESTS: usize = 20_000;
/// The number of concurrent clients.
const VISITORS: usize = 32;
/// The most requests on one connection.
const PIPELINED_MAX: usize = 8;
/// One connection in this many stops in the middle and waits; the most of them at a time.
const SLOW_EVERY: u32 = 500;
const SLOW_MAX: usize = 64;
/// Longer than every timeout of the server.
const CUT_OFF: Duration = Duration::from_secs(75);
/// How long to read a stream that does not end.
const LISTEN: Duration = Duration::from_millis(200);
/// No request may cause these. Other statuses from 500 are about other nodes.
const FAULTS: [u16; 3] = [500, 501, 503];
/// The accepted growth of memory since the first tenth: caches are bounded, but not constant.
const GROWN_MAX: f64 = 1.3;
const GROWN_MB: f64 = 24.0;

/// The behaviour of a client.
#[derive(Clone, Copy)]
enum SendMode {
    /// Sends everything and reads the responses.
    Whole,
    /// As `Whole`, in pieces.
    Pieces,
    /// Sends a part, closes the sending side, and reads.
    HalfClosed,
    /// Sends a part and disconnects.
    Gone,
}

/// The progress of the run.
struct Tally {
    left: AtomicUsize,
    statuses: std::sync::Mutex<BTreeMap<u16, u64>>,
    slow: Arc<Semaphore>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs alone, since the memory of the process is measured: ./check web, ./torture http"]
async fn malformed_requests_get_client_errors_and_the_server_survives() {
    let number = |name: &str| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    let requests = number("DULY_BAD_REQUESTS").map_or(REQUESTS, |n| usize::try_from(n).expect("fits"));
    let seed = number("DULY_SEED").unwrap_or_else(|| fastrand::u64(..1 << 32));
    println!("{requests} requests, DULY_SEED={seed}");
    let site = Arc::new(Site::in_file().await);
    let tally = Arc::new(Tally {
        left: AtomicUsize::new(0),
        statuses: std::sync::Mutex::default(),
        slow: Arc::new(Semaphore::new(SLOW_MAX)),
    });
    let mut resident = Vec::new();
    for tenth in 0..10 {
        tally.left.store(requests / 10, Ordering::Relaxed);
        let visitors = (0..VISITORS as u64).map(|no| Rng::with_seed(seed ^ (tenth << 40) ^ (no << 32)));
        let visitors: Vec<_> = visitors.map(|rng| tokio::spawn(visit_all(site.clone(), tally.clone(), rng))).collect();
        for visitor in visitors {
            visitor.await.unwrap_or_else(|panic| panic!("{panic}; DULY_SEED={seed} runs it again"));
        }
        good_requests_are_answered(&site).await;
        resident.push(resident_mb());
        println!("{:3} %: {:.0} MB", (tenth + 1) * 10, resident_mb());
    }
    // All slow clients were disconnected, and none has panicked.
    let all = u32::try_from(SLOW_MAX).expect("is small");
    drop(tokio::time::timeout(CUT_OFF, tally.slow.acquire_many(all)).await.expect("nobody is waited for for ever"));
    println!("{:?}", tally.statuses.lock().expect("no panic"));
    let (first, last) = (resident[0], resident_mb());
    assert!(last < first * GROWN_MAX + GROWN_MB, "memory has grown from {first:.0} to {last:.0} MB: {resident:?}");
    good_requests_are_answered(&site).await;
}

async fn good_requests_are_answered(site: &Site) {
    assert_eq!(site.get("/readyz").await.status, 200);
    assert_eq!(site.get("/").await.status, 200);
    let pushed = site.post("/api/v1/jobs", json!({"kind": "good", "queue": "good"})).await;
    assert_eq!(pushed.status, 201, "{}", pushed.text());
}

fn resident_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("is told");
    line.trim().trim_end_matches(" kB").parse::<f64>().expect("a number") / 1_024.0
}

/// Opens one connection after the other, until there have been enough requests.
async fn visit_all(site: Arc<Site>, tally: Arc<Tally>, mut rng: Rng) {
    loop {
        let many = rng.usize(1..=PIPELINED_MAX);
        let take = |left: usize| (left > 0).then(|| left.saturating_sub(many));
        if tally.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_err() {
            return;
        }
        let all: Vec<_> = (1..=many).map(|no| request::any(&mut rng, no == many)).collect();
        let (sound, endless) = (all[0].sound, all.iter().any(|request| request.endless));
        let bytes = all.into_iter().flat_map(|request| request.bytes).collect::<Vec<u8>>();
        if rng.u32(..SLOW_EVERY) == 0
            && !endless
            && let Ok(place) = tally.slow.try_acquire()
        {
            // A client that is never disconnected, or panics, never returns its permit.
            place.forget();
            let (site, bytes, slow) = (site.clone(), cut(&mut rng, &bytes).to_vec(), tally.slow.clone());
            tokio::spawn(async move {
                if is_cut_off(&site, &bytes).await {
                    slow.add_permits(1);
                }
            });
        }
        let mode =
            [SendMode::Whole, SendMode::Whole, SendMode::Pieces, SendMode::HalfClosed, SendMode::Gone][rng.usize(..5)];
        let response = visit(&site, &mut rng, mode, &bytes, if endless { LISTEN } else { CUT_OFF }).await;
        let statuses = statuses(&response);
        let shown = || format!("{:?}: {statuses:?}", String::from_utf8_lossy(&bytes[..bytes.len().min(2_000)]));
        assert!(!statuses.iter().any(|status| FAULTS.contains(status)), "a fault of ours: {}", shown());
        let whole = matches!(mode, SendMode::Whole | SendMode::Pieces);
        assert!(!(sound && whole && statuses.is_empty()), "not answered: {}", shown());
        let mut all = tally.statuses.lock().expect("no panic");
        statuses.iter().for_each(|status| *all.entry(*status).or_default() += 1);
    }
}

fn cut<'a>(rng: &mut Rng, bytes: &'a [u8]) -> &'a [u8] {
    &bytes[..rng.usize(..bytes.len())]
}

/// Returns all bytes that the server sends, for at most `at_most` after the first ones.
async fn visit(site: &Site, rng: &mut Rng, mode: SendMode, bytes: &[u8], at_most: Duration) -> Vec<u8> {
    let mut stream = TcpStream::connect(site.address).await.expect("still accepts");
    // A server that refuses early does not read the rest, and may have closed the connection.
    match mode {
        SendMode::Whole => drop(stream.write_all(bytes).await),
        SendMode::Pieces => {
            let _ = stream.set_nodelay(true);
            let mut rest = bytes;
            while !rest.is_empty() {
                let (piece, more) = rest.split_at(rng.usize(1..=rest.len().min(4_096)));
                if stream.write_all(piece).await.is_err() {
                    break;
                }
                tokio::task::yield_now().await;
                rest = more;
            }
        }
        SendMode::HalfClosed => {
            let _ = stream.write_all(cut(rng, bytes)).await;
            let _ = stream.shutdown().await;
        }
        SendMode::Gone => {
            let _ = stream.write_all(cut(rng, bytes)).await;
            return Vec::new();
        }
    }
    let mut response = Vec::new();
    // The first bytes may take long. Without any, the connection was closed or reset.
    let first = tokio::time::timeout(CUT_OFF, stream.read_buf(&mut response)).await.expect("answered or cut off");
    if !first.is_ok_and(|bytes| bytes > 0) {
        return response;
    }
    let rest = tokio::time::timeout(at_most, stream.read_to_end(&mut response)).await;
    assert!(rest.is_ok() || at_most < CUT_OFF, "answered or cut off");
    response
}

/// Returns whether the server closes the connection. A reset counts too.
async fn ends(mut stream: TcpStream) -> bool {
    tokio::time::timeout(CUT_OFF, stream.read_to_end(&mut Vec::new())).await.is_ok()
}

/// Sends a part and waits. Returns whether the server closes the connection.
async fn is_cut_off(site: &Site, bytes: &[u8]) -> bool {
    let mut stream = TcpStream::connect(site.address).await.expect("still accepts");
    let _ = stream.write_all(bytes).await;
    ends(stream).await
}

/// Returns the statuses of all responses on a connection.
fn statuses(response: &[u8]) -> Vec<u16> {
    const HEAD: &[u8] = b"HTTP/1.1 ";
    let heads = response.windows(HEAD.len() + 3).filter(|at| at.starts_with(HEAD));
    heads.filter_map(|at| std::str::from_utf8(&at[HEAD.len()..]).ok()?.parse().ok()).collect()
}
