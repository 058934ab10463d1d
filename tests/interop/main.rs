//! duly together with the real programs of other systems, on their keys, in both directions.
//! `./check interop` installs these programs.
#![cfg(feature = "compat")]

mod actionhero_calls;
mod actionhero_locks;
mod actionhero_node;
mod programs;
mod redis_in_action;
mod schedule;
mod sidekiq;
