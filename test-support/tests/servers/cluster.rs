//! A Cluster replaces a killed master, and moves a slot.

use crate::on_both;
use test_support::servers::{Binary, Cluster, MigrationStage, Options};

on_both![a_silent_master_is_replaced_by_its_replica, a_slot_moves_with_its_keys];

const KEY: &str = "{jobs}:one";
const OTHER: &str = "{jobs}:two";

fn a_silent_master_is_replaced_by_its_replica(binary: Binary) {
    let cluster = Cluster::start(Options::new(binary).password("secret"), Cluster::QUICK);
    let master = cluster.master_of(KEY);
    let replica = cluster.replica_of(master);
    let mut client = cluster.nodes()[master].client().expect("connects");
    client.send_command(&["SET", KEY, "kept"]).expect("a reply");
    assert_eq!(client.send_command(&["WAIT", "1", "5000"]).expect("a reply").text(), "1", "the replica has it");

    assert_eq!(cluster.kill_master_of(KEY), master);
    cluster.wait_for_failover(KEY);
    assert_eq!(cluster.master_of(KEY), replica);
    assert_eq!(cluster.nodes()[replica].send_command(&["GET", KEY]).text(), "kept");

    cluster.heal();
    assert_eq!((cluster.master_of(KEY), cluster.replica_of(replica)), (replica, master), "it came back as a replica");

    cluster.nodes()[replica].pause();
    assert_eq!(cluster.master_of(KEY), master, "a paused one is replaced too");
    cluster.heal();
    assert_eq!((cluster.master_of(KEY), cluster.replica_of(master)), (master, replica));
}

fn a_slot_moves_with_its_keys(binary: Binary) {
    let cluster = Cluster::start(Options::new(binary).password("secret"), Cluster::QUICK);
    let from = cluster.master_of(KEY);
    let to = (from + 1) % 3;
    let (old, new) = (&cluster.nodes()[from], &cluster.nodes()[to]);
    old.send_command(&["MSET", KEY, "1", OTHER, "2"]);
    let read_both = || old.try_send_command(&["MGET", KEY, OTHER]).expect("a reply");
    let mut steps = Vec::new();
    cluster.migrate_slot(cluster.slot_of(KEY), to, |step| {
        match step {
            MigrationStage::Opened => assert_eq!(read_both().list().len(), 2, "all is still here"),
            MigrationStage::Moved(_) if steps.len() == 1 => {
                assert!(read_both().text().starts_with("TRYAGAIN"), "{:?}", read_both())
            }
            MigrationStage::Moved(_) | MigrationStage::Emptied => {
                assert!(read_both().text().starts_with("ASK"), "{:?}", read_both())
            }
            MigrationStage::Closed => assert!(read_both().text().starts_with("MOVED"), "{:?}", read_both()),
        }
        steps.push(step);
    });
    assert_eq!(steps.len(), 5, "{steps:?}");
    assert_eq!(cluster.master_of(KEY), to);
    assert_eq!(new.send_command(&["MGET", KEY, OTHER]).list().iter().map(|v| v.text()).collect::<String>(), "12");
}
