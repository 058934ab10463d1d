//! The public behaviour of duly: client, worker, files, errors, peers, transfers, repairs.
//!
//! A case that needs a server is ignored, so that `cargo test` works without one: `./check stores` and `./check faults`
//! run those cases.

mod ack_in;
mod admin;
mod errors;
mod file;
mod file_changes;
mod full_disk;
mod inbox;
mod middleware_and_testing;
mod multi_process;
mod peers;
mod push_in;
mod reference;
mod transfer;
mod verify;
mod worker;
