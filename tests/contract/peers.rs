//! The hall: who is there, what is said to whom, and who can be asked.

use std::time::Duration;

use duly::NodeId;
use duly::store::{CONNECTIONS_BATCH_MAX, Notification, Recipient};

use crate::locks::{ask, take};
use crate::test_store::*;

async fn send(store: &TestStore, to: Recipient, message: &[u8]) -> u64 {
    store.store.send(to, message).await.expect("sends")
}

fn said(message: &[u8]) -> Notification {
    Notification::Message(message.into())
}

async fn connect(store: &TestStore, guest: &'static str, held: &[&str], gone: &[&str]) {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<String>>();
    let node = store.guest(guest).await;
    store.store.set_connections(node, &owned(held), &owned(gone)).await.expect("notes");
}

async fn connection(store: &TestStore, name: &str) -> Option<NodeId> {
    store.store.connection_holder(name).await.expect("looks")
}

/// Who can be asked to do this, in the order of their ids.
async fn answering(store: &TestStore, method: &str) -> Vec<NodeId> {
    let mut nodes = store.store.peers_with_method(method).await.expect("looks");
    nodes.sort();
    nodes
}

async fn guest_with(store: &TestStore, guest: &'static str, methods: &[&str]) -> NodeId {
    store.guest_who(guest, |guest| guest.methods = methods.iter().map(|method| (*method).into()).collect()).await
}

/// Queues and methods of a node that is alive, if it is known.
async fn seen(store: &TestStore, node: NodeId) -> Option<(Vec<String>, Vec<String>)> {
    let nodes = store.store.nodes().await.expect("lists");
    let mut rows = nodes.into_iter().filter(|row| row.id == node);
    let row = rows.next();
    assert!(rows.next().is_none(), "a node is one row");
    row.filter(|row| row.alive).map(|row| (row.queues, row.methods))
}

pub async fn message_reaches_only_its_node(store: TestStore) {
    let (mut a_hears, mut b_hears) = (store.listen("a").await, store.listen("b").await);
    let (a, b) = (store.guest("a").await, store.guest("b").await);
    assert_eq!(send(&store, Recipient::Node(a), b"to a").await, 1);
    assert_eq!(a_hears.next().await, said(b"to a"));
    assert_eq!(send(&store, Recipient::Node(b), b"to b").await, 1);
    assert_eq!(b_hears.next().await, said(b"to b"), "and nothing before");
}

pub async fn broadcast_reaches_every_subscriber_and_the_sender(store: TestStore) {
    let mut ears = vec![store.listen("a").await, store.listen("b").await, store.listen("c").await];
    for message in [&b"one"[..], b"two"] {
        assert_eq!(send(&store, Recipient::All, message).await, 3);
        for ear in &mut ears {
            assert_eq!(ear.next().await, said(message));
        }
    }
}

pub async fn message_to_an_unknown_node_reaches_none(store: TestStore) {
    assert_eq!(send(&store, Recipient::All, b"hello?").await, 0);
    assert_eq!(send(&store, Recipient::Node(NodeId::fresh()), b"hello?").await, 0);
    let mut hears = store.listen("a").await;
    assert_eq!(send(&store, Recipient::Node(NodeId::fresh()), b"not for a").await, 0);
    assert_eq!(send(&store, Recipient::All, b"for a").await, 1);
    assert_eq!(hears.next().await, said(b"for a"));
}

pub async fn messages_arrive_in_order(store: TestStore) {
    let mut hears = store.listen("a").await;
    let a = Recipient::Node(store.guest("a").await);
    for round in 0..10u8 {
        for i in 0..20u8 {
            send(&store, a, &[round, i]).await;
        }
        for i in 0..20u8 {
            assert_eq!(hears.next().await, said(&[round, i]));
        }
    }
}

