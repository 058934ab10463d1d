//! Real servers for tests and benchmarks: Redis and Valkey, alone, as a Cluster, under Sentinel, behind a faulty
//! proxy.
//!
//! - Every server listens on loopback, on a port and in a directory that no other test uses.
//! - Every server stops when its value is dropped, and also when the process that started it is killed.
//! - Every wait has a timeout. Its failure names the awaited condition and the last observed state.
//! - A server that cannot be started fails the test with the install command; no test is skipped.
//!
//! A test that only needs a store takes a shared server ([`redis`], [`valkey`], [`cluster`], [`sentinel`]) and uses
//! its own key prefix. A test that kills, pauses, fills or reconfigures a server starts its own with [`Options`].

mod binary;
mod certificates;
mod client;
mod cluster;
mod migration;
mod options;
mod process;
mod proxy;
mod reserved;
mod sentinel;
mod server;
mod shared;
mod wire;

use std::time::Duration;

pub use binary::Binary;
pub use certificates::{Certificates, certificates};
pub use client::{Client, Reply};
pub use cluster::Cluster;
pub use migration::MigrationStage;
pub use options::{Fsync, Options};
pub use proxy::{Direction, Proxy};
pub use reserved::port as free_port;
pub use sentinel::Sentinel;
pub use server::Server;
pub use shared::{cluster, redis, sentinel, valkey};

/// Failover timeout of a Cluster or Sentinel for tests that want no failover: a busy machine must not cause one. Tests
/// that wait for a failover use [`Cluster::QUICK`] or [`Sentinel::QUICK`].
pub const CALM: Duration = Duration::from_secs(10);
