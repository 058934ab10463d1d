//! The stores: their contract, the values that they exchange with callers, and the two implementations.

#[cfg(any(feature = "sqlite", feature = "redis"))]
mod checksum;
pub mod contract;
mod duration;
mod open;
#[cfg(feature = "redis")]
#[cfg_attr(not(feature = "compat"), allow(dead_code, reason = "compat uses more of it"))]
pub(crate) mod redis;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod types;
mod url;

pub use self::contract::{
    AccessStore, AdminStore, Capabilities, CompletionStore, CronStore, HealthStore, JobStore, LockStore,
    MaintenanceStore, PeerStore, ProgressStore, ScanStore, SharedKeysStore, SnapshotStore, StatsStore, Store,
    TransactionStore, TransferStore,
};
pub(crate) use self::types::admin::truncate_text;
pub use self::types::admin::{
    BULK_CHANGE_MAX, Capacity, ChangeTarget, DEAD_GROUPS_MAX, DeadGroup, JobEdit, LIST_BATCH_BYTES_MAX, LIST_BATCH_MAX,
    LIST_EXAMINED_MAX, LOG_LINE_BYTES_MAX, LOG_LINES_MAX, PAGE_BYTES_MAX, PROGRESS_MESSAGE_BYTES_MAX,
    PROGRESS_UPDATES_MAX, ProgressUpdate, QueueUse, RESULT_BYTES_MAX, RemoveQueueResult,
};
pub use self::types::audit::{
    AUDIT_PAGE_MAX, AUDIT_TEXT_BYTES_MAX, AuditBounds, AuditEntry, AuditOutcome, AuditRecord,
};
pub use self::types::completions::{COMPLETION_CHECK_MAX, COMPLETION_QUEUES_MAX, COMPLETION_WATCH_DURATION};
#[cfg(any(feature = "sqlite", feature = "redis"))]
pub(crate) use self::types::cron::DUE_CRONS_READ_MAX;
pub use self::types::cron::{
    CRON_FIRINGS_MAX, CRON_PAGE_SIZE, CronFiring, CronFiringResult, CronPage, CronRecord, DueCrons, FireCronsReply,
    OverlapWait, PutCron, PutCronResult, WAITING_TICK_RECHECK_INTERVAL,
};
pub(crate) use self::types::history::CANCELLED_INDEX;
#[cfg(any(feature = "sqlite", feature = "redis"))]
pub(crate) use self::types::history::PUSHED_INDEX;
#[cfg(feature = "sqlite")]
pub(crate) use self::types::history::TAKEN_BACK_INDEX;
pub use self::types::history::{
    HISTOGRAM_BUCKETS, HISTORY_HOURS_MAX, HISTORY_MINUTES_MAX, Histogram, History, HistoryPoint, HistoryQuery,
    Resolution, StatCounters,
};
pub(crate) use self::types::history::{STAT_NUMBERS, outcome_index, timing_indexes};
pub use self::types::jobs::{
    AttemptEnd, AttemptTiming, CRASH_SUSPECT_MIN, CancelReply, CancelResult, ChangeResult, Claim, ClaimReply, FoundIds,
    Health, HeartbeatReply, ID_SCAN_MAX, JobPage, QueueCounts, Wake,
};
pub use self::types::kinds::{
    KIND_HOURS_MAX, KIND_MINUTES_MAX, KIND_STATS_MAX, KindStats, KindStatsQuery, OTHER_KINDS,
};
pub use self::types::locks::{
    LOCK_EXTENDS_MAX, LOCK_PAGE_SIZE, LOCK_SLOTS_MAX, LOCK_WAITERS_CHECKED_MAX, LOCK_WAITS_MAX, LockOwner, LockPage,
    LockRecord, LockReply, LockRequest, LockTurn,
};
pub use self::types::peers::{AnnounceReply, CONNECTIONS_BATCH_MAX, Notification, PeerInfo, Recipient};
#[cfg(any(feature = "sqlite", feature = "redis"))]
pub(crate) use self::types::stat_points::{HistoryPoints, KindPoints};
pub(crate) use self::types::tokens::to_hex;
pub use self::types::tokens::{NewToken, Role, TOKENS_MAX, Token};
pub use self::types::transfer::{
    ForeignProcess, TransferBatch, TransferBatchResult, TransferCheckpoint, TransferMark, TransferMarkReply,
};
pub use self::types::verify::{Invariant, VIOLATIONS_MAX, VerifyReport, Violation};
pub use self::url::StoreUrl;
#[cfg(feature = "sqlite")]
pub(crate) use self::url::file_url;
pub use crate::job::filter::Filter;
pub use crate::node::Node;
pub use duration::parse_duration;
pub use open::Durability;
#[cfg(feature = "compat")]
pub(crate) use open::{DEFAULT_KEEP, StoreAddress, parse_url};
pub(crate) use open::{StoreOptions, create_file_store, display_url, open};

/// Most jobs in one claim.
pub const CLAIM_MAX: usize = 1_000;
/// Most outcomes in one settle.
pub const SETTLE_MAX: usize = 1_000;
/// Most jobs taken back from a dead node in one claim.
pub const TAKE_BACK_MAX: usize = 500;
/// Most cancelled jobs in the reply to a heartbeat. Others are in a later reply.
pub const CANCELLED_JOBS_MAX: usize = 500;
/// Most jobs promoted from scheduled to ready in one claim; a store may promote fewer at a time.
pub const PROMOTE_MAX: usize = 500;
/// A claim on a SQLite file promotes at least this many due jobs, even if it takes only one, to work off a backlog.
pub(crate) const PROMOTE_MIN: usize = 200;
/// Most done, dead and cancelled jobs deleted in one prune.
pub const PRUNE_MAX: usize = 1_000;
/// Most deferred hints of one queue. One more clears them all, and those jobs wait until they are due.
pub const DEFERRED_HINTS_MAX: usize = 10_000;
/// Most deferred hints that one claim reads.
pub(crate) const DEFERRED_HINTS_PER_CLAIM_MAX: usize = 1_000;
/// Most jobs in one batch of a transfer.
pub const TRANSFER_BATCH_MAX: usize = 500;
/// Default number of jobs on one page of a list.
pub const DEFAULT_PAGE_SIZE: usize = 50;
/// Most jobs on one page of a list.
pub const PAGE_SIZE_MAX: usize = 1_000;
/// Longest error text kept in a job's history, in bytes.
pub const ERROR_BYTES_MAX: usize = 4 * 1024;
/// Most runs kept per job, besides the one that made it done: the newest stay.
pub const RUNS_MAX: usize = 50;
/// Longest output kept of a run, in bytes: the end of what it logged.
pub const RUN_OUTPUT_BYTES_MAX: usize = 4 * 1024;

#[cfg(test)]
pub(crate) mod faulty;
