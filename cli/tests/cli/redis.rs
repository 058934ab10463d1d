//! `duly move` to a server and back, killed half-way each time.

use std::collections::BTreeSet;
use std::time::Duration;

use duly::{Duly, Push};
use rustix::process::Signal;

use crate::sandbox::{Sandbox, until};
use test_support::servers::{Binary, Fsync, Options, Server};

/// Far more jobs than go in one batch, so that there is a half-way to be killed at.
const MANY: usize = 10_000;
/// Every so manieth is scheduled.
const LATER: usize = 10;

fn push_many(sandbox: &Sandbox) -> BTreeSet<String> {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let path = sandbox.path("duly.db").display().to_string();
    let job = |n: usize| {
        let push = Push::new("mail", n.to_string());
        if n.is_multiple_of(LATER) { push.after(Duration::from_secs(3600)) } else { push }
    };
    let pushed = runtime.block_on(async move {
        let duly = Duly::open(path).await.expect("opens");
        duly.push_all((0..MANY).map(job)).await.expect("pushes")
    });
    pushed.iter().map(|pushed| pushed.id().to_string()).collect()
}

/// How many jobs are on the server.
fn arrived(server: &Server) -> usize {
    server.ask(&["HLEN", "duly:queue:{default}:job"]).text().parse().expect("a number")
}

/// Moves, killed with SIGKILL once the server has got something of it or given something away, then moves to the end.
fn move_killed(sandbox: &Sandbox, server: &Server, from: &str, to: &str) {
    let before = arrived(server);
    let mover = sandbox.start(&["move", "--from", from, "--to", to]);
    until("jobs move", || arrived(server) != before);
    mover.signal(Signal::KILL);
    assert_eq!(mover.wait().code, None, "it was killed");
    let half_way = arrived(server);
    assert!(half_way > 0 && half_way < MANY, "{half_way} of {MANY} are on the server: it was killed too late");
    // What is left to move is told, and that it is on its way.
    let queues = sandbox.run(&["queues", "ls", "--store", from]).ok();
    assert!(queues.out.contains("moving to"), "{queues:?}");
    sandbox.run(&["move", "--from", from, "--to", to]).ok();
}

/// Nothing is left in one store, and everything is once in the other, as it was pushed.
fn is_all_in(sandbox: &Sandbox, pushed: &BTreeSet<String>, from: &str, to: &str) {
    let found = sandbox.ids(to);
    assert_eq!(found.len(), MANY, "none twice");
    assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), *pushed, "none lost");
    assert_eq!(sandbox.ids(from).len(), 0);
    let queues = sandbox.run(&["queues", "ls", "--store", to, "--json"]).ok().json();
    let count = |name: &str| queues[0][name].as_u64().expect("a number") as usize;
    assert_eq!((count("ready"), count("scheduled")), (MANY - MANY / LATER, MANY / LATER), "{queues}");
    for store in [from, to] {
        sandbox.run(&["verify", "--store", store]).ok();
    }
}

fn to_a_server_and_back(binary: Binary) {
    let (sandbox, server) = (Sandbox::new(), Options::new(binary).aof(Fsync::EverySecond).start());
    let (pushed, url) = (push_many(&sandbox), server.url());
    move_killed(&sandbox, &server, "duly.db", &url);
    is_all_in(&sandbox, &pushed, "duly.db", &url);
    move_killed(&sandbox, &server, &url, "back.db");
    is_all_in(&sandbox, &pushed, &url, "back.db");
}

#[test]
#[ignore = "needs servers: ./check stores"]
fn killed_move_to_redis_and_back_moves_everything_once() {
    to_a_server_and_back(Binary::Redis);
}

#[test]
#[ignore = "needs servers: ./check stores"]
fn killed_move_to_valkey_and_back_moves_everything_once() {
    to_a_server_and_back(Binary::Valkey);
}
