//! Messages that were not sent by a node with the key, or were sent to another node, or long ago.
//!
//! All of them enter through the store, as any client with write access could send them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use duly::call::CallContext;
use duly::store::{Notification, PeerInfo, PeerStore, Recipient};
use duly::{Duly, Error, NodeId};
use serde_json::Value;
use test_support::until;
use tokio::sync::mpsc::Receiver;

use crate::distributed_locks::location::{KEY, LONG, Location, MS, in_time};

const OTHER_KEY: &str = "a secret of another cluster, just as long";
/// Bytes before the JSON: format, key id and signature.
const HEAD_BYTES: usize = 1 + 8 + 32;

/// A node with the key that counts executed calls.
struct Victim {
    _duly: Duly,
    node: NodeId,
    ran: Arc<AtomicU32>,
    /// Another node with the key.
    friend: Duly,
}

impl Victim {
    async fn on(location: &Location) -> Self {
        let (duly, friend) = (location.open_with(&[KEY]).await, location.open_with(&[KEY]).await);
        let ran = Arc::new(AtomicU32::new(0));
        let count = ran.clone();
        let run = move |_: Value, _: CallContext| {
            count.fetch_add(1, Ordering::SeqCst);
            async { Ok::<_, Error>(()) }
        };
        duly.on_call("run", run).await.expect("registers");
        let node = duly.node_id().expect("is one");
        Victim { _duly: duly, node, ran, friend }
    }

    fn ran(&self) -> u32 {
        self.ran.load(Ordering::SeqCst)
    }

    /// Returns how many messages it has rejected for this reason.
    async fn rejected(&self, reason: &str) -> u64 {
        let stats = in_time(self.friend.call("duly.stats", &()).node(self.node).timeout(LONG).reply::<Value>()).await;
        stats.expect("it lives")["calls"][reason].as_u64().expect("a count")
    }

    /// Sends it a message that it must reject for this reason and not execute.
    async fn assert_rejects(&self, outsider: &Outsider, frame: &[u8], reason: &str) {
        let (ran, rejected) = (self.ran(), self.rejected(reason).await);
        outsider.duly.store().send(Recipient::Node(self.node), frame).await.expect("is sent");
        in_time(async { while self.rejected(reason).await == rejected {} }).await;
        assert_eq!(self.ran(), ran, "{reason}: not executed");
    }
}

/// A client with access to the store but without a key.
struct Outsider {
    duly: Duly,
    node: NodeId,
    notifications: Receiver<Notification>,
}

impl Outsider {
    async fn on(location: &Location) -> Self {
        let duly = location.open().await;
        let (store, node) = (duly.store(), NodeId::fresh());
        let notifications = store.subscribe_messages(node, true).await.expect("subscribes");
        store.announce(&PeerInfo::new(node, LONG)).await.expect("is there");
        Outsider { duly, node, notifications }
    }

    /// Waits for the next message.
    async fn next_message(&mut self) -> Vec<u8> {
        loop {
            if let Notification::Message(frame) = in_time(self.notifications.recv()).await.expect("goes on") {
                return frame;
            }
        }
    }

    /// Returns the raw message of a broadcast call that was executed.
    async fn record(&mut self, victim: &Victim, timeout: Duration) -> Vec<u8> {
        let ran = victim.ran();
        victim.friend.call("run", &()).all().timeout(timeout).send().await.expect("is sent");
        let frame = self.next_message().await;
        until("the call was executed", async || victim.ran() != ran).await;
        frame
    }
}

async fn replayed_call_is_rejected(location: Location) {
    let (victim, mut outsider) = (Victim::on(&location).await, Outsider::on(&location).await);
    let frame = outsider.record(&victim, LONG).await;
    for _ in 0..3 {
        victim.assert_rejects(&outsider, &frame, "replayed").await;
    }
    assert_eq!(victim.ran(), 1, "once, when it was meant");
}

async fn late_call_is_rejected(location: Location) {
    let (victim, mut outsider) = (Victim::on(&location).await, Outsider::on(&location).await);
    let frame = outsider.record(&victim, 400 * MS).await;
    tokio::time::sleep(600 * MS).await;
    victim.assert_rejects(&outsider, &frame, "expired").await;
}

async fn call_addressed_to_another_node_is_rejected(location: Location) {
    let (victim, mut outsider) = (Victim::on(&location).await, Outsider::on(&location).await);
    let call = victim.friend.call("run", &()).node(outsider.node).timeout(LONG);
    call.send().await.expect("is sent to the outsider");
    let frame = outsider.next_message().await;
    victim.assert_rejects(&outsider, &frame, "not_for_us").await;
    // Also sent back to its sender, as if it were a reply.
    let friend = victim.friend.node_id().expect("is one");
    outsider.duly.store().send(Recipient::Node(friend), &frame).await.expect("is sent");
    let stats =
        async || in_time(victim.friend.call("duly.stats", &()).node(friend).reply::<Value>()).await.expect("lives");
    in_time(async { while stats().await["calls"]["not_for_us"] != 1 {} }).await;
}

