//! Servers that fail under load: killed, failed over, moved about, cut off from their answers.
//!
//! Whatever happens, the checker must find: nothing acknowledged lost, fences that only grow, nothing early,
//! and workers that go on by themselves. It is shown to find loss where there is some.
#![cfg(feature = "redis")]

mod failover;
mod hall;
mod held;
mod ledger;
mod lost_replies;
mod migration;
mod restart;
#[path = "../support/servers/mod.rs"]
mod servers;
mod shard;
mod silent;
mod storm;
