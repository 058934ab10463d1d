//! Peers on real servers: behaviour that the contract tests cannot observe.

use std::time::Duration;

use duly::bounds::DEFAULT_LEASE;
use duly::store::{
    LOCK_WAITERS_CHECKED_MAX, LockOwner, LockRequest, LockStore, Notification, PeerInfo, PeerStore, Recipient,
};
use duly::{Clock, Duly, NodeId};
use tokio::sync::mpsc::Receiver;

use crate::helpers::{LONG, open, own_prefix, until};
use test_support::servers::{self, Binary, Direction, Options, Proxy, Server};

const TTL: Duration = Duration::from_secs(10);

fn peer_info() -> PeerInfo {
    PeerInfo { methods: vec!["m".into()], ..PeerInfo::new(NodeId::fresh(), DEFAULT_LEASE) }
}

fn lock_request(name: &str, node: NodeId) -> LockRequest {
    let (owner, name) = (LockOwner::fresh(), name.to_owned());
    LockRequest { name, owner, node, lease: DEFAULT_LEASE, slots: 1, ttl: TTL, wait: true, note: String::new() }
}

async fn next(notifications: &mut Receiver<Notification>) -> Notification {
    tokio::time::timeout(LONG, notifications.recv()).await.expect("in time").expect("open")
}

fn cut_all_connections(server: &Server) {
    // All connections but this one.
    server.send_command(&["CLIENT", "KILL", "SKIPME", "yes"]);
}

async fn peer_resubscribes(binary: Binary, listen_only: bool) {
    let server = Options::durable(binary).start();
    let duly = open(server.url()).await;
    let store = duly.store();
    let peer = PeerInfo { listen_only, ..peer_info() };
    let mut notifications = store.subscribe_messages(peer.node, true).await.expect("subscribes");
    store.announce(&peer).await.expect("announces");
    for to in [Recipient::Node(peer.node), Recipient::All] {
        assert_eq!(store.send(to, b"one").await.expect("sends"), 1);
        assert_eq!(next(&mut notifications).await, Notification::Message(b"one".into()));
    }
    cut_all_connections(&server);
    until("it receives messages again", async || {
        // The first requests may meet the closed connection.
        let is_announced = store.announce(&peer).await.is_ok();
        is_announced && store.send(Recipient::All, b"two").await.is_ok_and(|receivers| receivers == 1)
    })
    .await;
    assert_eq!(next(&mut notifications).await, Notification::Gap, "a message may have been missed");
    assert_eq!(next(&mut notifications).await, Notification::Message(b"two".into()));
    assert_eq!(store.send(Recipient::Node(peer.node), b"three").await.expect("sends"), 1);
    assert_eq!(next(&mut notifications).await, Notification::Message(b"three".into()));
}

#[tokio::test]
async fn peer_resubscribes_after_a_cut_connection() {
    peer_resubscribes(Binary::Redis, false).await;
}

#[tokio::test]
async fn quiet_peer_resubscribes_after_a_cut_connection() {
    peer_resubscribes(Binary::Valkey, true).await;
}

#[tokio::test]
async fn lock_without_replica_confirmation_is_not_granted() {
    let server = Options::durable(Binary::Redis).start();
    let duly = open(format!("{}?replicas=1", server.url())).await;
    let request = lock_request("l", NodeId::fresh());
    let error = duly.store().lock(&request).await.expect_err("there is no replica");
    assert_eq!(error.code(), "unknown");
    let error = duly.store().extend_locks(&[request]).await.expect_err("there is no replica");
    assert_eq!(error.code(), "unknown");
}

#[tokio::test]
async fn lock_confirmed_by_replicas_is_granted() {
    let url = format!("{}&replicas=1", own_prefix(&servers::cluster().url()));
    let duly = open(url).await;
    let (store, request) = (duly.store(), lock_request("l", NodeId::fresh()));
    let hold = store.lock(&request).await.expect("is confirmed").hold;
    assert!(hold.is_some());
    assert_eq!(store.lock(&request).await.expect("is confirmed").hold, hold);
    assert_eq!(store.extend_locks(std::slice::from_ref(&request)).await.expect("is confirmed"), [true]);
    assert!(store.unlock(&request).await.expect("a reply"));
}

/// Returns the size of each peer key that grows.
fn sizes(server: &Server) -> Vec<i64> {
    let key = |name: &str| format!("duly:peers:{{duly}}:{name}");
    let hashes = ["locks", "waiter_index", "peers", "connections"].map(|name| ("HLEN", key(name)));
    let sets = ["lock_waiters", "presence"].map(|name| ("ZCARD", key(name)));
    let all = hashes.into_iter().chain(sets);
    all.map(|(command, key)| server.send_command(&[command, &key]).text().parse().expect("a number")).collect()
}

/// Far more than one operation removes.
const MANY: usize = 250;

