//! Real processes and servers that are killed, paused, partitioned and sent forged messages. `./check faults` runs
//! each module separately.

mod crash;
mod cron;
mod distributed_locks;
#[cfg(feature = "redis")]
mod outage;
mod power;
