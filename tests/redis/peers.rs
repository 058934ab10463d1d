//! The hall on real servers: what the contract cannot see of it.

use std::time::Duration;

use duly::store::{LOCK_WAITERS_CHECKED_MAX, LockOwner, LockRequest, Notification, PeerInfo, Recipient};
use duly::{Clock, Duly, LEASE, NodeId};
use tokio::sync::mpsc::Receiver;

use crate::helpers::{LONG, apart, durable, open, until};
use test_support::servers::{self, Binary, Direction, Proxy, Server};

const TTL: Duration = Duration::from_secs(10);

fn guest() -> PeerInfo {
    PeerInfo {
        node: NodeId::fresh(),
        lease: LEASE,
        methods: vec!["m".into()],
        waited_locks: Vec::new(),
        waiters: Vec::new(),
        listen_only: false,
    }
}

fn ask(name: &str, node: NodeId) -> LockRequest {
    let (owner, name) = (LockOwner::fresh(), name.to_owned());
    LockRequest { name, owner, node, lease: LEASE, slots: 1, ttl: TTL, wait: true, note: String::new() }
}

async fn next(heard: &mut Receiver<Notification>) -> Notification {
    tokio::time::timeout(LONG, heard.recv()).await.expect("in time").expect("open")
}

fn cut_all_connections(server: &Server) {
    // All but the one that says so.
    server.ask(&["CLIENT", "KILL", "SKIPME", "yes"]);
}

async fn hears_again_when_the_connection_was_cut(binary: Binary, quiet: bool) {
    let server = durable(binary).start();
    let duly = open(server.url()).await;
    let store = duly.store();
    let guest = PeerInfo { listen_only: quiet, ..guest() };
    let mut heard = store.subscribe_messages(guest.node, true).await.expect("hears");
    store.announce(&guest).await.expect("attends");
    for to in [Recipient::Node(guest.node), Recipient::All] {
        assert_eq!(store.send(to, b"one").await.expect("sends"), 1);
        assert_eq!(next(&mut heard).await, Notification::Message(b"one".into()));
    }
    cut_all_connections(&server);
    until("it is heard again", async || {
        // The first requests may meet the end of the old connection.
        let attended = store.announce(&guest).await.is_ok();
        attended && store.send(Recipient::All, b"two").await.is_ok_and(|heard| heard == 1)
    })
    .await;
    assert_eq!(next(&mut heard).await, Notification::Gap, "something may have been missed");
    assert_eq!(next(&mut heard).await, Notification::Message(b"two".into()));
    assert_eq!(store.send(Recipient::Node(guest.node), b"three").await.expect("sends"), 1);
    assert_eq!(next(&mut heard).await, Notification::Message(b"three".into()));
}

#[tokio::test]
async fn peer_resubscribes_after_a_cut_connection() {
    hears_again_when_the_connection_was_cut(Binary::Redis, false).await;
}

#[tokio::test]
async fn quiet_peer_resubscribes_after_a_cut_connection() {
    hears_again_when_the_connection_was_cut(Binary::Valkey, true).await;
}

#[tokio::test]
async fn lock_without_replica_confirmation_is_not_granted() {
    let server = durable(Binary::Redis).start();
    let duly = open(format!("{}?replicas=1", server.url())).await;
    let ask = ask("l", NodeId::fresh());
    let error = duly.store().lock(&ask).await.expect_err("there is no replica");
    assert_eq!(error.code(), "unknown");
    let error = duly.store().extend_locks(&[ask]).await.expect_err("there is no replica");
    assert_eq!(error.code(), "unknown");
}

#[tokio::test]
async fn lock_confirmed_by_replicas_is_granted() {
    let url = format!("{}&replicas=1", apart(&servers::cluster().url()));
    let duly = open(url).await;
    let (store, ask) = (duly.store(), ask("l", NodeId::fresh()));
    let hold = store.lock(&ask).await.expect("is confirmed").hold;
    assert!(hold.is_some());
    assert_eq!(store.lock(&ask).await.expect("is confirmed").hold, hold);
    assert_eq!(store.extend_locks(std::slice::from_ref(&ask)).await.expect("is confirmed"), [true]);
    assert!(store.unlock(&ask).await.expect("answers"));
}

/// How much is in each of the hall's keys that grow.
fn sizes(server: &Server) -> Vec<i64> {
    let key = |name: &str| format!("duly:hall:{{duly}}:{name}");
    let hashes = ["locks", "places", "guests", "connections"].map(|name| ("HLEN", key(name)));
    let sets = ["line", "presence"].map(|name| ("ZCARD", key(name)));
    let all = hashes.into_iter().chain(sets);
    all.map(|(command, key)| server.ask(&[command, &key]).text().parse().expect("a number")).collect()
}

/// Far more than one step clears.
const MANY: usize = 250;

