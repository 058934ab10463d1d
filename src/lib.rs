//! Durable jobs that run on time.
//!
//! A **job** is pushed through the **door** ([`Duly`]) into a **store** (a SQLite file without a server; or Redis or Valkey).
//! A **worker** claims it when it is **due**, runs it as an **attempt**, and records its **outcome**,
//! which counts only if the worker's **node** still holds the job with that **fence**.
//! Whatever is killed at whatever moment: an acknowledged push is run, or is still there.
//!
//! ```
//! use std::time::Duration;
//! use duly::{Args, Ctx, Duly};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Resize { image: u64, width: u32 }
//! impl Args for Resize { const KIND: &'static str = "resize"; }
//!
//! async fn resize(job: Resize, ctx: Ctx) -> Result<(), std::io::Error> {
//!     println!("image {} to {} px, attempt {}", job.image, job.width, ctx.attempt());
//!     Ok(())
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> duly::Result<()> {
//! let duly = Duly::open(":memory:").await?;               // or "duly.db", or "redis://host"
//! duly.push(Resize { image: 7, width: 640 }).await?;
//! duly.push(Resize { image: 8, width: 640 }.after(Duration::from_secs(60))).await?;
//! let tally = duly.worker().queue("default", 20).on(resize).drain().await?; // a service calls .run()
//! assert_eq!(tally.acked, 1);
//! # Ok(())
//! # }
//! ```

#![warn(missing_docs, unreachable_pub)]
#![cfg_attr(not(feature = "sqlite"), allow(dead_code, reason = "what only a store uses"))]

mod adaptive_wait;
mod admin;
mod client;
mod clock;
#[cfg(feature = "compat")]
pub mod compat;
mod cron;
mod error;
mod job;
mod lock;
mod metrics;
mod node;
#[cfg(feature = "otel")]
mod otel;
mod peers;
pub mod store;
pub mod testing;
mod transfer;
mod worker;

pub use admin::backup::RepairReport;
pub use admin::bulk::{BULK_MAX, BulkCount, BulkOperation, BulkReport, COUNT_SCANNED_MAX};
pub use admin::token::{Role, TOKEN_PREFIX, TOKENS_MAX, Token, TokenSecret};
pub use admin::why::Why;
pub use client::{Builder, Duly};
pub use clock::Clock;
pub use cron::api::{CRONS_MAX, Cron, CronChange, CronChanges};
pub use cron::{CRON_ARGS_BYTES_MAX, CronRule, JITTER_MAX, MISSED_AFTER, MISSED_TICKS_MAX, Missed, Overlap, Schedule};
pub use error::{BoxError, Error, Result};
pub use job::filter::{FILTER_BYTES_MAX, FILTER_TERMS_MAX, Filter, FilterTerm, FilterTime};
pub use job::push::{
    ARGS_BYTES_MAX, DEFAULT_MAX_ATTEMPTS, DEFAULT_QUEUE, DEFAULT_TIMEOUT, Due, NAME_BYTES_MAX, PUSH_BYTES_MAX,
    PUSH_MAX, Push, PushResult, TAGS_MAX, UNIQUE_BYTES_MAX, UniqueConflict, check_name,
};
pub use job::retry::Retry;
pub use job::{Failure, Fence, HeldJob, Job, JobId, JobProgress, JobRecord, LogLine, Outcome, Priority, State};
pub use lock::{DEFAULT_LOCK_TTL, Guard, LOCK_NAME_BYTES_MAX, Lock};
pub use metrics::{METRICS, Metric, MetricKind, describe_metrics};
pub use node::{HEARTBEAT_INTERVAL, LEASE, NODE_KINDS_MAX, Node, NodeId, NodeProfile, NodeRecord};
pub use peers::call::{
    CALL_TIMEOUT_MAX, CLUSTER_KEY_BYTES_MIN, Call, CallContext, DEFAULT_CALL_TIMEOUT, DEFAULT_METHOD_CONCURRENCY,
    MESSAGE_BYTES_MAX, MethodRegistration, Replies, Reply,
};
pub use peers::{HeldConnection, RunningJob, WAITED_JOBS_MAX};
#[cfg(feature = "sqlite")]
pub use rusqlite;
#[cfg(feature = "sqlite")]
pub use store::sqlite::{AfterCommit, ReadOnlySql, SQL_ROWS_MAX, SqlTable};
pub use store::{
    AuditEntry, AuditRecord, Capacity, CronRecord, DeadGroup, Durability, HISTORY_MINUTES_MAX, Health, Histogram,
    History, HistoryPoint, HistoryQuery, Invariant, JobEdit, JobPage, KIND_HOURS_MAX, KindStats, LOG_LINES_MAX,
    LockOwner, LockRecord, OTHER_KINDS, QueueCounts, StatCounters, VerifyReport, Violation,
};
/// The token that stops a worker: from here, so that a program needs no crate of the same version beside this one.
pub use tokio_util::sync::CancellationToken;
pub use transfer::{QueueTransferReport, Transfer, TransferProgress};
pub use worker::event::{Event, RunSummary};
pub use worker::handler::{Args, Ctx, IntoOutcome};
pub use worker::middleware::{AttemptFuture, Middleware, Next};
pub use worker::{CONCURRENCY, GRACE_PERIOD, ShutdownSignals, Worker, remote};

/// The Rust in the documents is compiled and run as tests.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../docs/guide/jobs.md")]
    struct Jobs;
    #[doc = include_str!("../docs/guide/workers.md")]
    struct Workers;
    #[doc = include_str!("../docs/guide/testing.md")]
    struct Testing;
    #[doc = include_str!("../docs/guide/looking-closer.md")]
    struct LookingCloser;
    #[doc = include_str!("../docs/guide/moving.md")]
    struct Moving;
    #[doc = include_str!("../docs/guide/locks.md")]
    struct Locks;
    #[doc = include_str!("../docs/guide/calls.md")]
    struct Calls;
    #[cfg(feature = "compat")]
    #[doc = include_str!("../docs/guide/interop.md")]
    struct Interop;
    #[cfg(feature = "compat")]
    #[doc = include_str!("../docs/from/actionhero.md")]
    struct ActionHero;
    #[doc = include_str!("../docs/guide/cron.md")]
    struct Cron;
    #[doc = include_str!("../docs/guide/operate.md")]
    struct Operate;
}
