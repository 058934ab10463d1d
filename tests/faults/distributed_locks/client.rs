//! A client of two locks: asks, holds for a while, extends, lets go, and says all of it.

use std::path::Path;
use std::time::Duration;

use duly::{Duly, Guard};

use crate::distributed_locks::clock::boot_micros;
use crate::distributed_locks::location::ms;
use crate::distributed_locks::log::{Line, Log, Said};

pub const NAMES: [&str; 2] = ["left", "right"];

/// Opens a store that may be away just now.
pub async fn open(store: &str) -> Duly {
    loop {
        match Duly::open(store).await {
            Ok(duly) => return duly,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The child: never ends by itself.
pub async fn live(store: &str, file: &Path) {
    let mut log = Log::at(file);
    let duly = open(store).await;
    for ask in 0.. {
        let name = *fastrand::choice(&NAMES).expect("some");
        let lock = duly.lock(name).ttl(ms(300..900));
        log.now(ask, Said::Asks(name.into()));
        let got = match fastrand::u8(..4) {
            0 => lock.try_acquire().await,
            _ => lock.wait(ms(50..3_000)).acquire().await.map(Some),
        };
        match got {
            Ok(Some(guard)) => hold(ask, guard, &mut log).await,
            Ok(None) => {}
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
        tokio::time::sleep(ms(0..20)).await;
    }
}

async fn hold(ask: u64, guard: Guard, log: &mut Log) {
    let (at, until) = believes(&guard);
    log.say(&Line { at, ask, said: Said::Acquired { fence: guard.fence().0, until } });
    let longest = *fastrand::choice(&[20_000, 200_000, 1_000_000]).expect("some");
    let enough = boot_micros() + fastrand::i64(0..longest);
    while boot_micros() < enough {
        tokio::time::sleep(ms(1..40)).await;
        if fastrand::u8(..8) == 0 {
            // What it does is seen below.
            let _ = guard.extend().await;
        }
        let (at, until) = believes(&guard);
        if until == at {
            return log.now(ask, Said::Lost);
        }
        log.say(&Line { at, ask, said: Said::Holds { until } });
    }
    log.now(ask, Said::Releases);
    match fastrand::u8(..4) {
        0 => drop(guard),
        // It may have been lost, or the store be away: then it ends by itself.
        _ => drop(guard.release().await),
    }
}

/// This moment, and until when the guard holds: the clock is read first, so a pause between can only make it shorter.
fn believes(guard: &Guard) -> (i64, i64) {
    let at = boot_micros();
    let left = i64::try_from(guard.remaining().as_micros()).expect("fits");
    (at, at + if guard.is_lost() { 0 } else { left })
}
