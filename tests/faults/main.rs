//! Real processes and servers that are killed, paused, partitioned and sent forged messages. `./check faults` runs
//! each module separately.

mod crash;
mod cron;
mod distributed_locks;
#[cfg(feature = "redis")]
mod outage;
mod power;
mod skewed_clock;

/// Not a test: the entry point of a child process. Its environment selects the role.
#[test]
fn child_process() {
    crash::child::run_role();
    cron::run_role();
    distributed_locks::child::run_role();
    skewed_clock::run_role();
}

/// Returns a command that starts this binary as a child process, without a role.
fn child_command() -> std::process::Command {
    test_support::child_test("child_process")
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// Waits until no job is scheduled, ready or running.
async fn wait_until_empty(duly: &duly::Duly) {
    test_support::until("no job is left", async || {
        let counts = duly.queues().counts().await.expect("counts");
        counts.iter().all(|queue| queue.scheduled + queue.ready + queue.running == 0)
    })
    .await;
}
