//! What may be carried out in part: whoever is told that nothing was changed does it again, and has it twice.

use std::time::Duration;

use duly::store::{AttemptEnd, Claim};
use duly::{Capacity, Error, Node, Outcome, Push};

use super::{Location, on_each};
use crate::helpers::{durable, open};
use test_support::servers::{Binary, Proxy};

/// How often something is tried that must be done within a second.
const TRIES: usize = 20;

on_each![
    push_to_two_queues_with_one_failing_is_partial,
    push_to_two_queues_with_one_full_is_partial,
    partially_applied_push_is_unknown,
    partially_recorded_settle_is_unknown
];

/// The second queue cannot be written to; the first one has its job.
async fn push_to_two_queues_with_one_failing_is_partial(location: Location) {
    let duly = open(location.url.clone()).await;
    location.ask("SET", &location.key("job"), &[b"not a hash"]);
    let error = duly.push_all([Push::new("mail", "1").queue("other"), Push::new("mail", "2")]).await;
    let error = error.expect_err("a queue that is none");
    assert!(matches!(error, Error::Unknown { .. }), "{error:?}");
    assert!(format!("{error:?}").contains("WRONGTYPE"), "{error:?}");
    let counts = duly.counts().await.expect("counts");
    assert_eq!(counts.iter().find(|counts| counts.queue == "other").map(|counts| counts.ready), Some(1));
    let error = duly.push(Push::new("mail", "3")).await.expect_err("nothing is in");
    assert!(matches!(error, Error::Store { .. }), "{error:?}");
}

async fn push_to_two_queues_with_one_full_is_partial(location: Location) {
    let duly = open(location.url.clone()).await;
    duly.set_capacity("full", Capacity { jobs: Some(0), bytes: None }).await.expect("sets");
    let error = duly.push_all([Push::new("mail", "1"), Push::new("mail", "2").queue("full")]).await;
    let error = error.expect_err("there is no room");
    assert!(matches!(error, Error::Unknown { .. }) && format!("{error:?}").contains("queue full is full"), "{error:?}");
    let error = duly.push_all([Push::new("mail", "3").queue("full"), Push::new("mail", "4")]).await;
    assert!(matches!(error, Err(Error::Full { .. })), "{error:?}");
    let ready = duly.counts().await.expect("counts").iter().map(|counts| counts.ready).sum::<u64>();
    assert_eq!(ready, 1);
}

/// Somebody has damaged what is counted beside a push, which fails, and the job is in.
async fn partially_applied_push_is_unknown(location: Location) {
    let duly = open(location.url.clone()).await;
    let (history, ready) = (location.key("history"), async || duly.counts().await.expect("counts")[0].ready);
    for _ in 0..TRIES {
        location.ask("DEL", &history, &[]);
        // By this it is known for a second that nobody waits and nothing is limited: what follows goes in a transaction.
        duly.push(Push::new("mail", "1")).await.expect("pushes");
        let before = ready().await;
        location.ask("DEL", &history, &[]);
        location.ask("SET", &history, &[b"not a hash"]);
        let error = duly.push(Push::new("mail", "2")).await.expect_err("it cannot be counted");
        assert!(format!("{error:?}").contains("WRONGTYPE"), "{error:?}");
        if matches!(error, Error::Unknown { .. }) {
            return assert_eq!(ready().await, before + 1, "the job is in");
        }
    }
    panic!("it never went in a transaction");
}

/// An ack is recorded and a retry is not, because somebody has damaged what is kept of failures: whoever sends both again must not take
/// the ack for robbed. Where nothing can be recorded nothing is in doubt.
async fn partially_recorded_settle_is_unknown(location: Location) {
    let duly = open(location.url.clone()).await;
    duly.push_all([Push::new("mail", "1"), Push::new("mail", "2")]).await.expect("pushes");
    let (store, node) = (duly.store(), Node::fresh(vec!["default".into()]));
    store.heartbeat(&node).await.expect("beats");
    let claim = Claim { queue: "default".into(), max: 2, resync: false, suspect: None, kinds: None };
    let held = store.claim(node.id, claim).await.expect("claims").jobs;
    let again = Outcome::retry(Duration::from_secs(60), "oh");
    let end = |at: usize, outcome: &Outcome| AttemptEnd::from_held(&held[at], outcome.clone(), Duration::ZERO);
    let ends = || vec![end(0, &Outcome::Ack), end(1, &again)];
    location.ask("SET", &location.key("errors"), &[b"not a hash"]);
    let error = store.settle(node.id, ends()).await.expect_err("one of them cannot be recorded");
    assert!(matches!(error, Error::Unknown { .. }) && format!("{error:?}").contains("WRONGTYPE"), "{error:?}");
    assert!(duly.get(held[0].job.id).await.expect("looks").is_none(), "the other one is");
    location.ask("DEL", &location.key("held"), &[]);
    location.ask("SET", &location.key("held"), &[b"not a hash"]);
    let error = store.settle(node.id, ends()).await.expect_err("neither can be recorded");
    assert!(matches!(error, Error::Store { .. }), "{error:?}");
}

/// The answer is lost, and when it is sent again nobody is there: the first sending is in all the same.
#[tokio::test]
async fn push_with_lost_reply_before_an_outage_is_unknown() {
    let server = durable(Binary::Redis).start();
    let proxy = Proxy::start(server.port());
    let (near, far) = (open(server.url()).await, open(format!("redis://{}", proxy.address())).await);
    far.push(Push::new("mail", "1")).await.expect("pushes");
    proxy.refuse();
    proxy.drop_reply("fleeting");
    let error = far.push(Push::new("fleeting", "2")).await.expect_err("nobody answers");
    assert!(matches!(error, Error::Unknown { .. }), "{error:?}");
    assert_eq!(near.counts().await.expect("counts")[0].ready, 2);
}
