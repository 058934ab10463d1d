//! duly on real servers: who may do what there, every script on every state, what an idle worker costs, and the life
//! of workers. What all stores promise is in `contract` and `model`.
#![cfg(feature = "redis")]

mod access;
mod budget;
mod fuzz;
mod hall;
mod life;
mod lines;
mod names;
#[path = "../support/servers/mod.rs"]
mod servers;
mod support;
