//! The binary with real servers. `./check stores` installs what this needs.

#[allow(dead_code, reason = "the other tests of the binary use all of it")]
#[path = "../cli/bed.rs"]
mod bed;
mod moving;
#[path = "../../../tests/support/servers/mod.rs"]
mod servers;
