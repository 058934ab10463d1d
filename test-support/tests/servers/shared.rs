//! Shared servers are started once per test binary.

use test_support::servers::{Binary, Sentinel, cluster, redis, sentinel, valkey};

#[test]
fn shared_servers_are_started_once() {
    let from_threads = [(); 4].map(|()| std::thread::spawn(|| (redis().port(), valkey().port())));
    let ports = from_threads.map(|thread| thread.join().expect("it starts"));
    assert!(ports.iter().all(|pair| *pair == (redis().port(), valkey().port())), "{ports:?}");
    assert_eq!((redis().binary(), valkey().binary()), (Binary::Redis, Binary::Valkey));
    // The threads that started them have ended.
    assert_eq!(
        (redis().send_command(&["PING"]).text(), valkey().send_command(&["PING"]).text()),
        ("PONG".into(), "PONG".into())
    );
}

#[test]
fn shared_cluster_accepts_writes() {
    let key = "{shared}:a";
    cluster().nodes()[cluster().master_of(key)].send_command(&["SET", key, "1"]);
    assert_eq!(cluster().ports().len(), 6);
}

#[test]
fn shared_sentinels_know_the_master() {
    let reply = sentinel().sentinels()[2].send_command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", Sentinel::MASTER]);
    let master = &sentinel().servers()[sentinel().master()];
    assert_eq!(reply.list()[1].text(), master.port().to_string());
}
