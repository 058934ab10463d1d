//! Tests of the test servers themselves.

mod cluster;
mod proxy;
mod sentinel;
mod shared;
mod single;

/// Turns each function into a test on the oldest and on the newest server.
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
