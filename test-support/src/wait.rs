//! Waits that end: each fails the test after [`TIMEOUT`] and says what it waited for.

use std::time::{Duration, Instant};

/// Longer than any wait of a test that passes. A wait that takes this long has failed.
pub const TIMEOUT: Duration = Duration::from_secs(60);
/// Pause between two looks at something that sends no signal when it changes.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Waits until the condition is true.
pub async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    while !condition().await {
        assert!(tokio::time::Instant::now() < deadline, "waited {TIMEOUT:?} until {what}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Waits until the condition is true, and blocks the thread.
#[track_caller]
pub fn until_blocking(what: &str, mut condition: impl FnMut() -> bool) {
    wait_for(what, || if condition() { Ok(()) } else { Err("not yet".into()) });
}

/// Waits for a value, and blocks the thread. The error says what is missing; the last one is part of the failure.
#[track_caller]
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match look() {
            Ok(value) => return value,
            Err(last) if Instant::now() >= deadline => panic!("waited {TIMEOUT:?} for {what}; last seen: {last}"),
            Err(_) => std::thread::sleep(POLL_INTERVAL),
        }
    }
}

/// Returns the output of a future that must end within [`TIMEOUT`].
pub async fn in_time<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, work).await.unwrap_or_else(|_| panic!("did not end within {TIMEOUT:?}"))
}
