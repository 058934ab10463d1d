//! Seeded random operations against a small model, on every store. Store and model must return the same results.
//!
//! A failure prints its seed. `DULY_SEED=n` runs that one history, `DULY_HISTORIES=n` runs more of them.

mod admin;
mod cron;
mod history;
mod reference;
mod transfer;

use history::{Bug, History, StoreKind};
use test_support::env_number;

/// Histories of an ordinary run. A history on a file takes longer.
const HISTORIES: u64 = 150;
const HISTORIES_IN_FILE: u64 = 25;
/// Operations per history.
const OPERATIONS: usize = 200;

fn seeds(histories: u64) -> Vec<u64> {
    if let Some(seed) = env_number("DULY_SEED") {
        return vec![seed];
    }
    let first = fastrand::u64(..1 << 40);
    (first..first + env_number("DULY_HISTORIES").unwrap_or(histories)).collect()
}

fn run_all(store_kind: StoreKind, histories: u64) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    for seed in seeds(histories) {
        let found = runtime.block_on(History::new(seed, store_kind.clone(), None).run(OPERATIONS));
        if let Err(difference) = found {
            panic!("seed {seed}: {difference}\nrun it again with DULY_SEED={seed}");
        }
    }
}

#[test]
fn memory_matches_the_model() {
    run_all(StoreKind::Memory, HISTORIES);
}

#[test]
fn file_matches_the_model() {
    run_all(StoreKind::File, HISTORIES_IN_FILE);
}

/// The control: the checker must fail if the store is wrong.
#[test]
fn every_seeded_bug_is_found() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    for bug in Bug::ALL {
        let found = (0..40).any(|seed| {
            let history = History::new(seed, StoreKind::Memory, Some(bug));
            runtime.block_on(history.run(OPERATIONS)).is_err()
        });
        assert!(found, "{bug:?} was not found in 40 histories");
    }
}

#[cfg(feature = "redis")]
mod on_servers {
    use test_support::servers;

    use super::*;

    /// On a server, every operation of a history takes a dozen requests.
    const HISTORIES: u64 = 6;

    #[test]
    #[ignore = "needs servers: ./check stores"]
    fn redis_matches_the_model() {
        run_all(StoreKind::Server(servers::redis().url()), HISTORIES);
    }

    #[test]
    #[ignore = "needs servers: ./check stores"]
    fn valkey_matches_the_model() {
        run_all(StoreKind::Server(servers::valkey().url()), HISTORIES);
    }

    #[test]
    #[ignore = "needs servers: ./check stores"]
    fn cluster_matches_the_model() {
        run_all(StoreKind::Server(servers::cluster().url()), HISTORIES);
    }

    #[test]
    #[ignore = "needs servers: ./check stores"]
    fn sentinel_matches_the_model() {
        run_all(StoreKind::Server(servers::sentinel().url()), HISTORIES);
    }
}
