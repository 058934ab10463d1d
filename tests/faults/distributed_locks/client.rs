//! A client of two locks: acquires, holds for a while, extends, releases, and logs all of it.

use std::path::Path;
use std::time::Duration;

use duly::Duly;
use duly::lock::Guard;

use crate::distributed_locks::clock::boot_micros;
use crate::distributed_locks::location::ms;
use crate::distributed_locks::log::{LockEvent, Log, LogEntry};

pub const NAMES: [&str; 2] = ["first", "second"];

/// Opens a store that may be unavailable at the moment.
pub async fn open(store: &str) -> Duly {
    loop {
        match Duly::open(store).await {
            Ok(duly) => return duly,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The child. It never ends by itself.
pub async fn run(store: &str, file: &Path) {
    let mut log = Log::at(file);
    let duly = open(store).await;
    for request in 0.. {
        let name = *fastrand::choice(&NAMES).expect("some");
        let lock = duly.lock(name).ttl(ms(300..900));
        log.now(request, LockEvent::Requested(name.into()));
        let result = match fastrand::u8(..4) {
            0 => lock.try_acquire().await,
            _ => lock.wait(ms(50..3_000)).acquire().await.map(Some),
        };
        match result {
            Ok(Some(guard)) => hold(request, guard, &mut log).await,
            Ok(None) => {}
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
        tokio::time::sleep(ms(0..20)).await;
    }
}

async fn hold(request: u64, guard: Guard, log: &mut Log) {
    let (at, until) = read_guard(&guard);
    log.write(&LogEntry { at, request, event: LockEvent::Acquired { fence: guard.fence().0, until } });
    let hold_max = *fastrand::choice(&[20_000, 200_000, 1_000_000]).expect("some");
    let release_at = boot_micros() + fastrand::i64(0..hold_max);
    while boot_micros() < release_at {
        tokio::time::sleep(ms(1..40)).await;
        if fastrand::u8(..8) == 0 {
            // The result shows in the guard below.
            let _ = guard.extend().await;
        }
        let (at, until) = read_guard(&guard);
        if until == at {
            return log.now(request, LockEvent::Lost);
        }
        log.write(&LogEntry { at, request, event: LockEvent::Held { until } });
    }
    log.now(request, LockEvent::Releasing);
    match fastrand::u8(..4) {
        0 => drop(guard),
        // The lock may be lost or the store unavailable: then it expires.
        _ => drop(guard.release().await),
    }
}

/// Returns the current time and the end of the hold. The clock is read first, so a pause in between only shortens the
/// hold.
fn read_guard(guard: &Guard) -> (i64, i64) {
    let at = boot_micros();
    let remaining = i64::try_from(guard.remaining().as_micros()).expect("fits");
    (at, at + if guard.is_lost() { 0 } else { remaining })
}
