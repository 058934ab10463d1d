//! Each fault of the proxy is the one it claims to be.

use std::time::{Duration, Instant};

use test_support::servers::{Binary, Client, Direction, Options, Proxy, Server};
use test_support::wait_for;

const SHORT: Duration = Duration::from_millis(100);

fn behind_proxy() -> (Server, Proxy) {
    let server = Options::new(Binary::Redis).start();
    let proxy = Proxy::start(server.port());
    (server, proxy)
}

fn connect(proxy: &Proxy) -> Client {
    Client::connect(proxy.port(), None).expect("connects")
}

fn count(server: &Server) -> String {
    server.send_command(&["GET", "count"]).text()
}

#[test]
fn request_with_lost_reply_is_executed() {
    let (server, proxy) = behind_proxy();
    proxy.drop_reply("INCR");
    let mut client = connect(&proxy);
    assert_eq!(client.send_command(&["PING"]).expect("other requests are not affected").text(), "PONG");
    assert!(client.send_command(&["INCR", "count"]).is_err(), "the connection ends without a reply");
    assert_eq!((count(&server), proxy.dropped()), ("1".into(), 1));

    let mut client = connect(&proxy);
    assert_eq!(client.send_command(&["INCR", "count"]).expect("only one reply is lost").text(), "2");
}

/// Waits until this many requests were executed.
fn wait_for_count(server: &Server, expected: usize) {
    let expected = expected.to_string();
    wait_for("expected to be executed", || if count(server) == expected { Ok(()) } else { Err(count(server)) });
}

/// The connection is closed at an earlier reply, before the server has read most of the data.
#[test]
fn requests_before_a_lost_reply_are_executed() {
    let (server, proxy) = behind_proxy();
    // Busy for long enough that all requests have arrived when it first replies.
    let busy = "for _ = 1, 300000 do end return redis.call('INCR', 'count')";
    for round in 1..=24 {
        proxy.drop_reply("last");
        let mut client = connect(&proxy);
        for body in ["first".into(), "x".repeat(40_000), "x".repeat(40_000), "last".to_owned() + &"x".repeat(1 << 20)] {
            // The connection may be closed already, but never before all was forwarded.
            let _ = client.write_command(&["EVAL", busy, "0", &body]);
        }
        while client.read_reply().is_ok() {}
        wait_for_count(&server, 4 * round);
        assert_eq!(proxy.dropped(), round);
    }
}

/// The connection is not closed at an earlier reply while the request is still being forwarded.
#[test]
fn request_is_forwarded_whole_before_its_reply_is_lost() {
    let (server, proxy) = behind_proxy();
    proxy.drop_reply("last");
    let mut client = connect(&proxy);
    server.pause();
    client.write_command(&["INCR", "count"]).expect("it is open");
    // More than the system buffers for a server that does not read.
    let large = "last".to_owned() + &"x".repeat(1 << 24);
    client.write_command(&["EVAL", "return redis.call('INCR', 'count')", "0", &large]).expect("it is open");
    // The proxy cannot signal a partial write. If this is too short, the test checks less, but does not fail.
    std::thread::sleep(Duration::from_millis(300));
    server.resume();
    while client.read_reply().is_ok() {}
    wait_for_count(&server, 2);
}

/// The server replies to the start of a transaction, but executes nothing before its end.
#[test]
fn transaction_is_forwarded_whole_before_its_reply_is_lost() {
    let (server, proxy) = behind_proxy();
    proxy.drop_reply("count");
    let mut client = connect(&proxy);
    client.write_command(&["MULTI"]).expect("it is open");
    client.write_command(&["INCR", "count"]).expect("it is open");
    // Long enough for replies to the first commands. If this is too short, the test checks less, but does not fail.
    std::thread::sleep(SHORT);
    client.write_command(&["EXEC"]).expect("it is open");
    while client.read_reply().is_ok() {}
    wait_for_count(&server, 1);
    assert_eq!(proxy.dropped(), 1);
}

/// Returns the numbers of the requests that got no reply.
fn lost(proxy: &Proxy, requests: usize) -> Vec<usize> {
    let mut client = connect(proxy);
    let mut lost = Vec::new();
    for request in 0..requests {
        if client.send_command(&["INCR", "count"]).is_err() {
            lost.push(request);
            client = connect(proxy);
        }
    }
    lost
}

#[test]
fn same_seed_loses_the_same_replies() {
    let (server, proxy) = behind_proxy();
    proxy.drop_replies(0.2, 7);
    let first = lost(&proxy, 100);
    assert!((5..40).contains(&first.len()), "about a fifth: {first:?}");
    proxy.drop_replies(0.2, 7);
    assert_eq!(lost(&proxy, 100), first);
    proxy.drop_replies(0.2, 8);
    assert_ne!(lost(&proxy, 100), first);
    proxy.drop_replies(0.0, 0);
    assert_eq!(lost(&proxy, 100), [0; 0]);
    assert_eq!(count(&server), "400", "none was executed twice or not at expected");
}

#[test]
fn frozen_replies_are_executed_and_arrive_later() {
    let (server, proxy) = behind_proxy();
    let mut client = connect(&proxy);
    client.set_timeout(SHORT).expect("a time");
    proxy.freeze(Direction::Replies);
    assert!(client.send_command(&["INCR", "count"]).is_err());
    assert_eq!(count(&server), "1");
    proxy.thaw();
    assert_eq!(client.read_reply().expect("it was only held back").text(), "1");

    proxy.freeze(Direction::Requests);
    assert!(client.send_command(&["INCR", "count"]).is_err());
    assert_eq!(count(&server), "1", "it did not reach the server");
    proxy.thaw();
    assert_eq!(client.read_reply().expect("it was only held back").text(), "2");
}

#[test]
fn delayed_replies_arrive_after_the_delay() {
    let (_server, proxy) = behind_proxy();
    let mut client = connect(&proxy);
    proxy.delay(Direction::Replies, SHORT);
    let start = Instant::now();
    client.send_command(&["PING"]).expect("a reply");
    assert!(start.elapsed() >= SHORT);
}

#[test]
fn cut_closes_connections_and_accepts_new_ones() {
    let (_server, proxy) = behind_proxy();
    let mut clients = [connect(&proxy), connect(&proxy)];
    assert!(clients.iter_mut().all(|client| client.send_command(&["PING"]).is_ok()));
    assert_eq!(proxy.connections(), 2);
    proxy.freeze(Direction::Replies);
    proxy.cut();
    assert!(clients.iter_mut().all(|client| client.send_command(&["PING"]).is_err()));
    proxy.thaw();
    assert_eq!(connect(&proxy).send_command(&["PING"]).expect("a reply").text(), "PONG");
}

#[test]
fn refused_connections_are_refused_and_open_ones_stay() {
    let (_server, proxy) = behind_proxy();
    let mut client = connect(&proxy);
    client.send_command(&["PING"]).expect("a reply");
    proxy.refuse();
    let refused = Client::connect(proxy.port(), None).err().expect("the connection is refused");
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    client.send_command(&["PING"]).expect("it was open before");
    proxy.accept();
    connect(&proxy).send_command(&["PING"]).expect("a reply");
}
