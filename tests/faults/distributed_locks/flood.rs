//! A flood of malformed messages: a node's memory stays flat, and it keeps replying.

use std::time::{Duration, Instant};

use duly::call::CallContext;
use duly::store::{PeerStore, Recipient};
use duly::{Duly, Error, NodeId};
use serde_json::Value;

use crate::distributed_locks::child::{Child, Start, report};
use crate::distributed_locks::location::{KEY, LONG, Location, MS, in_time};

/// Duration of the flood by default.
const SECONDS: u64 = 5;
const PER_SECOND: u64 = 1_000;
/// Maximum growth of a node: far less than the size of a long flood, far more than an allocator's noise.
const GROWTH_MAX: u64 = 24 * 1024 * 1024;

/// The child: a node that replies to calls.
pub async fn run(store: &str, key: &str) {
    let duly = Duly::builder(store).cluster_key(key).open().await.expect("opens");
    duly.on_call("echo", |args: Value, _: CallContext| async move { Ok::<_, Error>(args) }).await.expect("registers");
    report(duly.node_id().expect("is one"));
    std::future::pending::<()>().await;
}

/// Returns a malformed message: too short, too long, unsigned, truncated or deeply nested.
fn malformed(n: u64) -> Vec<u8> {
    let head = || [b"1".to_vec(), vec![0; 40]].concat();
    match n % 8 {
        0 => Vec::new(),
        1 => n.to_le_bytes().repeat(5),
        2 => [head(), b"{\"id\":".to_vec()].concat(),
        3 => [head(), vec![b'['; 4_000]].concat(),
        4 => [b"2".to_vec(), vec![0xff; 200]].concat(),
        5 => [head(), format!("{{\"id\":\"{n}\",\"from\":null,\"to\":null,\"body\":\"no_method\"}}").into_bytes()]
            .concat(),
        6 => vec![b'1'; 20_000],
        _ => (0..fastrand::usize(..300)).map(|_| fastrand::u8(..)).collect(),
    }
}

struct Flood<'a> {
    from: Duly,
    friend: Duly,
    node: NodeId,
    child: &'a mut Child,
    replies: u32,
    failures: u32,
}

impl Flood<'_> {
    /// Floods the node for this long; returns the number of messages sent.
    async fn flood(&mut self, seconds: u64) -> u64 {
        let (store, start) = (self.from.store(), Instant::now());
        let mut sent = 0;
        while start.elapsed() < Duration::from_secs(seconds) {
            let due = PER_SECOND * start.elapsed().as_millis() as u64 / 1_000;
            while sent < due {
                store.send(Recipient::Node(self.node), &malformed(sent)).await.expect("is sent");
                sent += 1;
            }
            let call = self.friend.call("echo", &sent).node(self.node).timeout(1_000 * MS).reply::<u64>();
            match call.await {
                Ok(reply) => {
                    assert_eq!(reply, sent);
                    self.replies += 1;
                }
                Err(error) => {
                    println!("in the flood: {error}");
                    self.failures += 1;
                }
            }
            assert!(!self.child.has_ended(), "the node has died");
            tokio::time::sleep(20 * MS).await;
        }
        sent
    }
}

async fn a_flood_of_malformed_messages_is_survived(on: &str, location: Location) {
    let mut child = Start::on("node", location.url(), location.dir(), "").run();
    let node: NodeId = child.next_message().parse().expect("its id");
    let (from, friend) = (location.open().await, location.open_with(&[KEY]).await);
    let mut flood = Flood { from, friend, node, child: &mut child, replies: 0, failures: 0 };
    flood.flood(1).await;
    let before = flood.child.memory();
    let sent = flood.flood(test_support::env_number("DULY_FLOOD_SECONDS").unwrap_or(SECONDS)).await;
    let after = flood.child.memory();
    let stats = in_time(flood.friend.call("duly.stats", &()).node(node).timeout(LONG).reply::<Value>()).await;
    let (replies, failures) = (flood.replies, flood.failures);
    let calls = &stats.expect("lives")["calls"];
    println!(
        "{on}: {sent} sent, {} and {} rejected, {replies} calls succeeded meanwhile, {failures} failed; \
         memory {} KiB before, {} KiB after",
        calls["malformed"],
        calls["forged"],
        before / 1024,
        after / 1024
    );
    assert!(after.saturating_sub(before) < GROWTH_MAX, "memory grows");
    assert!(replies > 10 * failures, "it replies");
    let rejected = ["malformed", "forged"].iter().filter_map(|reason| calls[reason].as_u64()).sum::<u64>();
    assert!(rejected > sent / 2, "they have arrived");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_file_flood_of_malformed_messages_leaves_memory_flat() {
    a_flood_of_malformed_messages_is_survived("file", Location::file()).await;
}

#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_server_flood_of_malformed_messages_leaves_memory_flat() {
    a_flood_of_malformed_messages_is_survived("server", Location::on(&test_support::servers::redis().url())).await;
}
