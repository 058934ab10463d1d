//! Slots that migrate to another server while jobs are pushed and run.

use std::time::Duration;

use duly::store::Node;
use duly::store::{Claim, JobStore};
use duly::{Duly, Priority, Push};

use crate::outage::load::Load;
use test_support::servers::{Binary, Cluster, MigrationStage, Options};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_continues_while_slots_migrate() {
    let servers = Cluster::start(Options::durable(Binary::Redis), test_support::servers::CALM);
    let load = Load::begin(&servers.url()).await;
    for tag in ["{red}", "{green}", "{blue}", "{red}"] {
        load.wait_until_pushed(100).await;
        let slot = servers.slot_of(tag);
        let from = servers.master_of_slot(slot);
        let to =
            (0..3).map(|n| servers.master_of(["{a}", "{b}", "{d}"][n])).find(|to| *to != from).expect("another master");
        // Blocking work: pushes and claims continue meanwhile.
        tokio::task::block_in_place(|| {
            servers.migrate_slot(slot, to, |stage| {
                if matches!(stage, MigrationStage::Opened | MigrationStage::Moved(_)) {
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
            });
        });
    }
    load.wait_until_pushed(100).await;
    assert_eq!(load.end().await, 0);
}

/// Jobs behind a removed one: more than are searched for it.
const BEHIND: u64 = 150;

/// With `replicas`, a push writes twice, and both writes must follow the slot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn push_with_replicas_follows_a_migrating_slot() {
    let servers = Cluster::start(Options::durable(Binary::Redis), test_support::servers::CALM);
    let duly = Duly::open(format!("{}?replicas=1", servers.url())).await.expect("opens");
    let push = || Push::new("mark", "null").queue("red");
    let later = || push().after(Duration::from_secs(60));
    // A script runs on a migrating slot only if all its keys are present. So the queue gets jobs of all kinds, a
    // running job, a job removed from its list, and an idle node.
    let (store, node) = (duly.store(), Node::fresh(vec!["red".into()]));
    let claim = || Claim::new("red", 1);
    duly.push(push()).await.expect("pushes");
    store.heartbeat(&node).await.expect("sends a heartbeat");
    assert_eq!(store.claim(node.id, claim()).await.expect("claims").jobs.len(), 1);
    duly.queues().pause("red").await.expect("pauses");
    duly.push_all(Priority::ALL.map(|priority| push().priority(priority))).await.expect("pushes");
    duly.push(later()).await.expect("pushes");
    let removed = duly.push(push()).await.expect("pushes").id();
    // From the end of its list it would be removed directly.
    duly.push_all((0..BEHIND).map(|_| push())).await.expect("pushes");
    duly.jobs().remove(removed).await.expect("removes");
    assert!(store.claim(node.id, claim()).await.expect("claims").jobs.is_empty());
    let (runtime, slot) = (tokio::runtime::Handle::current(), servers.slot_of("{red}"));
    let from = servers.master_of_slot(slot);
    let to = ["{a}", "{b}", "{d}"].map(|tag| servers.master_of(tag)).into_iter().find(|to| *to != from);
    tokio::task::block_in_place(|| {
        servers.migrate_slot(slot, to.expect("another master"), |stage| {
            if stage == MigrationStage::Emptied {
                // All keys have moved, and the old master still owns the slot.
                runtime.block_on(duly.push_all([push(), later()])).expect("pushes");
            }
        });
    });
    let counts = &duly.queues().counts().await.expect("counts")[0];
    assert_eq!((counts.ready, counts.scheduled), (5 + BEHIND, 2), "each once");
}
