//! A server that is killed and comes back.

use crate::servers::{Binary, Fsync, Options};
use crate::storm::Storm;

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
    let duly = duly::Duly::open(format!("{}?allow_data_loss=true", server.url())).await.expect("opens");
    let ledger = crate::ledger::Ledger::default();
    ledger.acknowledged(duly.push(duly::Push::new("mark", "null")).await.expect("pushes").id());
    server.kill();
    server.restart();
    let tally = duly.worker().on(|_: crate::storm::Mark, _| async {}).drain().await.expect("drains");
    assert_eq!((tally.acked, ledger.missing().len()), (0, 1));
}
