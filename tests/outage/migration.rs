//! Slots that move to another server while jobs are pushed and run.

use crate::servers::{Binary, Cluster, Fsync, Options, Step};
use crate::storm::Storm;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_goes_on_while_slots_move() {
    let servers = Cluster::start(Options::new(Binary::Redis).aof(Fsync::EverySecond), crate::servers::CALM);
    let storm = Storm::begin(&servers.url()).await;
    for tag in ["{red}", "{green}", "{blue}", "{red}"] {
        storm.until_pushed(100).await;
        let slot = servers.slot_of(tag);
        let from = servers.master_of_slot(slot);
        let to =
            (0..3).map(|n| servers.master_of(["{a}", "{b}", "{d}"][n])).find(|to| *to != from).expect("another master");
        // Blocking work on a thread of its own: the storm goes on meanwhile.
        tokio::task::block_in_place(|| {
            servers.migrate_slot(slot, to, |step| {
                if matches!(step, Step::Opened | Step::Moved(_)) {
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
            });
        });
    }
    storm.until_pushed(100).await;
    assert_eq!(storm.end().await, 0);
}
