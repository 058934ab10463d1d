//! THE CONTRACT: the guarantees of every store, one paragraph per method.
//!
//! A store keeps state and changes it in atomic operations. It makes no policy decisions: it does not know attempt
//! limits, backoff or handlers. Absence is a value, not an error. The store's clock alone decides which jobs are due
//! and which leases have expired; each operation reads it once.
//!
//! Each capability of a store is a trait in a file of its own. **A store implements a trait wholly or not at all; there
//! are no default methods.** [`Store::capabilities`] is the one place where a store lists its capabilities:
//!
//! | trait | SQLite | Redis | Sidekiq | Redis in Action | ActionHero |
//! |---|---|---|---|---|---|
//! | [`JobStore`] | yes | yes | yes | yes | |
//! | [`AdminStore`] | yes | yes | | | |
//! | [`ProgressStore`] | yes | yes | | | |
//! | [`CronStore`] | yes | yes | | | |
//! | [`LockStore`] | yes | yes | yes | yes | yes |
//! | [`PeerStore`] | yes | yes | yes | yes | yes |
//! | [`CompletionStore`] | yes | yes | | | |
//! | [`StatsStore`] | yes | yes | | | |
//! | [`AccessStore`] | yes | yes | yes | | |
//! | [`TransferStore`] | yes | yes | yes | | |
//! | [`SharedKeysStore`] | | | yes | | |
//! | [`MaintenanceStore`] | yes | yes | | | |
//! | [`HealthStore`] | yes | yes | yes | yes | yes |
//! | [`SnapshotStore`] | yes | | | | |
//! | [`ScanStore`] | | yes | | | |
//! | [`TransactionStore`] | yes | | | | |
//!
//! `dyn Store` implements every trait, so callers write `store.push(..)`. Such a call looks up the capability, is
//! traced and measured, and returns [`Error::Unsupported`](crate::Error::Unsupported) if the store lacks it.

mod access;
mod admin;
mod capability;
mod completions;
mod cron;
mod health;
mod jobs;
mod locks;
pub(crate) mod maintenance;
mod peers;
mod progress;
mod scan;
mod shared_keys;
mod snapshot;
mod stats;
pub(crate) mod transactions;
pub(crate) mod transfer;

use std::time::SystemTime;

use crate::error::Result;

pub use self::access::AccessStore;
pub use self::admin::AdminStore;
use self::capability::capability;
pub(crate) use self::capability::unsupported;
pub use self::completions::CompletionStore;
pub use self::cron::CronStore;
pub use self::health::HealthStore;
pub use self::jobs::JobStore;
pub use self::locks::LockStore;
pub use self::maintenance::MaintenanceStore;
pub use self::peers::PeerStore;
pub use self::progress::ProgressStore;
pub use self::scan::ScanStore;
pub use self::shared_keys::SharedKeysStore;
pub use self::snapshot::SnapshotStore;
pub use self::stats::StatsStore;
pub use self::transactions::TransactionStore;
pub use self::transfer::TransferStore;
use crate::job::JobId;

/// The usual advice for a user who needs a capability that a store lacks.
#[cfg(feature = "compat")]
pub(crate) const USE_FULL_STORE: &str = "use a SQLite file, Redis or Valkey";

pub(crate) mod sealed {
    /// Only this crate can implement the contract.
    pub trait Sealed {}
}

/// Keeps all state: jobs, nodes, cron rules, locks, peers, statistics and access tokens, as far as it is capable.
///
/// Public to read, sealed until 1.0: implement it only inside this crate.
pub trait Store: sealed::Sealed + Send + Sync + 'static {
    /// Returns the name of this type of store, for messages.
    fn name(&self) -> &'static str;

    /// Returns the capabilities of this store.
    fn capabilities(&self) -> Capabilities<'_>;

    /// Returns the advice for a user who needs a capability that this store lacks.
    fn advice(&self, capability: &str) -> &'static str;

    /// Parses the id of a job; on the keys of another system, also the id that this system has for it.
    fn parse_job_id(&self, text: &str) -> Result<JobId>;

    /// Returns the runtime that receives this store's notifications, if it has one that handlers cannot block.
    /// Tasks that consume notifications should run on it.
    fn runtime(&self) -> Option<tokio::runtime::Handle>;

    /// Returns the store's time as far as it is known without a request.
    fn now(&self) -> SystemTime;

    /// Checks without a request that the files of the store are the ones that were opened. `seen_id` is the store id
    /// that a connection of the caller has read: it must be that of this store. A store without files has no faults.
    fn check_files(&self, op: &'static str, seen_id: Option<&str>) -> Result<()>;
}

/// The capabilities of a store; `None` for those that it lacks.
#[derive(Clone, Copy, Default)]
#[allow(missing_docs, reason = "each trait has its own documentation")]
pub struct Capabilities<'s> {
    pub jobs: Option<&'s dyn JobStore>,
    pub admin: Option<&'s dyn AdminStore>,
    pub progress: Option<&'s dyn ProgressStore>,
    pub crons: Option<&'s dyn CronStore>,
    pub locks: Option<&'s dyn LockStore>,
    pub peers: Option<&'s dyn PeerStore>,
    pub completions: Option<&'s dyn CompletionStore>,
    pub stats: Option<&'s dyn StatsStore>,
    pub access: Option<&'s dyn AccessStore>,
    pub transfer: Option<&'s dyn TransferStore>,
    pub shared_keys: Option<&'s dyn SharedKeysStore>,
    pub maintenance: Option<&'s dyn MaintenanceStore>,
    pub health: Option<&'s dyn HealthStore>,
    pub snapshot: Option<&'s dyn SnapshotStore>,
    pub scan: Option<&'s dyn ScanStore>,
    pub transactions: Option<&'s dyn TransactionStore>,
}

impl std::fmt::Debug for Capabilities<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Capabilities { jobs, admin, progress, crons, locks, peers, completions, .. } = self;
        let Capabilities {
            stats,
            access,
            transfer,
            shared_keys,
            maintenance,
            health,
            snapshot,
            scan,
            transactions,
            ..
        } = self;
        let all = [
            ("jobs", jobs.is_some()),
            ("admin", admin.is_some()),
            ("progress", progress.is_some()),
            ("crons", crons.is_some()),
            ("locks", locks.is_some()),
            ("peers", peers.is_some()),
            ("completions", completions.is_some()),
            ("stats", stats.is_some()),
            ("access", access.is_some()),
            ("transfer", transfer.is_some()),
            ("shared_keys", shared_keys.is_some()),
            ("maintenance", maintenance.is_some()),
            ("health", health.is_some()),
            ("snapshot", snapshot.is_some()),
            ("scan", scan.is_some()),
            ("transactions", transactions.is_some()),
        ];
        f.debug_set().entries(all.iter().filter(|(_, has)| *has).map(|(name, _)| name)).finish()
    }
}
