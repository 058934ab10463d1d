//! Servers that fail under load: killed, failed over, moved about, cut off from their answers.
//!
//! Whatever happens, the checker must find: nothing acknowledged lost, fences that only grow, nothing early,
//! and workers that go on by themselves. It is shown to find loss where there is some.
#![cfg(feature = "redis")]

mod delayed_requests;
mod failover;
mod ledger;
mod load;
mod lost_replies;
mod lost_shard;
mod migration;
mod peers;
mod restart;
mod silent_master;
