//! Pushes of which a part may be in: whoever is told that nothing was changed pushes again, and has two.

use duly::{Error, Limit, Push};

use super::{Home, on_each};
use crate::servers::{Binary, Proxy};
use crate::support::{durable, open};

on_each![of_two_queues_one_may_be_in, of_two_queues_one_may_be_full, what_was_carried_out_in_part_is_not_pushed_twice];

/// The second queue cannot be written to; the first one has its job.
async fn of_two_queues_one_may_be_in(home: Home) {
    let duly = open(home.url.clone()).await;
    home.ask("SET", &home.key("job"), &[b"not a hash"]);
    let error = duly.push_all([Push::new("mail", "1").queue("other"), Push::new("mail", "2")]).await;
    let error = error.expect_err("a queue that is none");
    assert!(matches!(error, Error::Unknown { .. }), "{error:?}");
    assert!(format!("{error:?}").contains("WRONGTYPE"), "{error:?}");
    let counts = duly.counts().await.expect("counts");
    assert_eq!(counts.iter().find(|counts| counts.queue == "other").map(|counts| counts.ready), Some(1));
    let error = duly.push(Push::new("mail", "3")).await.expect_err("nothing is in");
    assert!(matches!(error, Error::Store { .. }), "{error:?}");
}

async fn of_two_queues_one_may_be_full(home: Home) {
    let duly = open(home.url.clone()).await;
    duly.limit("full", Limit { jobs: Some(0), bytes: None }).await.expect("sets");
    let error = duly.push_all([Push::new("mail", "1"), Push::new("mail", "2").queue("full")]).await;
    let error = error.expect_err("there is no room");
    assert!(matches!(error, Error::Unknown { .. }) && format!("{error:?}").contains("queue full is full"), "{error:?}");
    let error = duly.push_all([Push::new("mail", "3").queue("full"), Push::new("mail", "4")]).await;
    assert!(matches!(error, Err(Error::Full { .. })), "{error:?}");
    let ready = duly.counts().await.expect("counts").iter().map(|counts| counts.ready).sum::<u64>();
    assert_eq!(ready, 1);
}

/// Somebody has damaged what is counted beside a push, which fails, and the job is in.
async fn what_was_carried_out_in_part_is_not_pushed_twice(home: Home) {
    let duly = open(home.url.clone()).await;
    // By the first it is known that nobody waits and nothing is limited: what follows goes in a transaction.
    duly.push(Push::new("mail", "1")).await.expect("pushes");
    duly.push(Push::new("mail", "2")).await.expect("pushes");
    home.ask("DEL", &home.key("history"), &[]);
    home.ask("SET", &home.key("history"), &[b"not a hash"]);
    let pushed = duly.push(Push::new("mail", "3")).await.expect("the job is in");
    assert!(pushed.is_new(), "{pushed:?}");
    assert_eq!(duly.counts().await.expect("counts")[0].ready, 3);
    home.ask("DEL", &home.key("history"), &[]);
    assert_eq!(duly.verify().await.expect("looks").breaches, []);
}

/// The answer is lost, and when it is sent again nobody is there: the first sending is in all the same.
#[tokio::test]
async fn a_push_whose_answer_was_lost_before_the_server_went_may_be_in() {
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
