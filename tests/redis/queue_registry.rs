//! The names of queues, where everybody finds them, also after the server has lost all it had.

use duly::store::Claim;
use duly::{Duly, Node, Push};

use crate::helpers::{durable, open, until};
use test_support::servers::{Binary, Server};

/// Whether somebody who has never heard of the queue finds it.
async fn is_found(stranger: &Duly) -> bool {
    stranger.counts().await.expect("counts").iter().any(|count| count.queue == "mail")
}

async fn two(server: &Server) -> (Duly, Duly) {
    (open(server.url()).await, open(server.url()).await)
}

/// FLUSHALL breaks no connection: nothing tells the pusher but its own care.
#[tokio::test]
async fn pushed_queue_is_registered_again_after_data_loss() {
    let server = durable(Binary::Redis).start();
    let (duly, stranger) = two(&server).await;
    let push = async || duly.push(Push::new("mark", "null").queue("mail")).await.expect("pushes");
    push().await;
    assert!(is_found(&stranger).await);
    server.ask(&["FLUSHALL"]);
    assert!(!is_found(&stranger).await);
    push().await;
    until("the queue is found", async || is_found(&stranger).await).await;
}

/// Also if it claims before it beats.
#[tokio::test]
async fn worked_queue_is_registered_again_after_data_loss() {
    let server = durable(Binary::Redis).start();
    let (duly, stranger) = two(&server).await;
    let (store, node) = (duly.store(), Node::fresh(vec!["mail".into()]));
    store.heartbeat(&node).await.expect("beats");
    until("the queue is found", async || is_found(&stranger).await).await;
    for claims in [false, true] {
        server.ask(&["FLUSHALL"]);
        // Pushed by a process that ends at once: whoever works the queue must see to its name.
        let pusher = open(server.url()).await;
        pusher.push(Push::new("mark", "null").queue("mail")).await.expect("pushes");
        drop(pusher);
        server.ask(&["SREM", "duly:hall:{duly}:queues", "mail"]);
        if claims {
            let claim = Claim { queue: "mail".into(), max: 1, resync: false, suspect: None, kinds: None };
            assert_eq!(store.claim(node.id, claim).await.expect("claims").jobs.len(), 1);
        }
        assert!(!is_found(&stranger).await);
        store.heartbeat(&node).await.expect("beats");
        until("the queue is found", async || is_found(&stranger).await).await;
    }
}