#[tokio::test]
async fn dead_peers_leave_no_keys() {
    let server = durable(Binary::Redis).start();
    let clock = Clock::manual();
    let duly = Duly::builder(server.url()).clock(clock.clone()).open().await.expect("opens");
    let (store, dead) = (duly.store(), guest());
    store.announce(&dead).await.expect("attends");
    for n in 0..MANY {
        let held = LockRequest { slots: 1 + n as u32 % 3, ..ask(&format!("lock {n}"), dead.node) };
        store.lock(&held).await.expect("answers").hold.expect("is free");
        let waiting = LockRequest { owner: LockOwner::fresh(), slots: 1, ..held };
        assert_eq!(store.lock(&waiting).await.expect("answers").hold, None);
    }
    let connections: Vec<String> = (0..MANY).map(|n| format!("connection {n}")).collect();
    store.set_connections(dead.node, &connections, &[]).await.expect("notes");
    let many = MANY as i64;
    assert_eq!(sizes(&server), [2 * many + 1, many, 1, many, many, 1], "each with its mark, and the last fence");

    let living = guest();
    clock.advance(TTL + Duration::from_secs(61));
    until("all is cleared", async || {
        clock.advance(Duration::from_secs(5));
        store.announce(&living).await.expect("attends");
        sizes(&server) == [1, 0, 1, 0, 0, 1]
    })
    .await;
    let fresh = store.lock(&ask("lock 1", living.node)).await.expect("answers");
    assert!(fresh.hold.is_some());
}

/// Where nobody waits and nobody calls there is nobody else to do it.
#[tokio::test]
async fn plain_workers_remove_dead_peers() {
    let server = durable(Binary::Redis).start();
    let clock = Clock::manual();
    let duly = Duly::builder(server.url()).clock(clock.clone()).open().await.expect("opens");
    let (store, dead) = (duly.store(), guest());
    for n in 0..MANY {
        store.lock(&ask(&format!("lock {n}"), dead.node)).await.expect("answers").hold.expect("is free");
    }
    assert!(sizes(&server)[0] > MANY as i64);
    let living = PeerInfo { listen_only: true, ..guest() };
    clock.advance(TTL + Duration::from_secs(61));
    until("all is cleared", async || {
        clock.advance(Duration::from_secs(61));
        store.announce(&living).await.expect("attends");
        sizes(&server)[0] == 1
    })
    .await;
}

/// What clears the dead out of the line comes after the release, and its answer is lost.
#[tokio::test]
async fn release_succeeds_although_dead_waiters_remain() {
    let server = durable(Binary::Redis).start();
    let (proxy, clock) = (Proxy::start(server.port()), Clock::manual());
    let open = async |url: String| Duly::builder(url).clock(clock.clone()).open().await.expect("opens");
    let (duly, beside) = (open(format!("redis://{}", proxy.address())).await, open(server.url()).await);
    let (store, dead) = (duly.store(), guest());
    let held = LockRequest { ttl: 100 * TTL, ..ask("l", NodeId::fresh()) };
    assert!(store.lock(&held).await.expect("answers").hold.is_some());
    for _ in 0..3 * LOCK_WAITERS_CHECKED_MAX {
        assert_eq!(store.lock(&ask("l", dead.node)).await.expect("answers").hold, None);
    }
    clock.advance(2 * LEASE);
    // The server knows the script by then.
    assert!(!store.unlock(&ask("another", dead.node)).await.expect("answers"));
    proxy.freeze(Direction::Replies);
    let (unlocking, owner) = (store.clone(), held.owner.to_string());
    let released = tokio::spawn(async move { unlocking.unlock(&held).await });
    until("it is released", async || beside.lock("l").holder().await.expect("looks").is_none()).await;
    proxy.drop_reply(&owner);
    proxy.thaw();
    let released = tokio::time::timeout(LONG, released).await.expect("in time").expect("no panic");
    assert!(released.expect("it has ended"));
    assert_eq!(proxy.dropped(), 1);
}

async fn a_connection_is_found_again_after_a_server_has_forgotten_it(binary: Binary) {
    let server = durable(binary).start();
    let (duly, other) = (open(server.url()).await, open(server.url()).await);
    let _held = duly.hold_connection("browser 7").await.expect("is held");
    let node = duly.node_id().expect("is one");
    let found = async || other.store().connection_holder("browser 7").await.ok().flatten() == Some(node);
    assert!(found().await);
    // As after a restart without its file.
    server.ask(&["FLUSHALL"]);
    assert!(!found().await);
    cut_all_connections(&server);
    until("it is found again", found).await;
}

#[tokio::test]
async fn connection_is_registered_again_after_redis_data_loss() {
    a_connection_is_found_again_after_a_server_has_forgotten_it(Binary::Redis).await;
}

#[tokio::test]
async fn connection_is_registered_again_after_valkey_data_loss() {
    a_connection_is_found_again_after_a_server_has_forgotten_it(Binary::Valkey).await;
}
