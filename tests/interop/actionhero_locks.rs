//! duly's locks on ActionHero's keys, tested with real ActionHero nodes of both generations.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use duly::lock::LockOwner;
use duly::store::LockStore;
use duly::{ConflictKind, Duly, Error};

use crate::actionhero_node::{ActionHero, Generation};
use test_support::servers::{Binary, Options, Server};
use test_support::{in_time, until};

const SECOND: Duration = Duration::from_secs(1);

/// Starts a server without persistence, a common setup for ActionHero.
fn server() -> Server {
    Options::new(Binary::Redis).start()
}

fn url(server: &Server) -> String {
    server.url().replace("redis://", "actionhero://")
}

async fn open(server: &Server) -> Duly {
    Duly::open(url(server)).await.expect("opens")
}

/// duly and an ActionHero node race for at least this many locks, until each got some. Returns how many both of them got.
async fn race(generation: Generation, keys: usize, options: &str) -> usize {
    let server = server();
    let duly = Duly::open(format!("{}{options}", url(&server))).await.expect("opens");
    let node = ActionHero::start(generation, &server, "node-1").await;
    let (mut duly_locks, mut actionhero_locks, mut both) = (0, 0, Vec::new());
    for round in 0..keys {
        if round * 50 >= keys && duly_locks > 0 && actionhero_locks > 0 {
            break;
        }
        let names: Vec<String> = (0..50).map(|n| format!("race:{round}:{n}")).collect();
        // Random delays make the requests of both sides overlap.
        let requests = names.iter().map(async |name| {
            tokio::time::sleep(Duration::from_micros(fastrand::u64(..30_000))).await;
            duly.lock(name).ttl(20 * SECOND).try_acquire().await
        });
        let (guards, locked) = tokio::join!(futures_util::future::join_all(requests), node.race(&names, 20_000));
        let guards: Vec<_> = guards.into_iter().filter_map(|guard| guard.expect("succeeds")).collect();
        let locked: HashSet<String> = locked.into_iter().collect();
        duly_locks += guards.len();
        actionhero_locks += locked.len();
        both.extend(guards.iter().filter(|guard| locked.contains(guard.name())).map(|guard| guard.name().to_owned()));
        for guard in &guards {
            guard.release().await.expect("still held");
        }
    }
    println!("{generation:?}: duly got {duly_locks}, ActionHero {actionhero_locks}, both {}", both.len());
    assert!(duly_locks > 0 && actionhero_locks > 0, "one side got none: {duly_locks}, {actionhero_locks}");
    assert!(node.0.is_running());
    both.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_key_is_owned_twice_with_newest_actionhero() {
    assert_eq!(race(Generation::Newest, 300, "?confirm_delay=0").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_key_is_owned_twice_with_actionhero_12_which_ignores_setnx() {
    // Sixty times the default: on an overloaded machine, an ActionHero process may pause for a second.
    assert_eq!(race(Generation::Twelve, 300, "?confirm_delay=3s").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement of the effect of `confirm_delay`"]
async fn without_confirm_delay_some_keys_are_owned_twice_with_actionhero_12() {
    let twice = race(Generation::Twelve, 1_000, "?confirm_delay=0").await;
    println!("{twice} of 1000 keys were owned twice");
}

/// An ActionHero node does not get a lock that duly holds, nor the other way round.
async fn exclude(generation: Generation) {
    let server = server();
    let (duly, node) = (open(&server).await, ActionHero::start(generation, &server, "node-1").await);
    let guard = duly.lock("report").ttl(10 * SECOND).acquire().await.expect("free");
    assert_eq!(
        server.send_command(&["GET", "actionhero:lock:report"]).text(),
        guard.owner().to_string(),
        "only the owner"
    );
    assert!(!node.may_lock("report").await && !node.lock("report", 1_000).await && !node.unlock("report").await);
    guard.release().await.expect("still held");
    assert!(node.lock("report", 10_000).await, "free again");
    assert!(duly.lock("report").try_acquire().await.expect("succeeds").is_none());
    let holder = duly.lock("report").holder().await.expect("succeeds").expect("held");
    assert_eq!((holder.note.as_str(), holder.fence.0), ("ActionHero: node-1", 0), "only the name is known");
    let page = duly.locks().list(None).await.expect("succeeds");
    assert_eq!(page.locks.iter().map(|lock| lock.name.as_str()).collect::<Vec<_>>(), ["report"]);
    assert!(node.unlock("report").await);
    assert!(duly.lock("report").holder().await.expect("succeeds").is_none());
    assert!(node.0.is_running());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_side_respects_the_newest() {
    exclude(Generation::Newest).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_side_respects_twelve() {
    exclude(Generation::Twelve).await;
}

/// Waits until the lock has this many duly waiters.
async fn until_waiting(duly: &Duly, lock: &str, waiters: u64) {
    until(&format!("{waiters} wait for {lock}"), async || {
        duly.lock(lock).holder().await.expect("succeeds").is_some_and(|holder| holder.waiters >= waiters)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_acquires_soon_after_a_silent_unlock() {
    let server = server();
    let (duly, node) = (open(&server).await, ActionHero::start(Generation::Newest, &server, "node-1").await);
    assert!(node.lock("busy", 30_000).await);
    let (first, second) = (duly.lock("busy").acquire(), duly.lock("busy").acquire());
    let first = tokio::spawn(first);
    until_waiting(&duly, "busy", 1).await;
    let second = tokio::spawn(second);
    until_waiting(&duly, "busy", 2).await;
    assert!(node.unlock("busy").await);
    let since = Instant::now();
    let first = in_time(first).await.expect("ran").expect("its turn");
    assert!(since.elapsed() < 10 * SECOND, "long before its expiry: {:?}", since.elapsed());
    assert!(!second.is_finished(), "first come, first served");
    first.release().await.expect("held");
    let second = in_time(second).await.expect("ran").expect("its turn");
    assert!(second.fence() > first.fence(), "fences grow");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_of_a_killed_node_lasts_until_its_expiry() {
    let server = server();
    let (duly, node) = (open(&server).await, ActionHero::start(Generation::Newest, &server, "node-1").await);
    let since = Instant::now();
    assert!(node.lock("left", 2_000).await);
    node.0.kill();
    let guard = in_time(duly.lock("left").acquire()).await.expect("its turn");
    let elapsed = since.elapsed();
    assert!(elapsed > Duration::from_millis(1_900), "acquired before the expiry: {elapsed:?}");
    drop(guard);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expiry_is_in_milliseconds_and_extended_only_by_the_owner() {
    let server = server();
    let duly = open(&server).await;
    // Requests to the store itself: no guard extends these locks.
    let store = duly.store();
    let request = |wait| duly::store::LockRequest {
        name: "short".into(),
        owner: duly::store::LockOwner::fresh(),
        node: duly::NodeId::fresh(),
        lease: 3 * SECOND,
        slots: 1,
        ttl: Duration::from_millis(1_500),
        wait,
        note: "test".into(),
    };
    let (owner, other) = (request(false), request(false));
    assert!(store.lock(&owner).await.expect("succeeds").hold.is_some());
    let since = Instant::now();
    assert!(store.lock(&other).await.expect("succeeds").hold.is_none());
    assert_eq!(store.extend_locks(std::slice::from_ref(&other)).await.expect("succeeds"), [false]);
    assert!(!store.unlock(&other).await.expect("succeeds"), "only the owner can unlock");
    let ttl_ms = server.send_command(&["PTTL", "actionhero:lock:short"]).text().parse::<u64>().expect("a number");
    assert!(ttl_ms <= 1_500, "a rejected request must not extend the lock: {ttl_ms}");
    until("the lock has expired", async || server.send_command(&["EXISTS", "actionhero:lock:short"]).text() != "1")
        .await;
    assert!(since.elapsed() < 10 * SECOND, "an expiry in seconds would be 1,500 s: {:?}", since.elapsed());
    assert!(!store.unlock(&owner).await.expect("succeeds"), "no longer held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_without_expiry_is_shown_and_can_be_broken() {
    let server = server();
    let duly = open(&server).await;
    // The state after an ActionHero node crashes between SETNX and EXPIRE.
    server.send_command(&["SET", "actionhero:lock:stuck", "10.0.0.1"]);
    assert!(duly.lock("stuck").try_acquire().await.expect("succeeds").is_none());
    let holder = duly.lock("stuck").holder().await.expect("succeeds").expect("held");
    assert_eq!(holder.note, "ActionHero: 10.0.0.1, never expires");
    let waiting = tokio::spawn(duly.lock("stuck").acquire());
    until_waiting(&duly, "stuck", 1).await;
    let break_hold = async |owner| duly.locks().break_hold("stuck", owner).await.expect("succeeds");
    assert!(!break_hold(LockOwner::fresh()).await, "another owner holds it");
    assert!(break_hold(holder.owner).await);
    let guard = in_time(waiting).await.expect("ran").expect("its turn");
    assert_ne!(server.send_command(&["PTTL", "actionhero:lock:stuck"]).text(), "-1", "duly's lock expires");
    assert!(!break_hold(holder.owner).await, "it has ended");
    let own = duly.lock("stuck").holder().await.expect("succeeds").expect("held");
    assert_eq!(own.owner, guard.owner());
    assert_eq!(duly.locks().break_lock("stuck").await.expect("succeeds"), 1);
    in_time(guard.lost()).await;
    assert_eq!(duly.locks().break_lock("stuck").await.expect("succeeds"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guard_with_deleted_key_is_lost() {
    let server = server();
    let duly = open(&server).await;
    let guard = duly.lock("gone").ttl(SECOND).acquire().await.expect("free");
    // ActionHero's unlock does this to the next owner if its own lock expires between its GET and its DEL.
    server.send_command(&["DEL", "actionhero:lock:gone"]);
    in_time(guard.lost()).await;
    assert!(matches!(guard.release().await, Err(Error::Conflict { kind: ConflictKind::LockLost, .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prefix_is_used_and_unsupported_options_are_rejected() {
    let server = server();
    let duly = Duly::open(format!("{}?lock_prefix=app:lock:&confirm_delay=0", url(&server))).await.expect("opens");
    let guard = duly.lock("x").acquire().await.expect("free");
    assert_eq!(server.send_command(&["EXISTS", "app:lock:x"]).text(), "1");
    drop(guard);
    let error = duly.push(duly::Push::new("mail", "{}")).await.expect_err("no jobs");
    assert!(error.to_string().contains("redis://HOST"), "{error}");
    let error = duly.lock("x").slots(2).acquire().await.expect_err("one holder");
    assert!(error.to_string().contains("one holder"), "{error}");
    let error = Duly::open("actionhero+cluster://127.0.0.1:1").await.expect_err("no Cluster");
    assert!(error.to_string().contains("not supported"), "{error}");
    let error = Duly::open("actionhero://127.0.0.1:1?speed=9").await.expect_err("no such option");
    assert!(error.to_string().contains("unknown option"), "{error}");
}

/// The commands of a 12.x node that has seen the lock free before duly took it: it ignores the refused SETNX.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_left_to_actionhero_12_stays_until_its_expiry() {
    const KEY: &str = "actionhero:lock:report";
    let server = server();
    let duly = Duly::open(format!("{}?confirm_delay=2s", url(&server))).await.expect("opens");
    let node = ActionHero::start(Generation::Twelve, &server, "node-1").await;
    let lock = duly.lock("report").ttl(20 * SECOND);
    let (guard, ()) = tokio::join!(lock.try_acquire(), async {
        until("duly has set the key", async || server.send_command(&["EXISTS", KEY]).text() == "1").await;
        assert_eq!(server.send_command(&["SETNX", KEY, "node-1"]).text(), "0");
        server.send_command(&["EXPIRE", KEY, "10"]);
    });
    assert!(guard.expect("succeeds").is_none(), "left to the node");
    assert_eq!(server.send_command(&["GET", KEY]).text(), "ActionHero node (lock not confirmed)");
    assert!(!node.unlock("report").await, "it expects its own name");
    let remaining: i64 = server.send_command(&["PTTL", KEY]).text().parse().expect("a number");
    assert!((1..=10_000).contains(&remaining), "the node's own expiry time: {remaining}");
    assert!(duly.lock("report").try_acquire().await.expect("succeeds").is_none(), "the node still works");
    duly.locks().break_lock("report").await.expect("breaks");
    assert!(duly.lock("report").try_acquire().await.expect("succeeds").is_some());
}
