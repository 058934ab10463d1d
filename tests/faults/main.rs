//! Real processes and servers that are killed, paused, cut off and lied to. `./check faults` runs each module by itself.

mod crash;
mod cron;
mod distributed_locks;
#[cfg(feature = "redis")]
mod outage;
mod power;
