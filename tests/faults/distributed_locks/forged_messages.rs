//! Messages that no node with the key has sent, or has sent to somebody else, or long ago.
//!
//! All of them go in where messages go in: whoever can write to the store can do the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use duly::store::{Notification, PeerInfo, Recipient};
use duly::{CallContext, Duly, Error, NodeId};
use serde_json::Value;
use tokio::sync::mpsc::Receiver;

use crate::distributed_locks::location::{KEY, LONG, Location, MS, in_time};

const OTHER_KEY: &str = "a secret of another cluster, just as long";
/// Format, name of the key, signature: what stands before the JSON.
const HEAD_BYTES: usize = 1 + 8 + 32;

/// A node with the key that counts how often it was made to do something.
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

    /// How many messages it has refused for this reason.
    async fn refused(&self, why: &str) -> u64 {
        let stats = in_time(self.friend.call("duly.stats", &()).node(self.node).timeout(LONG).reply::<Value>()).await;
        stats.expect("it lives")["calls"][why].as_u64().expect("a count")
    }

    /// Sends it something; it must be refused for this reason, and not be done.
    async fn must_refuse(&self, stranger: &Stranger, frame: &[u8], why: &str) {
        let (ran, refused) = (self.ran(), self.refused(why).await);
        stranger.duly.store().send(Recipient::Node(self.node), frame).await.expect("is sent");
        in_time(async { while self.refused(why).await == refused {} }).await;
        assert_eq!(self.ran(), ran, "{why}: not done");
    }
}

/// Somebody who can write to the store and read from it, and has no key.
struct Stranger {
    duly: Duly,
    node: NodeId,
    sounds: Receiver<Notification>,
}

impl Stranger {
    async fn on(location: &Location) -> Self {
        let duly = location.open().await;
        let (store, node) = (duly.store(), NodeId::fresh());
        let sounds = store.subscribe_messages(node, true).await.expect("hears");
        let guest = PeerInfo {
            node,
            lease: LONG,
            methods: Vec::new(),
            waited_locks: Vec::new(),
            waiters: Vec::new(),
            listen_only: false,
        };
        store.announce(&guest).await.expect("is there");
        Stranger { duly, node, sounds }
    }

    /// The next message that it hears.
    async fn hears(&mut self) -> Vec<u8> {
        loop {
            if let Notification::Message(frame) = in_time(self.sounds.recv()).await.expect("goes on") {
                return frame;
            }
        }
    }

    /// A call to everybody that was carried out, as it went over the wire.
    async fn record(&mut self, victim: &Victim, timeout: Duration) -> Vec<u8> {
        let ran = victim.ran();
        victim.friend.call("run", &()).all().timeout(timeout).send().await.expect("is sent");
        let frame = self.hears().await;
        in_time(async {
            while victim.ran() == ran {
                tokio::time::sleep(MS).await
            }
        })
        .await;
        frame
    }
}

async fn replayed_call_is_rejected(location: Location) {
    let (victim, mut stranger) = (Victim::on(&location).await, Stranger::on(&location).await);
    let frame = stranger.record(&victim, LONG).await;
    for _ in 0..3 {
        victim.must_refuse(&stranger, &frame, "replayed").await;
    }
    assert_eq!(victim.ran(), 1, "once, when it was meant");
}

async fn late_call_is_rejected(location: Location) {
    let (victim, mut stranger) = (Victim::on(&location).await, Stranger::on(&location).await);
    let frame = stranger.record(&victim, 400 * MS).await;
    tokio::time::sleep(600 * MS).await;
    victim.must_refuse(&stranger, &frame, "late").await;
}

async fn call_addressed_to_another_node_is_rejected(location: Location) {
    let (victim, mut stranger) = (Victim::on(&location).await, Stranger::on(&location).await);
    let call = victim.friend.call("run", &()).node(stranger.node).timeout(LONG);
    call.send().await.expect("is sent to who is nobody");
    let frame = stranger.hears().await;
    victim.must_refuse(&stranger, &frame, "not_for_us").await;
    // And back to who has sent it, as if it were a reply.
    let friend = victim.friend.node_id().expect("is one");
    stranger.duly.store().send(Recipient::Node(friend), &frame).await.expect("is sent");
    let stats =
        async || in_time(victim.friend.call("duly.stats", &()).node(friend).reply::<Value>()).await.expect("lives");
    in_time(async { while stats().await["calls"]["not_for_us"] != 1 {} }).await;
}

