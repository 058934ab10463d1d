//! The registry of queue names, and its recovery after a data loss.

use duly::store::Node;
use duly::store::{Claim, JobStore};
use duly::{Duly, Push};

use crate::helpers::{open, until};
use test_support::servers::{Binary, Options, Server};

/// Returns whether a client that does not know the queue finds it.
async fn is_found(observer: &Duly) -> bool {
    observer.queues().counts().await.expect("counts").iter().any(|count| count.queue == "mail")
}

async fn open_two(server: &Server) -> (Duly, Duly) {
    (open(server.url()).await, open(server.url()).await)
}

/// FLUSHALL closes no connection, so the pusher must notice the loss itself.
#[tokio::test]
async fn pushed_queue_is_registered_again_after_data_loss() {
    let server = Options::durable(Binary::Redis).start();
    let (duly, observer) = open_two(&server).await;
    let push = async || duly.push(Push::new("mark", "null").queue("mail")).await.expect("pushes");
    push().await;
    assert!(is_found(&observer).await);
    server.send_command(&["FLUSHALL"]);
    assert!(!is_found(&observer).await);
    push().await;
    until("the queue is found", async || is_found(&observer).await).await;
}

/// Also if it claims before its heartbeat.
#[tokio::test]
async fn worked_queue_is_registered_again_after_data_loss() {
    let server = Options::durable(Binary::Redis).start();
    let (duly, observer) = open_two(&server).await;
    let (store, node) = (duly.store(), Node::fresh(vec!["mail".into()]));
    store.heartbeat(&node).await.expect("sends a heartbeat");
    until("the queue is found", async || is_found(&observer).await).await;
    for claims in [false, true] {
        server.send_command(&["FLUSHALL"]);
        // Pushed by a process that ends at once: a worker of the queue must register the name.
        let pusher = open(server.url()).await;
        pusher.push(Push::new("mark", "null").queue("mail")).await.expect("pushes");
        drop(pusher);
        server.send_command(&["SREM", "duly:peers:{duly}:queues", "mail"]);
        if claims {
            let claim = Claim::new("mail", 1);
            assert_eq!(store.claim(node.id, claim).await.expect("claims").jobs.len(), 1);
        }
        assert!(!is_found(&observer).await);
        store.heartbeat(&node).await.expect("sends a heartbeat");
        until("the queue is found", async || is_found(&observer).await).await;
    }
}
