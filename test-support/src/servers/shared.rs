//! One server of each kind for the whole test binary, started on first use.
//!
//! They sync an append-only file every second, as is common in production. Tests on them run at the same time: each
//! uses its own key prefix, and none kills, pauses or flushes.

use std::sync::OnceLock;

use super::CALM;
use super::binary::Binary;
use super::cluster::Cluster;
use super::options::{Fsync, Options};
use super::sentinel::Sentinel;
use super::server::Server;

fn options(binary: Binary) -> Options {
    Options::new(binary).aof(Fsync::EverySecond)
}

/// The oldest supported server.
#[track_caller]
pub fn redis() -> &'static Server {
    static SHARED: OnceLock<Server> = OnceLock::new();
    SHARED.get_or_init(|| options(Binary::Redis).start())
}

/// The newest supported server.
#[track_caller]
pub fn valkey() -> &'static Server {
    static SHARED: OnceLock<Server> = OnceLock::new();
    SHARED.get_or_init(|| options(Binary::Valkey).start())
}

/// A Cluster of the oldest supported version.
#[track_caller]
pub fn cluster() -> &'static Cluster {
    static SHARED: OnceLock<Cluster> = OnceLock::new();
    SHARED.get_or_init(|| Cluster::start(options(Binary::Redis), CALM))
}

/// Sentinels and servers of the oldest supported version.
#[track_caller]
pub fn sentinel() -> &'static Sentinel {
    static SHARED: OnceLock<Sentinel> = OnceLock::new();
    SHARED.get_or_init(|| Sentinel::start(options(Binary::Redis), CALM))
}
