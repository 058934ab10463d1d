//! The servers that other tests stand on can themselves be relied on.

mod alone;
mod cluster;
mod proxy;
mod sentinel;
#[path = "../support/servers/mod.rs"]
mod servers;
mod shared;

/// Makes a test of each function, on the oldest and on the newest server.
macro_rules! on_both {
    ($($case:ident),+ $(,)?) => {
        mod on_redis {
            $(#[test] fn $case() { super::$case(crate::servers::Binary::Redis); })+
        }
        mod on_valkey {
            $(#[test] fn $case() { super::$case(crate::servers::Binary::Valkey); })+
        }
    };
}
use on_both;
