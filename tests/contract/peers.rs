//! Peers: messages, connections and methods of nodes.

use std::time::Duration;

use duly::NodeId;
use duly::store::{CONNECTIONS_BATCH_MAX, JobStore, Notification, PeerStore, Recipient};

use crate::locks::{acquire, request};
use crate::test_store::*;

async fn send(store: &TestStore, to: Recipient, bytes: &[u8]) -> u64 {
    store.store.send(to, bytes).await.expect("sends")
}

fn message(bytes: &[u8]) -> Notification {
    Notification::Message(bytes.into())
}

async fn connect(store: &TestStore, peer: &'static str, added: &[&str], removed: &[&str]) {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<String>>();
    let node = store.peer(peer).await;
    store.store.set_connections(node, &owned(added), &owned(removed)).await.expect("records");
}

async fn connection(store: &TestStore, name: &str) -> Option<NodeId> {
    store.store.connection_holder(name).await.expect("reads")
}

/// Returns the nodes with this method, sorted by id.
async fn nodes_with_method(store: &TestStore, method: &str) -> Vec<NodeId> {
    let mut nodes = store.store.peers_with_method(method).await.expect("reads");
    nodes.sort();
    nodes
}

async fn peer_with_methods(store: &TestStore, peer: &'static str, methods: &[&str]) -> NodeId {
    store.peer_with(peer, |peer| peer.methods = methods.iter().map(|method| (*method).into()).collect()).await
}

/// Returns queues and methods of a node if it is listed and alive.
async fn live_node(store: &TestStore, node: NodeId) -> Option<(Vec<String>, Vec<String>)> {
    let nodes = store.store.nodes().await.expect("lists");
    let mut rows = nodes.into_iter().filter(|row| row.id == node);
    let row = rows.next();
    assert!(rows.next().is_none(), "a node is one row");
    row.filter(|row| row.alive).map(|row| (row.queues, row.methods))
}

pub async fn message_reaches_only_its_node(store: TestStore) {
    let (mut a_inbox, mut b_inbox) = (store.subscribe("a").await, store.subscribe("b").await);
    let (a, b) = (store.peer("a").await, store.peer("b").await);
    assert_eq!(send(&store, Recipient::Node(a), b"to a").await, 1);
    assert_eq!(a_inbox.next().await, message(b"to a"));
    assert_eq!(send(&store, Recipient::Node(b), b"to b").await, 1);
    assert_eq!(b_inbox.next().await, message(b"to b"), "and nothing before");
}

pub async fn broadcast_reaches_every_subscriber_and_the_sender(store: TestStore) {
    let mut inboxes = vec![store.subscribe("a").await, store.subscribe("b").await, store.subscribe("c").await];
    for bytes in [&b"one"[..], b"two"] {
        assert_eq!(send(&store, Recipient::All, bytes).await, 3);
        for inbox in &mut inboxes {
            assert_eq!(inbox.next().await, message(bytes));
        }
    }
}

pub async fn message_to_an_unknown_node_reaches_none(store: TestStore) {
    assert_eq!(send(&store, Recipient::All, b"hello?").await, 0);
    assert_eq!(send(&store, Recipient::Node(NodeId::fresh()), b"hello?").await, 0);
    let mut inbox = store.subscribe("a").await;
    assert_eq!(send(&store, Recipient::Node(NodeId::fresh()), b"not for a").await, 0);
    assert_eq!(send(&store, Recipient::All, b"for a").await, 1);
    assert_eq!(inbox.next().await, message(b"for a"));
}

pub async fn messages_arrive_in_order(store: TestStore) {
    let mut inbox = store.subscribe("a").await;
    let a = Recipient::Node(store.peer("a").await);
    for round in 0..10u8 {
        for i in 0..20u8 {
            send(&store, a, &[round, i]).await;
        }
        for i in 0..20u8 {
            assert_eq!(inbox.next().await, message(&[round, i]));
        }
    }
}

