//! A server that is killed and comes back.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use duly::{Ctx, Duly, Outcome, Push};

use crate::ledger::Ledger;
use crate::servers::{Binary, Fsync, Options};
use crate::storm::{Mark, Storm};

/// Kills in an ordinary run; `DULY_KILLS` asks for more.
fn kills() -> usize {
    std::env::var("DULY_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(5)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_when_a_server_that_syncs_always_is_killed() {
    for binary in [Binary::Redis, Binary::Valkey] {
        let server = Options::new(binary).aof(Fsync::Always).start();
        let storm = Storm::begin(&server.url()).await;
        for _ in 0..kills() {
            storm.until_pushed(100).await;
            server.kill();
            server.restart();
        }
        storm.until_pushed(100).await;
        assert_eq!(storm.end().await, 0);
    }
}

/// The checker is worth something only if it finds loss where there is some.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_keeps_nothing_loses_jobs_and_the_checker_sees_it() {
    let server = Options::new(Binary::Redis).start();
    let duly = Duly::open(format!("{}?allow_data_loss=true", server.url())).await.expect("opens");
    let ledger = Arc::new(Ledger::default());
    let push = async |number: u64| {
        let id = duly.push(Push::from(Mark(number))).await.expect("pushes").id();
        ledger.acknowledged(id, number);
        id
    };
    // One that has started and would go on later, one that is done, one that has not started.
    let later = push(0).await;
    let handler = |outcome: Outcome| {
        let ledger = ledger.clone();
        move |Mark(number): Mark, ctx: Ctx| {
            let outcome = outcome.clone();
            ledger.started(0, &ctx, number, &outcome);
            ledger.settled(ctx.job().id, &outcome);
            async move { outcome }
        }
    };
    let again = Outcome::retry(Duration::from_secs(3_600), "once more");
    assert_eq!(duly.worker().on(handler(again)).drain().await.expect("drains").retried, 1);
    let done = push(1).await;
    assert_eq!(duly.worker().on(handler(Outcome::Ack)).drain().await.expect("drains").acked, 1);
    let lost = push(2).await;
    assert_eq!(ledger.vanished(&BTreeSet::new()), [later], "it waits, and nothing else does");
    server.kill();
    server.restart();
    let tally = duly.worker().on(handler(Outcome::Ack)).drain().await.expect("drains");
    assert_eq!((tally.acked, ledger.missing()), (0, vec![lost]));
    assert_eq!(ledger.vanished(&BTreeSet::new()), [later]);
    assert_eq!(ledger.vanished(&BTreeSet::from([later])), [], "among the dead it would be found");

    // One that is run again although it was done.
    assert_eq!(ledger.wrong(), Vec::<String>::new());
    duly.push(Push::from(Mark(1)).id(done)).await.expect("pushes");
    assert_eq!(duly.worker().on(handler(Outcome::Ack)).drain().await.expect("drains").acked, 1);
    let wrong = ledger.wrong();
    assert!(wrong.len() == 1 && wrong[0].contains("although it was done"), "{wrong:?}");
}
