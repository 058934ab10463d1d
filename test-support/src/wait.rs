//! Waits with a timeout: each fails the test after [`TIMEOUT`] and names the awaited condition.

use std::time::{Duration, Instant};

/// Longer than any wait of a passing test. A wait that takes this long has failed.
pub const TIMEOUT: Duration = Duration::from_secs(60);
/// Pause between two checks of a condition that sends no notification.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Waits until the condition is true.
pub async fn until(description: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    while !condition().await {
        assert!(tokio::time::Instant::now() < deadline, "waited {TIMEOUT:?} until {description}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Waits until the condition is true. Blocks the thread.
#[track_caller]
pub fn until_blocking(description: &str, mut condition: impl FnMut() -> bool) {
    wait_for(description, || if condition() { Ok(()) } else { Err("not yet".into()) });
}

/// Waits for a value. Blocks the thread. The error describes the missing part; the last error is part of the failure.
#[track_caller]
pub fn wait_for<T>(description: &str, mut probe: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match probe() {
            Ok(value) => return value,
            Err(last) if Instant::now() >= deadline => {
                panic!("waited {TIMEOUT:?} for {description}; last seen: {last}")
            }
            Err(_) => std::thread::sleep(POLL_INTERVAL),
        }
    }
}

/// Returns the output of a future that must complete within [`TIMEOUT`].
pub async fn in_time<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, work).await.unwrap_or_else(|_| panic!("did not end within {TIMEOUT:?}"))
}
