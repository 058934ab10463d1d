//! Real servers for tests and benchmarks: Redis and Valkey, alone, as a Cluster, under Sentinel, behind a proxy that fails.
//!
//! - Every server listens on loopback, on a port and in a directory that no other test uses.
//! - Every server ends with its value, and also when the process that started it is killed.
//! - Every wait has an end, and then says what it waited for and what it last saw.
//! - A server that cannot be started fails the test with the command that installs it; no test is skipped.
//!
//! A case that only needs a store takes a shared one ([`redis`], [`valkey`], [`cluster`], [`sentinel`]) and keeps to a
//! key prefix of its own. A case that kills, pauses, fills or reconfigures starts its own with [`Options`].

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
pub use migration::Step;
pub use options::{Fsync, Options};
pub use proxy::{Direction, Proxy};
pub use sentinel::Sentinel;
pub use server::Server;
pub use shared::{cluster, redis, sentinel, valkey};

/// How long a node may be silent before a Cluster or Sentinel takes it for dead, where a failover is not wanted: a busy
/// machine must not cause one. For failovers to wait for there are [`Cluster::QUICK`] and [`Sentinel::QUICK`].
pub const CALM: Duration = Duration::from_secs(10);
