//! Histories of two locks and five clients under kill -9, pauses, partitions, failovers and clocks that are set.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::distributed_locks::checker::{Fault, Hold, check};
use crate::distributed_locks::client::NAMES;
use crate::distributed_locks::location::Location;
use crate::distributed_locks::nemesis::{CLIENTS, Nemesis, Way};
#[cfg(feature = "redis")]
use test_support::servers::{Binary, Fsync, Options, Proxy, Sentinel};

/// How long the clients are harried in an ordinary run.
const SECONDS: u64 = 14;
/// So many acquisitions a second are far fewer than there should be.
const PER_SECOND_MIN: u64 = 1;
/// Of many faults so many are shown.
const SHOWN: usize = 10;

fn seconds() -> u64 {
    test_support::env_number("DULY_LOCK_SECONDS").unwrap_or(SECONDS)
}

/// Looks at what was held, and at whether enough has happened for that to mean anything.
fn judge(on: &str, mut nemesis: Nemesis) {
    nemesis.rest();
    let (kills, pauses, cuts) = (nemesis.kills, nemesis.pauses, nemesis.cuts);
    let history = nemesis.end();
    let holds = &history.holds;
    let faults = check(holds);
    let careless = check(&history.careless).iter().filter(|fault| matches!(fault, Fault::Together { .. })).count();
    println!(
        "{on}: {kills} kills, {pauses} pauses, {cuts} cuts; {} acquisitions by {} clients, worst wait {:?}; \
         {} faults, {careless} had deadlines been ignored",
        holds.len(),
        holds.iter().map(|hold| hold.client).collect::<BTreeSet<_>>().len(),
        holds.iter().map(waited).max().unwrap_or_default(),
        faults.len(),
    );
    let shown: Vec<_> = faults.iter().take(SHOWN).map(|fault| explain(fault, holds)).collect();
    assert!(faults.is_empty(), "{} faults, first:\n{}", faults.len(), shown.join("\n"));
    assert!(holds.len() as u64 > PER_SECOND_MIN * seconds(), "they did something");
    for name in NAMES {
        let goes_on = holds.iter().any(|hold| hold.name == name && hold.from > history.peace);
        assert!(goes_on, "nobody gets {name} any more, although nothing is in the way");
    }
    assert!(kills > 5 && pauses > 5, "something was done to them");
    assert!(careless > 0, "no pause was longer than a lock lasts: nothing was tried");
}

fn waited(hold: &Hold) -> Duration {
    Duration::from_micros((hold.from - hold.asked).unsigned_abs())
}

fn explain(fault: &Fault, holds: &[Hold]) -> String {
    let fences = match fault {
        Fault::FenceTwice { fence, .. } => [*fence, *fence],
        Fault::FenceBack { before, after, .. } => [*before, *after],
        Fault::Together { fences, .. } => [fences.0, fences.1],
    };
    let involved: Vec<_> = holds.iter().filter(|hold| fences.contains(&hold.fence)).collect();
    format!("{fault:?}: {involved:#?}")
}

#[test]
fn on_a_file_lock_has_one_holder_and_fences_grow() {
    let location = Location::file().with("lease=1s");
    let ways = (0..CLIENTS).map(|_| Way::direct(location.url())).collect();
    let mut nemesis = Nemesis::start(location.dir(), ways);
    nemesis.rage(Duration::from_secs(seconds()));
    judge("file", nemesis);
}

#[cfg(feature = "redis")]
#[test]
fn on_a_server_lock_has_one_holder_and_fences_grow() {
    let server = Options::new(Binary::Redis).aof(Fsync::Always).start();
    let location = Location::on(&server.url()).with("lease=600ms");
    let way = |_| {
        let proxy = Proxy::start(server.port());
        Way::through(location.through(&proxy.address()), proxy)
    };
    let mut nemesis = Nemesis::start(location.dir(), (0..CLIENTS).map(way).collect());
    nemesis.rage(Duration::from_secs(seconds()));
    assert!(nemesis.cuts > 5, "something was cut");
    judge("server", nemesis);
}

/// With `replicas=1` a lock that was granted, extended or released is known to the replica that takes over.
#[cfg(feature = "redis")]
#[test]
fn across_failovers_lock_has_one_holder_and_fences_grow() {
    let servers = Sentinel::start(Options::new(Binary::Redis).aof(Fsync::EverySecond), Sentinel::QUICK);
    let location = Location::on(&servers.url()).with("lease=600ms").with("replicas=1");
    let ways = (0..CLIENTS).map(|_| Way::direct(location.url())).collect();
    let mut nemesis = Nemesis::start(location.dir(), ways);
    let time = Duration::from_secs(seconds());
    let failovers = std::thread::scope(|scope| {
        let failovers = scope.spawn(|| {
            let until = std::time::Instant::now() + time;
            let mut failovers = 0;
            while std::time::Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1_500));
                let old = servers.kill_master();
                servers.wait_for_failover(old);
                servers.heal();
                failovers += 1;
            }
            failovers
        });
        nemesis.rage(time);
        failovers.join().expect("servers come back")
    });
    println!("{failovers} failovers");
    judge("Sentinel", nemesis);
}
