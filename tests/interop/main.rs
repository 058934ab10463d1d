//! duly beside the real programs of others, on their own keys, in both directions. `./check interop` installs what this needs.
#![cfg(feature = "redis")]

mod actionhero_calls;
mod actionhero_locks;
mod actionhero_node;
mod program;
mod redis_in_action;
mod schedule;
#[path = "../support/servers/mod.rs"]
mod servers;
mod sidekiq;