pub async fn messages_survive_byte_for_byte(store: TestStore) {
    let mut inbox = store.subscribe("a").await;
    let a = Recipient::Node(store.peer("a").await);
    let every_byte: Vec<u8> = (0..=255).collect();
    let large: Vec<u8> = (0..256 * 1024u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for bytes in [&every_byte[..], b"", &large[..], b"\r\n", "ä锁".as_bytes()] {
        for to in [a, Recipient::All] {
            assert_eq!(send(&store, to, bytes).await, 1);
            assert!(inbox.next().await == message(bytes), "{} bytes, unchanged", bytes.len());
        }
    }
}

pub async fn one_process_receives_for_several_nodes(store: TestStore) {
    let (mut a_inbox, mut b_inbox) = (store.subscribe("a").await, store.subscribe("b").await);
    let (a, b) = (store.peer("a").await, store.peer("b").await);
    for (to, bytes) in [(Recipient::Node(a), b"a"), (Recipient::Node(b), b"b")] {
        assert_eq!(send(&store, to, bytes).await, 1);
    }
    assert_eq!(a_inbox.next().await, message(b"a"));
    assert_eq!(b_inbox.next().await, message(b"b"));

    // Dropping one subscription does not affect the other.
    drop(a_inbox);
    store.withdraw("a").await;
    assert_eq!(send(&store, Recipient::Node(b), b"still there").await, 1);
    assert_eq!(b_inbox.next().await, message(b"still there"));
}

pub async fn withdrawn_node_receives_nothing_and_is_not_found(store: TestStore) {
    let mut b_inbox = store.subscribe("b").await;
    let _before = store.subscribe("a").await;
    let a = peer_with_methods(&store, "a", &["m"]).await;
    connect(&store, "a", &["c"], &[]).await;
    store.withdraw("a").await;
    assert_eq!(send(&store, Recipient::Node(a), b"missed").await, 0);
    assert_eq!(send(&store, Recipient::All, b"to the peers that remain").await, 1);
    assert_eq!(b_inbox.next().await, message(b"to the peers that remain"));
    assert!(nodes_with_method(&store, "m").await.is_empty());
    assert_eq!(connection(&store, "c").await, None);
    assert_eq!(live_node(&store, a).await, None);

    let mut inbox = store.subscribe("a").await;
    assert_eq!(send(&store, Recipient::Node(a), b"back").await, 1);
    assert_eq!(inbox.next().await, message(b"back"), "and no earlier message");
}

pub async fn connections_are_found_until_their_node_expires(store: TestStore) {
    let (a, b) = (store.peer("a").await, store.peer("b").await);
    connect(&store, "a", &["one", "two", "drei:ß {x}"], &[]).await;
    connect(&store, "b", &["four"], &["one"]).await; // which b never held
    assert_eq!(connection(&store, "one").await, Some(a));
    assert_eq!(connection(&store, "drei:ß {x}").await, Some(a));
    assert_eq!(connection(&store, "four").await, Some(b));
    assert_eq!(connection(&store, "never").await, None);

    connect(&store, "a", &["five"], &["two", "never"]).await;
    assert_eq!(connection(&store, "two").await, None);
    assert_eq!(connection(&store, "five").await, Some(a));

    store.advance(10 * past_the_lease()).await;
    assert_eq!(connection(&store, "one").await, Some(a), "while it announces itself");
    store.silence("a");
    store.advance(past_the_lease()).await;
    assert_eq!(connection(&store, "one").await, None);
    assert_eq!(connection(&store, "four").await, Some(b));
    store.withdraw("b").await;
    assert_eq!(connection(&store, "four").await, None);
}

pub async fn many_connections_are_registered_in_one_operation(store: TestStore) {
    let a = store.peer("a").await;
    let names: Vec<String> = (0..CONNECTIONS_BATCH_MAX).map(|i| format!("connection {i}")).collect();
    store.store.set_connections(a, &names, &[]).await.expect("records");
    assert_eq!(connection(&store, &names[0]).await, Some(a));
    assert_eq!(connection(&store, &names[CONNECTIONS_BATCH_MAX - 1]).await, Some(a));
    store.store.set_connections(a, &[], &names).await.expect("forgets");
    assert_eq!(connection(&store, &names[CONNECTIONS_BATCH_MAX - 1]).await, None);
}

pub async fn moved_connection_belongs_to_its_new_node(store: TestStore) {
    connect(&store, "a", &["c"], &[]).await;
    connect(&store, "b", &["c"], &[]).await;
    let b = store.peer("b").await;
    assert_eq!(connection(&store, "c").await, Some(b));
    connect(&store, "a", &[], &["c"]).await;
    assert_eq!(connection(&store, "c").await, Some(b), "the old node cannot remove it");
    store.withdraw("a").await;
    assert_eq!(connection(&store, "c").await, Some(b), "nor remove it by withdrawing");
    store.withdraw("b").await;
    assert_eq!(connection(&store, "c").await, None);
}

pub async fn moved_connection_is_not_reclaimed_by_its_old_node(store: TestStore) {
    let (a, b) = (store.peer("a").await, store.peer("b").await);
    let refresh = async |node, names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        store.store.refresh_connections(node, &names).await.expect("records")
    };
    connect(&store, "a", &["moved", "stays"], &[]).await;
    connect(&store, "b", &["moved", "of a dead node"], &[]).await;
    refresh(a, &["moved", "stays", "forgotten"]).await;
    assert_eq!(connection(&store, "moved").await, Some(b));
    assert_eq!(connection(&store, "stays").await, Some(a));
    assert_eq!(connection(&store, "forgotten").await, Some(a), "no node held it");
    connect(&store, "a", &[], &["moved"]).await;
    assert_eq!(connection(&store, "moved").await, Some(b), "the old node has dropped it");

    store.silence("b");
    store.advance(past_the_lease()).await;
    refresh(a, &["of a dead node"]).await;
    refresh(a, &[]).await;
    assert_eq!(connection(&store, "of a dead node").await, Some(a));
}

