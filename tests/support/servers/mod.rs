//! Real servers for tests and benchmarks: Redis and Valkey, alone, as a Cluster, under Sentinel, behind a proxy that fails.
//!
//! Taken in by `#[path = "../support/servers/mod.rs"] mod servers;`, so it needs nothing but std.
//!
//! - Every server listens on loopback, on a port and in a directory that nobody else here uses.
//! - Every server ends with its value, and also when the process that started it is killed.
//! - Every wait has an end, and says at it what it waited for and what it last saw.
//! - What cannot be started fails the test with the command that mends it; nothing is skipped.
//!
//! A case that only needs a store takes a shared one ([`redis`], [`valkey`], [`cluster`], [`sentinel`]) and keeps to a
//! key prefix of its own. A case that kills, pauses, fills or reconfigures starts its own with [`Options`].
#![allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    reason = "each program that takes this in uses its own part of it"
)]

mod binary;
mod certificates;
mod client;
mod cluster;
mod migration;
mod options;
mod process;
mod proxy;
mod room;
mod sentinel;
mod server;
mod shared;
mod wire;

use std::time::{Duration, Instant};

pub use binary::Binary;
pub use certificates::{Certificates, certificates};
pub use client::{Client, Reply};
pub use cluster::Cluster;
pub use migration::Step;
pub use options::{Fsync, Options};
pub use proxy::{Direction, Proxy};
pub use sentinel::Sentinel;
pub use server::Server;
pub use shared::{cluster, redis, sentinel, valkey};

/// How long a node may be silent before a Cluster or Sentinel takes it for dead, where a failover is not wanted: a busy
/// machine must not cause one. For failovers to wait for there are [`Cluster::QUICK`] and [`Sentinel::QUICK`].
pub const CALM: Duration = Duration::from_secs(10);

/// Far longer than anything here takes; what takes this long has failed.
const LONGEST: Duration = Duration::from_secs(30);
/// Between two looks at something that sends no signal when it changes.
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

/// Looks until there is something to see, and returns it; after 30 s fails with what was last in the way.
#[track_caller]
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Result<T, String>) -> T {
    let until = Instant::now() + LONGEST;
    loop {
        match look() {
            Ok(seen) => return seen,
            Err(last) if Instant::now() >= until => panic!("waited {LONGEST:?} for {what}; last seen: {last}"),
            Err(_) => std::thread::sleep(BETWEEN_LOOKS),
        }
    }
}
