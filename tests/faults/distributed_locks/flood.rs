//! A flood of messages that mean nothing: a node's memory stays flat, and it goes on answering.

use std::time::{Duration, Instant};

use duly::store::Recipient;
use duly::{CallContext, Duly, Error, NodeId};
use serde_json::Value;

use crate::distributed_locks::child::{Child, Start, say};
use crate::distributed_locks::location::{KEY, LONG, Location, MS, in_time};

/// How long it lasts in an ordinary run.
const SECONDS: u64 = 5;
const PER_SECOND: u64 = 1_000;
/// What a node may grow by: far less than the flood weighs in a long run, far more than an allocator's moods.
const GROWTH_MAX: u64 = 24 * 1024 * 1024;

/// The child: a node that answers.
pub async fn live(store: &str, key: &str) {
    let duly = Duly::builder(store).cluster_key(key).open().await.expect("opens");
    duly.on_call("echo", |args: Value, _: CallContext| async move { Ok::<_, Error>(args) }).await.expect("registers");
    say(duly.node_id().expect("is one"));
    std::future::pending::<()>().await;
}

/// Something that is no message: too short, too long, unsigned, half of one, deeply nested.
fn rubbish(n: u64) -> Vec<u8> {
    let head = || [b"1".to_vec(), vec![0; 40]].concat();
    match n % 8 {
        0 => Vec::new(),
        1 => n.to_le_bytes().repeat(5),
        2 => [head(), b"{\"id\":".to_vec()].concat(),
        3 => [head(), vec![b'['; 4_000]].concat(),
        4 => [b"2".to_vec(), vec![0xff; 200]].concat(),
        5 => [head(), format!("{{\"id\":\"{n}\",\"from\":null,\"to\":null,\"says\":\"no_method\"}}").into_bytes()]
            .concat(),
        6 => vec![b'1'; 20_000],
        _ => (0..fastrand::usize(..300)).map(|_| fastrand::u8(..)).collect(),
    }
}

struct Flooded<'a> {
    from: Duly,
    friend: Duly,
    node: NodeId,
    child: &'a mut Child,
    answered: u32,
    unanswered: u32,
}

impl Flooded<'_> {
    /// So many a second for so long; answers how many went out.
    async fn flood(&mut self, seconds: u64) -> u64 {
        let (store, began) = (self.from.store(), Instant::now());
        let mut sent = 0;
        while began.elapsed() < Duration::from_secs(seconds) {
            let due = PER_SECOND * began.elapsed().as_millis() as u64 / 1_000;
            while sent < due {
                store.send(Recipient::Node(self.node), &rubbish(sent)).await.expect("is sent");
                sent += 1;
            }
            let call = self.friend.call("echo", &sent).node(self.node).timeout(1_000 * MS).reply::<u64>();
            match call.await {
                Ok(back) => {
                    assert_eq!(back, sent);
                    self.answered += 1;
                }
                Err(error) => {
                    println!("in the flood: {error}");
                    self.unanswered += 1;
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
    let node: NodeId = child.word().parse().expect("its id");
    let (from, friend) = (location.open().await, location.open_with(&[KEY]).await);
    let mut flooded = Flooded { from, friend, node, child: &mut child, answered: 0, unanswered: 0 };
    flooded.flood(1).await;
    let before = flooded.child.memory();
    let sent = flooded.flood(test_support::env_number("DULY_FLOOD_SECONDS").unwrap_or(SECONDS)).await;
    let after = flooded.child.memory();
    let stats = in_time(flooded.friend.call("duly.stats", &()).node(node).timeout(LONG).reply::<Value>()).await;
    let (answered, unanswered) = (flooded.answered, flooded.unanswered);
    let calls = &stats.expect("lives")["calls"];
    println!(
        "{on}: {sent} sent, {} and {} refused, {answered} calls answered meanwhile, {unanswered} not; \
         memory {} KiB before, {} KiB after",
        calls["malformed"],
        calls["forged"],
        before / 1024,
        after / 1024
    );
    assert!(after.saturating_sub(before) < GROWTH_MAX, "it grows");
    assert!(answered > 10 * unanswered, "it answers");
    let refused = ["malformed", "forged"].iter().filter_map(|why| calls[why].as_u64()).sum::<u64>();
    assert!(refused > sent / 2, "they have arrived");
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
