//! duly beside the real programs whose keys it shares, in both directions.
#![cfg(feature = "redis")]

#[path = "../support/servers/mod.rs"]
mod servers;
mod sidekiq;
