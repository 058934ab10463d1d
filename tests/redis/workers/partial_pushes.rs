//! Partially applied requests: a client that learned that nothing was changed would repeat them, and apply them twice.

use std::time::Duration;

use duly::admin::Capacity;
use duly::store::Node;
use duly::store::{AttemptEnd, Claim, JobStore};
use duly::{Error, Outcome, Push};

use super::{Location, on_each};
use crate::helpers::open;
use test_support::servers::{Binary, Options, Proxy};

/// Maximum number of tries of an operation that must follow another within a second.
const TRIES: usize = 20;

on_each![
    push_to_two_queues_with_one_failing_is_partial,
    push_to_two_queues_with_one_full_is_partial,
    partially_applied_push_is_unknown,
    partially_recorded_settle_is_unknown
];

/// The second queue cannot be written to; the first one gets its job.
async fn push_to_two_queues_with_one_failing_is_partial(location: Location) {
    let duly = open(location.url.clone()).await;
    location.send("SET", &location.key("job"), &[b"not a hash"]);
    let error = duly.push_all([Push::new("mail", "1").queue("other"), Push::new("mail", "2")]).await;
    let error = error.expect_err("the key has the wrong type");
    assert!(matches!(error, Error::Unknown { .. }), "{error:?}");
    assert!(format!("{error:?}").contains("WRONGTYPE"), "{error:?}");
    let counts = duly.queues().counts().await.expect("counts");
    assert_eq!(counts.iter().find(|counts| counts.queue == "other").map(|counts| counts.ready), Some(1));
    let error = duly.push(Push::new("mail", "3")).await.expect_err("nothing is inserted");
    assert!(matches!(error, Error::Store { .. }), "{error:?}");
}

async fn push_to_two_queues_with_one_full_is_partial(location: Location) {
    let duly = open(location.url.clone()).await;
    duly.queues().set_capacity("full", Capacity::unlimited().jobs(0)).await.expect("sets");
    let error = duly.push_all([Push::new("mail", "1"), Push::new("mail", "2").queue("full")]).await;
    let error = error.expect_err("there is no room");
    assert!(matches!(error, Error::Unknown { .. }) && format!("{error:?}").contains("queue full is full"), "{error:?}");
    let error = duly.push_all([Push::new("mail", "3").queue("full"), Push::new("mail", "4")]).await;
    assert!(matches!(error, Err(Error::Full { .. })), "{error:?}");
    let ready = duly.queues().counts().await.expect("counts").iter().map(|counts| counts.ready).sum::<u64>();
    assert_eq!(ready, 1);
}

/// The history key has the wrong type: counting fails, but the job is inserted.
async fn partially_applied_push_is_unknown(location: Location) {
    let duly = open(location.url.clone()).await;
    let (history, ready) = (location.key("history"), async || duly.queues().counts().await.expect("counts")[0].ready);
    for _ in 0..TRIES {
        location.send("DEL", &history, &[]);
        // After this push, duly assumes for a second that there is no idle node and no capacity, and uses a
        // transaction.
        duly.push(Push::new("mail", "1")).await.expect("pushes");
        let before = ready().await;
        location.send("DEL", &history, &[]);
        location.send("SET", &history, &[b"not a hash"]);
        let error = duly.push(Push::new("mail", "2")).await.expect_err("it cannot be counted");
        assert!(format!("{error:?}").contains("WRONGTYPE"), "{error:?}");
        if matches!(error, Error::Unknown { .. }) {
            return assert_eq!(ready().await, before + 1, "the job is inserted");
        }
    }
    panic!("it never used a transaction");
}

/// An ack is recorded, but a retry fails because the key of runs has the wrong type. If both are sent again, the
/// ack must not count as lost. If nothing can be recorded, the outcome is not unknown.
async fn partially_recorded_settle_is_unknown(location: Location) {
    let duly = open(location.url.clone()).await;
    duly.push_all([Push::new("mail", "1"), Push::new("mail", "2")]).await.expect("pushes");
    let (store, node) = (duly.store(), Node::fresh(vec!["default".into()]));
    store.heartbeat(&node).await.expect("sends a heartbeat");
    let claim = Claim::new("default", 2);
    let held = store.claim(node.id, claim).await.expect("claims").jobs;
    let retry = Outcome::retry(Duration::from_secs(60), "oh");
    let end = |index: usize, outcome: &Outcome| AttemptEnd::from_held(&held[index], outcome.clone(), Duration::ZERO);
    let attempt_ends = || vec![end(0, &Outcome::Ack), end(1, &retry)];
    location.send("SET", &location.key("runs"), &[b"not a hash"]);
    let error = store.settle(node.id, attempt_ends()).await.expect_err("one of them cannot be recorded");
    assert!(matches!(error, Error::Unknown { .. }) && format!("{error:?}").contains("WRONGTYPE"), "{error:?}");
    assert!(duly.jobs().get(held[0].job.id).await.expect("a reply").is_none(), "the other one is");
    location.send("DEL", &location.key("running"), &[]);
    location.send("SET", &location.key("running"), &[b"not a hash"]);
    let error = store.settle(node.id, attempt_ends()).await.expect_err("neither can be recorded");
    assert!(matches!(error, Error::Store { .. }), "{error:?}");
}

/// The reply is lost, and the server is unreachable for the retry: the first request was executed.
#[tokio::test]
async fn push_with_lost_reply_before_an_outage_is_unknown() {
    let server = Options::durable(Binary::Redis).start();
    let proxy = Proxy::start(server.port());
    let (near, far) = (open(server.url()).await, open(format!("redis://{}", proxy.address())).await);
    far.push(Push::new("mail", "1")).await.expect("pushes");
    proxy.refuse();
    proxy.drop_reply("lost_reply");
    let error = far.push(Push::new("lost_reply", "2")).await.expect_err("no reply");
    assert!(matches!(error, Error::Unknown { .. }), "{error:?}");
    assert_eq!(near.queues().counts().await.expect("counts")[0].ready, 2);
}