pub async fn messages_survive_byte_for_byte(store: TestStore) {
    let mut hears = store.listen("a").await;
    let a = Recipient::Node(store.guest("a").await);
    let every_byte: Vec<u8> = (0..=255).collect();
    let large: Vec<u8> = (0..256 * 1024u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for message in [&every_byte[..], b"", &large[..], b"\r\n", "ä锁".as_bytes()] {
        for to in [a, Recipient::All] {
            assert_eq!(send(&store, to, message).await, 1);
            assert!(hears.next().await == said(message), "{} bytes, unchanged", message.len());
        }
    }
}

pub async fn one_process_receives_for_several_nodes(store: TestStore) {
    let (mut a_hears, mut b_hears) = (store.listen("a").await, store.listen("b").await);
    let (a, b) = (store.guest("a").await, store.guest("b").await);
    for (to, message) in [(Recipient::Node(a), b"a"), (Recipient::Node(b), b"b")] {
        assert_eq!(send(&store, to, message).await, 1);
    }
    assert_eq!(a_hears.next().await, said(b"a"));
    assert_eq!(b_hears.next().await, said(b"b"));

    // One that stops to listen does not take the other's ear away.
    drop(a_hears);
    store.depart("a").await;
    assert_eq!(send(&store, Recipient::Node(b), b"still there").await, 1);
    assert_eq!(b_hears.next().await, said(b"still there"));
}

pub async fn withdrawn_node_receives_nothing_and_is_not_found(store: TestStore) {
    let mut b_hears = store.listen("b").await;
    let _before = store.listen("a").await;
    let a = guest_with(&store, "a", &["m"]).await;
    connect(&store, "a", &["c"], &[]).await;
    store.depart("a").await;
    assert_eq!(send(&store, Recipient::Node(a), b"missed").await, 0);
    assert_eq!(send(&store, Recipient::All, b"to those who are there").await, 1);
    assert_eq!(b_hears.next().await, said(b"to those who are there"));
    assert!(answering(&store, "m").await.is_empty());
    assert_eq!(connection(&store, "c").await, None);
    assert_eq!(seen(&store, a).await, None);

    let mut hears = store.listen("a").await;
    assert_eq!(send(&store, Recipient::Node(a), b"back").await, 1);
    assert_eq!(hears.next().await, said(b"back"), "and nothing of before");
}

pub async fn connections_are_found_until_their_node_expires(store: TestStore) {
    let (a, b) = (store.guest("a").await, store.guest("b").await);
    connect(&store, "a", &["one", "two", "drei:ß {x}"], &[]).await;
    connect(&store, "b", &["four"], &["one"]).await; // which was never its own
    assert_eq!(connection(&store, "one").await, Some(a));
    assert_eq!(connection(&store, "drei:ß {x}").await, Some(a));
    assert_eq!(connection(&store, "four").await, Some(b));
    assert_eq!(connection(&store, "never").await, None);

    connect(&store, "a", &["five"], &["two", "never"]).await;
    assert_eq!(connection(&store, "two").await, None);
    assert_eq!(connection(&store, "five").await, Some(a));

    store.advance(10 * past_the_lease()).await;
    assert_eq!(connection(&store, "one").await, Some(a), "as long as it attends");
    store.silence("a");
    store.advance(past_the_lease()).await;
    assert_eq!(connection(&store, "one").await, None);
    assert_eq!(connection(&store, "four").await, Some(b));
    store.depart("b").await;
    assert_eq!(connection(&store, "four").await, None);
}

pub async fn many_connections_are_registered_in_one_operation(store: TestStore) {
    let a = store.guest("a").await;
    let names: Vec<String> = (0..CONNECTIONS_BATCH_MAX).map(|i| format!("connection {i}")).collect();
    store.store.set_connections(a, &names, &[]).await.expect("notes");
    assert_eq!(connection(&store, &names[0]).await, Some(a));
    assert_eq!(connection(&store, &names[CONNECTIONS_BATCH_MAX - 1]).await, Some(a));
    store.store.set_connections(a, &[], &names).await.expect("forgets");
    assert_eq!(connection(&store, &names[CONNECTIONS_BATCH_MAX - 1]).await, None);
}

pub async fn moved_connection_belongs_to_its_new_node(store: TestStore) {
    connect(&store, "a", &["c"], &[]).await;
    connect(&store, "b", &["c"], &[]).await;
    let b = store.guest("b").await;
    assert_eq!(connection(&store, "c").await, Some(b));
    connect(&store, "a", &[], &["c"]).await;
    assert_eq!(connection(&store, "c").await, Some(b), "the old node cannot forget it");
    store.depart("a").await;
    assert_eq!(connection(&store, "c").await, Some(b), "nor take it along");
    store.depart("b").await;
    assert_eq!(connection(&store, "c").await, None);
}

pub async fn moved_connection_is_not_reclaimed_by_its_old_node(store: TestStore) {
    let (a, b) = (store.guest("a").await, store.guest("b").await);
    let keep = async |node, names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        store.store.refresh_connections(node, &names).await.expect("notes")
    };
    connect(&store, "a", &["moved", "stays"], &[]).await;
    connect(&store, "b", &["moved", "of the dead"], &[]).await;
    keep(a, &["moved", "stays", "forgotten"]).await;
    assert_eq!(connection(&store, "moved").await, Some(b));
    assert_eq!(connection(&store, "stays").await, Some(a));
    assert_eq!(connection(&store, "forgotten").await, Some(a), "nobody had it");
    connect(&store, "a", &[], &["moved"]).await;
    assert_eq!(connection(&store, "moved").await, Some(b), "the old node has dropped it");

    store.silence("b");
    store.advance(past_the_lease()).await;
    keep(a, &["of the dead"]).await;
    keep(a, &[]).await;
    assert_eq!(connection(&store, "of the dead").await, Some(a));
}

