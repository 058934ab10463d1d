//! duly's locks on ActionHero's keys, against real nodes of both generations.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use duly::{Duly, Error};

use crate::actionhero_node::{ActionHero, Generation};
use test_support::servers::{Binary, Options, Server};
use test_support::{in_time, until};

const SECOND: Duration = Duration::from_secs(1);

/// A server without persistence, as ActionHero is often run.
fn server() -> Server {
    Options::new(Binary::Redis).start()
}

fn url(server: &Server) -> String {
    server.url().replace("redis://", "actionhero://")
}

async fn open(server: &Server) -> Duly {
    Duly::open(url(server)).await.expect("opens")
}

/// Both sides race for the same keys: none is owned twice, and duly's are held to the end.
async fn race(generation: Generation, keys: usize, options: &str) -> usize {
    let server = server();
    let duly = Duly::open(format!("{}{options}", url(&server))).await.expect("opens");
    let (duly, node) = (duly, ActionHero::start(generation, &server, "node-1").await);
    let (mut ours, mut theirs, mut both) = (0, 0, Vec::new());
    for round in 0..keys / 50 {
        let names: Vec<String> = (0..50).map(|n| format!("race:{round}:{n}")).collect();
        // Spread over a moment, so that the two sides meet.
        let tries = names.iter().map(async |name| {
            tokio::time::sleep(Duration::from_micros(fastrand::u64(..30_000))).await;
            duly.lock(name).ttl(20 * SECOND).try_acquire().await
        });
        let (guards, got) = tokio::join!(futures_util::future::join_all(tries), node.race(&names, 20_000));
        let guards: Vec<_> = guards.into_iter().filter_map(|guard| guard.expect("answers")).collect();
        let got: HashSet<String> = got.into_iter().collect();
        ours += guards.len();
        theirs += got.len();
        both.extend(guards.iter().filter(|guard| got.contains(guard.name())).map(|guard| guard.name().to_owned()));
        for guard in &guards {
            guard.release().await.expect("still held");
        }
    }
    println!("{generation:?}: duly got {ours}, ActionHero {theirs}, both {}", both.len());
    assert!(ours > 0 && theirs > 0, "both get some: {ours}, {theirs}");
    assert!(node.0.is_running());
    both.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_key_is_owned_twice_beside_the_newest() {
    assert_eq!(race(Generation::Newest, 300, "?wary=0").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_key_is_owned_twice_beside_twelve_although_it_does_not_look() {
    // Twenty times the default: on a machine at its limit one of its processes may stand still for that long.
    assert_eq!(race(Generation::Twelve, 300, "?wary=1s").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: what being wary is good for"]
async fn without_being_wary_some_keys_are_owned_twice_beside_twelve() {
    let twice = race(Generation::Twelve, 1_000, "?wary=0").await;
    println!("{twice} of 1000 keys were owned twice");
}

/// What duly holds no node of ActionHero's gets, and the other way round.
async fn exclude(generation: Generation) {
    let server = server();
    let (duly, node) = (open(&server).await, ActionHero::start(generation, &server, "node-1").await);
    let guard = duly.lock("report").ttl(10 * SECOND).acquire().await.expect("free");
    assert_eq!(server.ask(&["GET", "actionhero:lock:report"]).text(), guard.owner().to_string(), "only the owner");
    assert!(!node.may_lock("report").await && !node.lock("report", 1_000).await && !node.unlock("report").await);
    guard.release().await.expect("held to the end");
    assert!(node.lock("report", 10_000).await, "free again");
    assert!(duly.lock("report").try_acquire().await.expect("answers").is_none());
    let seen = duly.lock("report").holder().await.expect("answers").expect("held");
    assert_eq!((seen.note.as_str(), seen.fence.0), ("ActionHero: node-1", 0), "what is known of it");
    let page = duly.locks(None).await.expect("answers");
    assert_eq!(page.locks.iter().map(|lock| lock.name.as_str()).collect::<Vec<_>>(), ["report"]);
    assert!(node.unlock("report").await);
    assert!(duly.lock("report").holder().await.expect("answers").is_none());
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

/// Waits until the lock has this many of duly's own waiters.
async fn until_waiting(duly: &Duly, lock: &str, n: u64) {
    until(&format!("{n} wait for {lock}"), async || {
        duly.lock(lock).holder().await.expect("answers").is_some_and(|held| held.waiters >= n)
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
    assert!(since.elapsed() < SECOND, "took {:?}", since.elapsed());
    assert!(!second.is_finished(), "first come, first served");
    first.release().await.expect("held");
    let second = in_time(second).await.expect("ran").expect("its turn");
    assert!(second.fence() > first.fence(), "fences grow");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_of_a_killed_node_lasts_until_its_expiry() {
    let server = server();
    let (duly, node) = (open(&server).await, ActionHero::start(Generation::Newest, &server, "node-1").await);
    assert!(node.lock("left", 2_000).await);
    node.0.kill();
    let since = Instant::now();
    let guard = in_time(duly.lock("left").acquire()).await.expect("its turn");
    let took = since.elapsed();
    assert!(took > SECOND && took < 4 * SECOND, "took {took:?}");
    drop(guard);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expiry_is_in_milliseconds_and_extended_only_by_the_owner() {
    let server = server();
    let duly = open(&server).await;
    // Another handle is another node: nothing extends what was only asked for once.
    let store = duly.store();
    let ask = |wait| duly::store::LockRequest {
        name: "short".into(),
        owner: duly::store::LockOwner::fresh(),
        node: duly::NodeId::fresh(),
        lease: 3 * SECOND,
        slots: 1,
        ttl: Duration::from_millis(1_500),
        wait,
        note: "test".into(),
    };
    let (mine, other) = (ask(false), ask(false));
    assert!(store.lock(&mine).await.expect("answers").hold.is_some());
    let since = Instant::now();
    assert!(store.lock(&other).await.expect("answers").hold.is_none());
    assert_eq!(store.extend_locks(std::slice::from_ref(&other)).await.expect("answers"), [false]);
    assert!(!store.unlock(&other).await.expect("answers"), "only the owner gives it up");
    let left = server.ask(&["PTTL", "actionhero:lock:short"]).text().parse::<u64>().expect("a number");
    assert!(left <= 1_500, "a loser prolongs nothing: {left}");
    while server.ask(&["EXISTS", "actionhero:lock:short"]).text() == "1" {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(since.elapsed() < Duration::from_millis(1_600), "gone after {:?}", since.elapsed());
    assert!(!store.unlock(&mine).await.expect("answers"), "not held any more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_without_expiry_is_shown_and_can_be_broken() {
    let server = server();
    let duly = open(&server).await;
    // As ActionHero leaves it when it dies between SETNX and EXPIRE.
    server.ask(&["SET", "actionhero:lock:stuck", "10.0.0.1"]);
    assert!(duly.lock("stuck").try_acquire().await.expect("answers").is_none());
    let seen = duly.lock("stuck").holder().await.expect("answers").expect("held");
    assert_eq!(seen.note, "ActionHero: 10.0.0.1, without an end");
    let waits = tokio::spawn(duly.lock("stuck").acquire());
    until_waiting(&duly, "stuck", 1).await;
    assert_eq!(duly.break_lock("stuck").await.expect("answers"), 1);
    let guard = in_time(waits).await.expect("ran").expect("its turn");
    assert_ne!(server.ask(&["PTTL", "actionhero:lock:stuck"]).text(), "-1", "ours has an end");
    assert_eq!(duly.break_lock("stuck").await.expect("answers"), 1);
    in_time(guard.lost()).await;
    assert_eq!(duly.break_lock("stuck").await.expect("answers"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guard_with_deleted_key_is_lost() {
    let server = server();
    let duly = open(&server).await;
    let guard = duly.lock("gone").ttl(SECOND).acquire().await.expect("free");
    // What ActionHero's unlock does to the next owner, if its own lock ends between its GET and its DEL.
    server.ask(&["DEL", "actionhero:lock:gone"]);
    in_time(guard.lost()).await;
    assert!(matches!(guard.release().await, Err(Error::Conflict(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prefix_is_used_and_unsupported_options_are_rejected() {
    let server = server();
    let duly = Duly::open(format!("{}?lock_prefix=app:lock:&wary=0", url(&server))).await.expect("opens");
    let guard = duly.lock("x").acquire().await.expect("free");
    assert_eq!(server.ask(&["EXISTS", "app:lock:x"]).text(), "1");
    drop(guard);
    let error = duly.push(duly::Push::new("mail", "{}")).await.expect_err("no jobs");
    assert!(error.to_string().contains("redis://HOST"), "{error}");
    let error = duly.lock("x").slots(2).acquire().await.expect_err("one holder");
    assert!(error.to_string().contains("one holder"), "{error}");
    let error = Duly::open("actionhero+cluster://127.0.0.1:1").await.expect_err("no Cluster");
    assert!(error.to_string().contains("not possible"), "{error}");
    let error = Duly::open("actionhero://127.0.0.1:1?speed=9").await.expect_err("no such option");
    assert!(error.to_string().contains("no option"), "{error}");
}
