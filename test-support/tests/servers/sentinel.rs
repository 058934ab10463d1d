//! Sentinels replace a killed master, which returns as a replica.

use crate::on_both;
use test_support::servers::{Binary, Options, Sentinel};

on_both![a_killed_master_is_replaced];

fn a_killed_master_is_replaced(binary: Binary) {
    let sentinel = Sentinel::start(Options::new(binary).password("secret"), Sentinel::QUICK);
    assert_eq!(sentinel.master(), 0);
    let mut client = sentinel.servers()[0].client().expect("connects");
    client.send_command(&["SET", "a", "kept"]).expect("a reply");
    assert_eq!(client.send_command(&["WAIT", "1", "5000"]).expect("a reply").text(), "1", "the replica has it");

    assert_eq!(sentinel.kill_master(), 0);
    assert_eq!(sentinel.wait_for_failover(0), 1);
    assert_eq!(sentinel.servers()[1].send_command(&["GET", "a"]).text(), "kept");

    sentinel.heal();
    assert_eq!(sentinel.master(), 1, "the new one stays");
    assert_eq!(sentinel.servers()[0].send_command(&["GET", "a"]).text(), "kept");
}
