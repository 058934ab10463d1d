//! duly on real servers: who may do what there, every script on every state, what an idle worker costs, and the life
//! of workers. What all stores promise is in `contract` and `model`.
#![cfg(feature = "redis")]

mod access;
mod connections;
mod fuzz;
mod helpers;
mod idle_cost;
mod peers;
mod queue_registry;
mod workers;