async fn call_with_any_changed_byte_is_rejected(location: Location) {
    let (victim, mut stranger) = (Victim::on(&location).await, Stranger::on(&location).await);
    let frame = stranger.record(&victim, LONG).await;
    let (store, node) = (stranger.duly.store(), victim.node);
    let mut sent = 0;
    for at in 0..frame.len() {
        let mut changed = frame.clone();
        changed[at] ^= 1 << fastrand::u8(..8);
        store.send(Recipient::Node(node), &changed).await.expect("is sent");
        store.send(Recipient::Node(node), &frame[..at]).await.expect("is sent");
        sent += 2;
    }
    let longer = [frame.as_slice(), b" "].concat();
    store.send(Recipient::Node(node), &longer).await.expect("is sent");
    sent += 1;
    let refused = async || victim.refused("forged").await + victim.refused("malformed").await;
    // On its way some may be lost, as messages may; most are not.
    in_time(async { while refused().await < sent * 9 / 10 {} }).await;
    assert!(victim.refused("forged").await > victim.refused("malformed").await, "the key has told");
    assert_eq!(victim.ran(), 1, "once, as it was sent");
    victim.friend.call("run", &()).node(node).reply::<()>().await.expect("the node lives");
}

async fn call_without_the_cluster_key_is_rejected(location: Location) {
    let (victim, mut stranger) = (Victim::on(&location).await, Stranger::on(&location).await);
    for keys in [&[][..], &[OTHER_KEY]] {
        let outside = location.open_with(keys).await;
        let (ran, refused) = (victim.ran(), victim.refused("forged").await);
        let unheard = outside.call("run", &()).node(victim.node).timeout(300 * MS).reply::<()>().await;
        assert_eq!(unheard.expect_err("nobody answers").code(), "timeout");
        assert!(victim.refused("forged").await > refused);
        assert_eq!(victim.ran(), ran);
    }
    // A valid body under a head of somebody else's making.
    let frame = stranger.record(&victim, LONG).await;
    let outside = location.open_with(&[OTHER_KEY]).await;
    outside.call("run", &()).node(stranger.node).send().await.expect("is sent");
    let foreign = stranger.hears().await;
    let mixed = [&foreign[..HEAD_BYTES], &frame[HEAD_BYTES..]].concat();
    victim.must_refuse(&stranger, &mixed, "forged").await;
}

async fn message_too_long_is_rejected(location: Location) {
    let (victim, stranger) = (Victim::on(&location).await, Stranger::on(&location).await);
    let refused = victim.refused("malformed").await;
    let frame = [b"1".to_vec(), vec![b'{'; duly::MESSAGE_BYTES_MAX]].concat();
    // The store may refuse it already; then nobody has to.
    if stranger.duly.store().send(Recipient::Node(victim.node), &frame).await.is_ok() {
        in_time(async { while victim.refused("malformed").await == refused {} }).await;
    }
    victim.friend.call("run", &()).node(victim.node).reply::<()>().await.expect("the node lives");
}

async fn only_registered_methods_run(location: Location) {
    let victim = Victim::on(&location).await;
    for method in ["constructor", "__proto__", "run.run", "Run", "duly.eval", "std.process.exit"] {
        let refused = in_time(victim.friend.call(method, &()).node(victim.node).timeout(LONG).reply::<Value>()).await;
        assert_eq!(refused.expect_err("is none").code(), "not_found", "{method}");
    }
    assert_eq!(victim.ran(), 0);
}

/// Each on a file and on a server.
macro_rules! everywhere {
    ($($case:ident)*) => {
        mod on_file { $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() { super::$case(crate::distributed_locks::location::Location::file()).await }
        )* }
        #[cfg(feature = "redis")]
        mod on_server { $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(crate::distributed_locks::location::Location::on(&test_support::servers::redis().url())).await
            }
        )* }
    };
}

everywhere! {
    replayed_call_is_rejected
    late_call_is_rejected
    call_addressed_to_another_node_is_rejected
    call_with_any_changed_byte_is_rejected
    call_without_the_cluster_key_is_rejected
    message_too_long_is_rejected
    only_registered_methods_run
}
