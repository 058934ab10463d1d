//! One server of each kind for the whole test binary, started on first use.
//!
//! They are [durable](Options::durable). Tests on them run at the same time: each uses its own key prefix, and none
//! kills, pauses or flushes.

use std::sync::OnceLock;

use super::CALM;
use super::binary::Binary;
use super::cluster::Cluster;
use super::options::Options;
use super::sentinel::Sentinel;
use super::server::Server;

/// The oldest supported server.
#[track_caller]
pub fn redis() -> &'static Server {
    static SHARED: OnceLock<Server> = OnceLock::new();
    SHARED.get_or_init(|| Options::durable(Binary::Redis).start())
}

/// The newest supported server.
#[track_caller]
pub fn valkey() -> &'static Server {
    static SHARED: OnceLock<Server> = OnceLock::new();
    SHARED.get_or_init(|| Options::durable(Binary::Valkey).start())
}

/// A Cluster of the oldest supported version.
#[track_caller]
pub fn cluster() -> &'static Cluster {
    static SHARED: OnceLock<Cluster> = OnceLock::new();
    SHARED.get_or_init(|| Cluster::start(Options::durable(Binary::Redis), CALM))
}

/// Sentinels and servers of the oldest supported version.
#[track_caller]
pub fn sentinel() -> &'static Sentinel {
    static SHARED: OnceLock<Sentinel> = OnceLock::new();
    SHARED.get_or_init(|| Sentinel::start(Options::durable(Binary::Redis), CALM))
}
