//! duly beside the real programs of others, on their own keys, in both directions. `./check interop` installs what this needs.
#![cfg(feature = "redis")]

mod actionhero_calls;
mod actionhero_locks;
mod actionhero_node;
mod programs;
mod redis_in_action;
mod schedule;
mod sidekiq;
