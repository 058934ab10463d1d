//! Real processes and servers that are killed, paused, partitioned and sent forged messages. `./check faults` runs
//! each module separately.

mod crash;
mod cron;
mod distributed_locks;
#[cfg(feature = "redis")]
mod outage;
mod power;

/// Waits until no job is scheduled, ready or running.
async fn wait_until_empty(duly: &duly::Duly) {
    test_support::until("no job is left", async || {
        let counts = duly.counts().await.expect("counts");
        counts.iter().all(|queue| queue.scheduled + queue.ready + queue.running == 0)
    })
    .await;
}
