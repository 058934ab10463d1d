//! duly on real servers: access rights, every script on every state, the cost of an idle worker, and workers. Tests of
//! all stores are in `contract`.
#![cfg(feature = "redis")]

mod access;
mod connections;
mod format;
mod fuzz;
mod helpers;
mod idle_cost;
mod peers;
mod queue_registry;
mod workers;