async fn call_with_any_changed_byte_is_rejected(location: Location) {
    let (victim, mut outsider) = (Victim::on(&location).await, Outsider::on(&location).await);
    let frame = outsider.record(&victim, LONG).await;
    let (store, node) = (outsider.duly.store(), victim.node);
    let mut sent = 0;
    for index in 0..frame.len() {
        let mut changed = frame.clone();
        changed[index] ^= 1 << fastrand::u8(..8);
        store.send(Recipient::Node(node), &changed).await.expect("is sent");
        store.send(Recipient::Node(node), &frame[..index]).await.expect("is sent");
        sent += 2;
    }
    let longer = [frame.as_slice(), b" "].concat();
    store.send(Recipient::Node(node), &longer).await.expect("is sent");
    sent += 1;
    let rejected = async || victim.rejected("forged").await + victim.rejected("malformed").await;
    // A few messages may be lost in transit.
    in_time(async { while rejected().await < sent * 9 / 10 {} }).await;
    assert!(victim.rejected("forged").await > victim.rejected("malformed").await, "most fail the signature check");
    assert_eq!(victim.ran(), 1, "once, as it was sent");
    victim.friend.call("run", &()).node(node).reply::<()>().await.expect("the node lives");
}

async fn call_without_the_cluster_key_is_rejected(location: Location) {
    let (victim, mut outsider) = (Victim::on(&location).await, Outsider::on(&location).await);
    for keys in [&[][..], &[OTHER_KEY]] {
        let foreign_node = location.open_with(keys).await;
        let (ran, rejected) = (victim.ran(), victim.rejected("forged").await);
        let result = foreign_node.call("run", &()).node(victim.node).timeout(300 * MS).reply::<()>().await;
        assert_eq!(result.expect_err("no reply").code(), "timeout");
        assert!(victim.rejected("forged").await > rejected);
        assert_eq!(victim.ran(), ran);
    }
    // A valid body under another sender's header.
    let frame = outsider.record(&victim, LONG).await;
    let foreign_node = location.open_with(&[OTHER_KEY]).await;
    foreign_node.call("run", &()).node(outsider.node).send().await.expect("is sent");
    let foreign = outsider.next_message().await;
    let mixed = [&foreign[..HEAD_BYTES], &frame[HEAD_BYTES..]].concat();
    victim.assert_rejects(&outsider, &mixed, "forged").await;
}

async fn message_too_long_is_rejected(location: Location) {
    let (victim, outsider) = (Victim::on(&location).await, Outsider::on(&location).await);
    let rejected = victim.rejected("malformed").await;
    let frame = [b"1".to_vec(), vec![b'{'; duly::bounds::MESSAGE_BYTES_MAX]].concat();
    // The store may already reject it.
    if outsider.duly.store().send(Recipient::Node(victim.node), &frame).await.is_ok() {
        in_time(async { while victim.rejected("malformed").await == rejected {} }).await;
    }
    victim.friend.call("run", &()).node(victim.node).reply::<()>().await.expect("the node lives");
}

async fn only_registered_methods_run(location: Location) {
    let victim = Victim::on(&location).await;
    for method in ["constructor", "__proto__", "run.run", "Run", "duly.eval", "std.process.exit"] {
        let rejected = in_time(victim.friend.call(method, &()).node(victim.node).timeout(LONG).reply::<Value>()).await;
        assert_eq!(rejected.expect_err("is none").code(), "not_found", "{method}");
    }
    assert_eq!(victim.ran(), 0);
}

/// Runs each test on a file and on a server.
macro_rules! on_file_and_server {
    ($($case:ident)*) => {
        mod on_file { $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() { super::$case(crate::distributed_locks::location::Location::file()).await }
        )* }
        #[cfg(feature = "redis")]
        mod on_server { $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let url = test_support::servers::redis().url();
                super::$case(crate::distributed_locks::location::Location::on(&url)).await
            }
        )* }
    };
}

on_file_and_server! {
    replayed_call_is_rejected
    late_call_is_rejected
    call_addressed_to_another_node_is_rejected
    call_with_any_changed_byte_is_rejected
    call_without_the_cluster_key_is_rejected
    message_too_long_is_rejected
    only_registered_methods_run
}
