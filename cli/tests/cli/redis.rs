//! `duly move` to a server and back, killed part-way each time.

use std::collections::BTreeSet;
use std::time::Duration;

use duly::{Duly, Push};
use rustix::process::Signal;

use crate::sandbox::{Sandbox, until};
use test_support::servers::{Binary, Options, Server};

/// Far more jobs than one batch, so that the kill can hit between batches.
const JOBS: usize = 10_000;
/// One job in this many is scheduled.
const SCHEDULED_EVERY: usize = 10;

fn push_many(sandbox: &Sandbox) -> BTreeSet<String> {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let path = sandbox.path("duly.db").display().to_string();
    let job = |n: usize| {
        let push = Push::new("mail", n.to_string());
        if n.is_multiple_of(SCHEDULED_EVERY) { push.after(Duration::from_secs(3600)) } else { push }
    };
    let pushed = runtime.block_on(async move {
        let duly = Duly::open(path).await.expect("opens");
        duly.push_all((0..JOBS).map(job)).await.expect("pushes")
    });
    pushed.iter().map(|pushed| pushed.id().to_string()).collect()
}

/// Returns the number of jobs on the server.
fn count_jobs(server: &Server) -> usize {
    server.send_command(&["HLEN", "duly:queue:{default}:job"]).text().parse().expect("a number")
}

/// Starts a move, kills it once the number of jobs on the server has changed, then runs it to the end.
fn kill_and_repeat_move(sandbox: &Sandbox, server: &Server, from: &str, to: &str) {
    let before = count_jobs(server);
    let transfer = sandbox.start(&["move", "--from", from, "--to", to]);
    until("jobs move", || count_jobs(server) != before);
    transfer.signal(Signal::KILL);
    assert_eq!(transfer.wait().code, None, "it was killed");
    let moved = count_jobs(server);
    assert!(moved > 0 && moved < JOBS, "{moved} of {JOBS} are on the server: it was killed too late");
    // The list shows that the queue is still moving.
    let queues = sandbox.run(&["queues", "ls", "--store", from]).ok();
    assert!(queues.out.contains("moving to"), "{queues:?}");
    sandbox.run(&["move", "--from", from, "--to", to]).ok();
}

/// Asserts that all jobs are in `to` once, unchanged, and none is in `from`.
fn assert_all_moved(sandbox: &Sandbox, pushed: &BTreeSet<String>, from: &str, to: &str) {
    let found = sandbox.ids(to);
    assert_eq!(found.len(), JOBS, "none twice");
    assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), *pushed, "none lost");
    assert_eq!(sandbox.ids(from).len(), 0);
    let queues = sandbox.run(&["queues", "ls", "--store", to, "--json"]).ok().json();
    let count = |name: &str| queues["queues"][0][name].as_u64().expect("a number") as usize;
    assert_eq!(
        (count("ready"), count("scheduled")),
        (JOBS - JOBS / SCHEDULED_EVERY, JOBS / SCHEDULED_EVERY),
        "{queues}"
    );
    for store in [from, to] {
        sandbox.run(&["verify", "--store", store]).ok();
    }
}

fn move_to_server_and_back(binary: Binary) {
    let (sandbox, server) = (Sandbox::new(), Options::durable(binary).start());
    let (pushed, url) = (push_many(&sandbox), server.url());
    kill_and_repeat_move(&sandbox, &server, "duly.db", &url);
    assert_all_moved(&sandbox, &pushed, "duly.db", &url);
    kill_and_repeat_move(&sandbox, &server, &url, "back.db");
    assert_all_moved(&sandbox, &pushed, &url, "back.db");
}

#[test]
#[ignore = "needs servers: ./check stores"]
fn killed_move_to_redis_and_back_moves_everything_once() {
    move_to_server_and_back(Binary::Redis);
}

#[test]
#[ignore = "needs servers: ./check stores"]
fn killed_move_to_valkey_and_back_moves_everything_once() {
    move_to_server_and_back(Binary::Valkey);
}