pub async fn nodes_are_listed_by_method(store: TestStore) {
    let a = guest_with(&store, "a", &["cache.flush", "ping"]).await;
    let b = guest_with(&store, "b", &["ping"]).await;
    store.guest("c").await;
    let mut both = [a, b];
    both.sort();
    assert_eq!(answering(&store, "ping").await, both);
    assert_eq!(answering(&store, "cache.flush").await, [a]);
    assert!(answering(&store, "cache").await.is_empty(), "a part of a name is another name");
    assert!(answering(&store, "never").await.is_empty());

    guest_with(&store, "a", &["other"]).await;
    assert_eq!(answering(&store, "ping").await, [b], "what a guest says last counts");
    assert_eq!(answering(&store, "other").await, [a]);
}

pub async fn quiet_peer_receives_messages_but_is_not_listed(store: TestStore) {
    let node = store
        .guest_who("q", |guest| {
            guest.listen_only = true;
            guest.methods = vec!["m".into()];
        })
        .await;
    let mut hears = store.listen("q").await;
    assert_eq!(send(&store, Recipient::Node(node), b"one").await, 1);
    assert_eq!(send(&store, Recipient::All, b"two").await, 1);
    let heard = [hears.next().await, hears.next().await];
    assert!(heard.contains(&said(b"one")) && heard.contains(&said(b"two")), "{heard:?}");
    assert!(answering(&store, "m").await.is_empty());
}

pub async fn peer_with_expired_lease_is_not_found(store: TestStore) {
    let a = guest_with(&store, "a", &["m"]).await;
    let b = guest_with(&store, "b", &["m"]).await;
    store.advance(10 * SECOND).await;
    assert!(answering(&store, "m").await.contains(&a), "as long as it attends");
    store.silence("a");
    store.advance(past_the_lease() - 2 * MS).await;
    assert!(answering(&store, "m").await.contains(&a));
    store.advance(2 * MS).await;
    assert_eq!(answering(&store, "m").await, [b]);
    assert_eq!(seen(&store, a).await, None);

    guest_with(&store, "a", &["m"]).await;
    assert_eq!(answering(&store, "m").await.len(), 2, "back again");
}

pub async fn peer_chooses_the_length_of_its_lease(store: TestStore) {
    const HALF_A_MINUTE: Duration = Duration::from_secs(30);
    let a = store
        .guest_who("a", |guest| {
            guest.lease = HALF_A_MINUTE;
            guest.methods = vec!["m".into()];
        })
        .await;
    store.guest("b").await;
    store.silence("a");
    store.advance(HALF_A_MINUTE - MS).await;
    assert_eq!(answering(&store, "m").await, [a]);
    store.advance(2 * MS).await;
    assert!(answering(&store, "m").await.is_empty());
}

pub async fn peers_are_listed_among_the_nodes(store: TestStore) {
    let guest = guest_with(&store, "guest", &["m"]).await;
    let worker = store.node("worker").await;
    let both = store.node("both").await;
    assert_eq!(guest_with(&store, "both", &["m", "n"]).await, both);
    let (default, none) = (vec!["default".to_owned()], Vec::<String>::new());
    let methods = vec!["m".to_owned(), "n".to_owned()];
    assert_eq!(seen(&store, guest).await, Some((none.clone(), vec!["m".into()])));
    assert_eq!(seen(&store, worker).await, Some((default.clone(), none.clone())));
    assert_eq!(seen(&store, both).await, Some((default.clone(), methods)));
    assert_eq!(store.store.nodes().await.expect("lists").len(), 3);

    store.advance(2 * past_the_lease()).await;
    store.depart("both").await;
    assert_eq!(seen(&store, both).await, Some((default, none)), "it still works");
    store.depart("guest").await;
    assert_eq!(seen(&store, guest).await, None);
}

pub async fn worker_that_leaves_stays_a_peer(store: TestStore) {
    let both = store.node("both").await;
    let mut hears = store.listen("both").await;
    guest_with(&store, "both", &["m"]).await;
    store.store.leave(both).await.expect("leaves");
    assert_eq!(answering(&store, "m").await, [both]);
    assert_eq!(seen(&store, both).await.map(|(_, methods)| methods), Some(vec!["m".to_owned()]));
    assert_eq!(send(&store, Recipient::Node(both), b"still there").await, 1);
    assert_eq!(hears.next().await, said(b"still there"));
}

pub async fn store_returns_its_time(store: TestStore) {
    store.node("a").await;
    assert_eq!(store.store.now(), store.now());
    store.advance(90 * SECOND + MS).await;
    assert_eq!(store.store.now(), store.now(), "after a beat");
    store.sleep(SECOND);
    take(&store, &ask(&store, "b").await).await;
    assert_eq!(store.store.now(), store.now(), "after a request");
}