#[tokio::test]
async fn dead_peers_leave_no_keys() {
    let server = Options::durable(Binary::Redis).start();
    let clock = Clock::manual();
    let duly = Duly::builder(server.url()).clock(clock.clone()).open().await.expect("opens");
    let (store, dead_peer) = (duly.store(), peer_info());
    store.announce(&dead_peer).await.expect("announces");
    for n in 0..MANY {
        let held = LockRequest { slots: 1 + n as u32 % 3, ..lock_request(&format!("lock {n}"), dead_peer.node) };
        store.lock(&held).await.expect("a reply").hold.expect("is free");
        let waiting = LockRequest { owner: LockOwner::fresh(), slots: 1, ..held };
        assert_eq!(store.lock(&waiting).await.expect("a reply").hold, None);
    }
    let connections: Vec<String> = (0..MANY).map(|n| format!("connection {n}")).collect();
    store.set_connections(dead_peer.node, &connections, &[]).await.expect("stores");
    let many = MANY as i64;
    assert_eq!(sizes(&server), [2 * many + 1, many, 1, many, many, 1], "each with its waiter mark, and the last fence");

    let live_peer = peer_info();
    clock.advance(TTL + Duration::from_secs(61));
    until("all is cleared", async || {
        clock.advance(Duration::from_secs(5));
        store.announce(&live_peer).await.expect("announces");
        sizes(&server) == [1, 0, 1, 0, 0, 1]
    })
    .await;
    let fresh = store.lock(&lock_request("lock 1", live_peer.node)).await.expect("a reply");
    assert!(fresh.hold.is_some());
}

/// Without lock waiters and calls, only plain workers can remove dead peers.
#[tokio::test]
async fn plain_workers_remove_dead_peers() {
    let server = Options::durable(Binary::Redis).start();
    let clock = Clock::manual();
    let duly = Duly::builder(server.url()).clock(clock.clone()).open().await.expect("opens");
    let (store, dead_peer) = (duly.store(), peer_info());
    for n in 0..MANY {
        store.lock(&lock_request(&format!("lock {n}"), dead_peer.node)).await.expect("a reply").hold.expect("is free");
    }
    assert!(sizes(&server)[0] > MANY as i64);
    let live_peer = PeerInfo { listen_only: true, ..peer_info() };
    clock.advance(TTL + Duration::from_secs(61));
    until("all is cleared", async || {
        clock.advance(Duration::from_secs(61));
        store.announce(&live_peer).await.expect("announces");
        sizes(&server)[0] == 1
    })
    .await;
}

/// The removal of dead waiters follows the release, and its reply is lost.
#[tokio::test]
async fn release_succeeds_although_dead_waiters_remain() {
    let server = Options::durable(Binary::Redis).start();
    let (proxy, clock) = (Proxy::start(server.port()), Clock::manual());
    let open = async |url: String| Duly::builder(url).clock(clock.clone()).open().await.expect("opens");
    let (duly, direct) = (open(format!("redis://{}", proxy.address())).await, open(server.url()).await);
    let (store, dead_peer) = (duly.store(), peer_info());
    let held = LockRequest { ttl: 100 * TTL, ..lock_request("l", NodeId::fresh()) };
    assert!(store.lock(&held).await.expect("a reply").hold.is_some());
    for _ in 0..3 * LOCK_WAITERS_CHECKED_MAX {
        assert_eq!(store.lock(&lock_request("l", dead_peer.node)).await.expect("a reply").hold, None);
    }
    clock.advance(2 * DEFAULT_LEASE);
    // The server has cached the script by now.
    assert!(!store.unlock(&lock_request("another", dead_peer.node)).await.expect("a reply"));
    proxy.freeze(Direction::Replies);
    let (unlocking, owner) = (store.clone(), held.owner.to_string());
    let released = tokio::spawn(async move { unlocking.unlock(&held).await });
    until("it is released", async || direct.lock("l").holder().await.expect("a reply").is_none()).await;
    proxy.drop_reply(&owner);
    proxy.thaw();
    let released = tokio::time::timeout(LONG, released).await.expect("in time").expect("no panic");
    assert!(released.expect("it was held"));
    assert_eq!(proxy.dropped(), 1);
}

async fn connection_is_registered_again_after_data_loss(binary: Binary) {
    let server = Options::durable(binary).start();
    let (duly, other) = (open(server.url()).await, open(server.url()).await);
    let _held = duly.hold_connection("browser 7").await.expect("is held");
    let node = duly.node_id().expect("is one");
    let found = async || other.store().connection_holder("browser 7").await.ok().flatten() == Some(node);
    assert!(found().await);
    // As after a restart without persistence.
    server.send_command(&["FLUSHALL"]);
    assert!(!found().await);
    cut_all_connections(&server);
    until("it is found again", found).await;
}

#[tokio::test]
async fn connection_is_registered_again_after_redis_data_loss() {
    connection_is_registered_again_after_data_loss(Binary::Redis).await;
}

#[tokio::test]
async fn connection_is_registered_again_after_valkey_data_loss() {
    connection_is_registered_again_after_data_loss(Binary::Valkey).await;
}