pub async fn nodes_are_listed_by_method(store: TestStore) {
    let a = peer_with_methods(&store, "a", &["cache.flush", "ping"]).await;
    let b = peer_with_methods(&store, "b", &["ping"]).await;
    store.peer("c").await;
    let mut both = [a, b];
    both.sort();
    assert_eq!(nodes_with_method(&store, "ping").await, both);
    assert_eq!(nodes_with_method(&store, "cache.flush").await, [a]);
    assert!(nodes_with_method(&store, "cache").await.is_empty(), "a part of a name is another name");
    assert!(nodes_with_method(&store, "never").await.is_empty());

    peer_with_methods(&store, "a", &["other"]).await;
    assert_eq!(nodes_with_method(&store, "ping").await, [b], "the last announcement counts");
    assert_eq!(nodes_with_method(&store, "other").await, [a]);
}

pub async fn listen_only_peer_receives_messages_but_is_not_listed(store: TestStore) {
    let node = store
        .peer_with("q", |peer| {
            peer.listen_only = true;
            peer.methods = vec!["m".into()];
        })
        .await;
    let mut inbox = store.subscribe("q").await;
    assert_eq!(send(&store, Recipient::Node(node), b"one").await, 1);
    assert_eq!(send(&store, Recipient::All, b"two").await, 1);
    let received = [inbox.next().await, inbox.next().await];
    assert!(received.contains(&message(b"one")) && received.contains(&message(b"two")), "{received:?}");
    assert!(nodes_with_method(&store, "m").await.is_empty());
}

pub async fn peer_with_expired_lease_is_not_found(store: TestStore) {
    let a = peer_with_methods(&store, "a", &["m"]).await;
    let b = peer_with_methods(&store, "b", &["m"]).await;
    store.advance(10 * SECOND).await;
    assert!(nodes_with_method(&store, "m").await.contains(&a), "while it announces itself");
    store.silence("a");
    store.advance(past_the_lease() - 2 * MS).await;
    assert!(nodes_with_method(&store, "m").await.contains(&a));
    store.advance(2 * MS).await;
    assert_eq!(nodes_with_method(&store, "m").await, [b]);
    assert_eq!(live_node(&store, a).await, None);

    peer_with_methods(&store, "a", &["m"]).await;
    assert_eq!(nodes_with_method(&store, "m").await.len(), 2, "back again");
}

pub async fn peer_chooses_the_length_of_its_lease(store: TestStore) {
    const HALF_A_MINUTE: Duration = Duration::from_secs(30);
    let a = store
        .peer_with("a", |peer| {
            peer.lease = HALF_A_MINUTE;
            peer.methods = vec!["m".into()];
        })
        .await;
    store.peer("b").await;
    store.silence("a");
    store.advance(HALF_A_MINUTE - MS).await;
    assert_eq!(nodes_with_method(&store, "m").await, [a]);
    store.advance(2 * MS).await;
    assert!(nodes_with_method(&store, "m").await.is_empty());
}

pub async fn peers_are_listed_among_the_nodes(store: TestStore) {
    let peer = peer_with_methods(&store, "peer", &["m"]).await;
    let worker = store.node("worker").await;
    let both = store.node("both").await;
    assert_eq!(peer_with_methods(&store, "both", &["m", "n"]).await, both);
    let (default, none) = (vec!["default".to_owned()], Vec::<String>::new());
    let methods = vec!["m".to_owned(), "n".to_owned()];
    assert_eq!(live_node(&store, peer).await, Some((none.clone(), vec!["m".into()])));
    assert_eq!(live_node(&store, worker).await, Some((default.clone(), none.clone())));
    assert_eq!(live_node(&store, both).await, Some((default.clone(), methods)));
    assert_eq!(store.store.nodes().await.expect("lists").len(), 3);

    store.advance(2 * past_the_lease()).await;
    store.withdraw("both").await;
    assert_eq!(live_node(&store, both).await, Some((default, none)), "it is still a worker");
    store.withdraw("peer").await;
    assert_eq!(live_node(&store, peer).await, None);
}

pub async fn worker_that_leaves_stays_a_peer(store: TestStore) {
    let both = store.node("both").await;
    let mut inbox = store.subscribe("both").await;
    peer_with_methods(&store, "both", &["m"]).await;
    store.store.leave(both).await.expect("leaves");
    assert_eq!(nodes_with_method(&store, "m").await, [both]);
    assert_eq!(live_node(&store, both).await.map(|(_, methods)| methods), Some(vec!["m".to_owned()]));
    assert_eq!(send(&store, Recipient::Node(both), b"still there").await, 1);
    assert_eq!(inbox.next().await, message(b"still there"));
}

pub async fn store_returns_its_time(store: TestStore) {
    store.node("a").await;
    assert_eq!(store.store.now(), store.now());
    store.advance(90 * SECOND + MS).await;
    assert_eq!(store.store.now(), store.now(), "after a heartbeat");
    store.sleep(SECOND);
    acquire(&store, &request(&store, "b").await).await;
    assert_eq!(store.store.now(), store.now(), "after a request");
}
