//! Histories of two locks and five clients under SIGKILL, pauses, partitions, failovers and stepped clocks.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::distributed_locks::checker::{Fault, Hold, check};
use crate::distributed_locks::client::NAMES;
use crate::distributed_locks::location::Location;
use crate::distributed_locks::nemesis::{CLIENTS, Nemesis, Route};
#[cfg(feature = "redis")]
use test_support::servers::{Binary, Fsync, Options, Proxy, Sentinel};

/// Duration of the fault injection by default.
const SECONDS: u64 = 14;
/// Minimum number of acquisitions per second, far lower than expected.
const PER_SECOND_MIN: u64 = 1;
/// Maximum number of faults in a failure message.
const FAULTS_SHOWN: usize = 10;

fn seconds() -> u64 {
    test_support::env_number("DULY_LOCK_SECONDS").unwrap_or(SECONDS)
}

/// Checks the history, and that enough has happened for the result to mean something.
fn assert_sound(on: &str, mut nemesis: Nemesis) {
    nemesis.stop_faults();
    let (kills, pauses, cuts) = (nemesis.kills, nemesis.pauses, nemesis.cuts);
    let history = nemesis.end();
    let holds = &history.holds;
    let faults = check(holds);
    let overlaps_without_deadlines = check(&history.holds_without_deadlines)
        .iter()
        .filter(|fault| matches!(fault, Fault::ConcurrentHolders { .. }))
        .count();
    println!(
        "{on}: {kills} kills, {pauses} pauses, {cuts} cuts; {} acquisitions by {} clients, worst wait {:?}; \
         {} faults, {overlaps_without_deadlines} if deadlines were ignored",
        holds.len(),
        holds.iter().map(|hold| hold.client).collect::<BTreeSet<_>>().len(),
        holds.iter().map(waited).max().unwrap_or_default(),
        faults.len(),
    );
    let shown: Vec<_> = faults.iter().take(FAULTS_SHOWN).map(|fault| explain(fault, holds)).collect();
    assert!(faults.is_empty(), "{} faults, first:\n{}", faults.len(), shown.join("\n"));
    assert!(holds.len() as u64 > PER_SECOND_MIN * seconds(), "the clients did something");
    for name in NAMES {
        let is_acquired = holds.iter().any(|hold| hold.name == name && hold.from > history.faults_stopped);
        assert!(is_acquired, "no client acquires {name} after the faults have stopped");
    }
    assert!(kills > 5 && pauses > 5, "faults were injected");
    assert!(
        overlaps_without_deadlines > 0,
        "no pause was longer than the lock's time to live: the test proves nothing"
    );
}

fn waited(hold: &Hold) -> Duration {
    Duration::from_micros((hold.from - hold.requested).unsigned_abs())
}

fn explain(fault: &Fault, holds: &[Hold]) -> String {
    let fences = match fault {
        Fault::FenceTwice { fence, .. } => [*fence, *fence],
        Fault::FenceDecreased { before, after, .. } => [*before, *after],
        Fault::ConcurrentHolders { fences, .. } => [fences.0, fences.1],
    };
    let involved: Vec<_> = holds.iter().filter(|hold| fences.contains(&hold.fence)).collect();
    format!("{fault:?}: {involved:#?}")
}

#[test]
fn on_a_file_lock_has_one_holder_and_fences_grow() {
    let location = Location::file().with("lease=1s");
    let routes = (0..CLIENTS).map(|_| Route::direct(location.url())).collect();
    let mut nemesis = Nemesis::start(location.dir(), routes);
    nemesis.inject_faults(Duration::from_secs(seconds()));
    assert_sound("file", nemesis);
}

#[cfg(feature = "redis")]
#[test]
fn on_a_server_lock_has_one_holder_and_fences_grow() {
    let server = Options::new(Binary::Redis).aof(Fsync::Always).start();
    let location = Location::on(&server.url()).with("lease=600ms");
    let route = |_| {
        let proxy = Proxy::start(server.port());
        Route::through(location.through(&proxy.address()), proxy)
    };
    let mut nemesis = Nemesis::start(location.dir(), (0..CLIENTS).map(route).collect());
    nemesis.inject_faults(Duration::from_secs(seconds()));
    assert!(nemesis.cuts > 5, "something was cut");
    assert_sound("server", nemesis);
}

/// With `replicas=1`, the promoted replica knows every acquisition, extension and release of a lock.
#[cfg(feature = "redis")]
#[test]
fn across_failovers_lock_has_one_holder_and_fences_grow() {
    let servers = Sentinel::start(Options::durable(Binary::Redis), Sentinel::QUICK);
    let location = Location::on(&servers.url()).with("lease=600ms").with("replicas=1");
    let routes = (0..CLIENTS).map(|_| Route::direct(location.url())).collect();
    let mut nemesis = Nemesis::start(location.dir(), routes);
    let time = Duration::from_secs(seconds());
    let failovers = std::thread::scope(|scope| {
        let failovers = scope.spawn(|| {
            let deadline = std::time::Instant::now() + time;
            let mut failovers = 0;
            while std::time::Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1_500));
                let old = servers.kill_master();
                servers.wait_for_failover(old);
                servers.heal();
                failovers += 1;
            }
            failovers
        });
        nemesis.inject_faults(time);
        failovers.join().expect("servers recover")
    });
    println!("{failovers} failovers");
    assert_sound("Sentinel", nemesis);
}
