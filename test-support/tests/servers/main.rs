//! The servers that other tests stand on can themselves be relied on.

mod cluster;
mod proxy;
mod sentinel;
mod shared;
mod single;

/// Makes a test of each function, on the oldest and on the newest server.
macro_rules! on_both {
    ($($case:ident),+ $(,)?) => {
        mod on_redis {
            $(#[test] fn $case() { super::$case(test_support::servers::Binary::Redis); })+
        }
        mod on_valkey {
            $(#[test] fn $case() { super::$case(test_support::servers::Binary::Valkey); })+
        }
    };
}
use on_both;
