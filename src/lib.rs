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

pub use admin::backup::Repaired;
pub use admin::bulk::{BULK_MAX, Bulk, COUNT_LOOKED_MAX, Counted, Done};
pub use admin::token::{Role, Secret, TOKEN_PREFIX, TOKENS_MAX, Token};
pub use admin::why::Why;
pub use client::{Builder, Duly};
pub use clock::Clock;
pub use cron::api::{CRONS_MAX, Cron, CronChange, CronChanges};
pub use cron::{CRON_ARGS_BYTES_MAX, CronRule, JITTER_MAX, MISSED_AFTER, MISSED_MAX, Missed, Overlap, Schedule};
pub use error::{Error, Result, Source};
pub use job::filter::{FILTER_BYTES_MAX, FILTER_TERMS_MAX, Filter, Term, When};
pub use job::push::{
    ARGS_BYTES_MAX, Conflict, DEFAULT_QUEUE, Due, MAX_ATTEMPTS, NAME_BYTES_MAX, PUSH_BYTES_MAX, PUSH_MAX, Push, Pushed,
    TAGS_MAX, TIMEOUT, UNIQUE_BYTES_MAX, check_name,
};
pub use job::retry::Retry;
pub use job::{Failure, Fence, Held, Job, JobId, JobProgress, LogLine, Outcome, Priority, Record, State};
pub use lock::{Guard, LOCK_NAME_BYTES_MAX, LOCK_TTL, Lock};
pub use metrics::{METRICS, Metric, MetricKind, describe_metrics};
pub use node::{BEAT, KINDS_MAX, LEASE, Node, NodeId, NodeRecord, Takes};
pub use peers::call::{
    Answer, Asked, CALL_TIMEOUT, CALL_TIMEOUT_MAX, CLUSTER_KEY_BYTES_MIN, Call, MESSAGE_BYTES_MAX, METHOD_CONCURRENCY,
    Replies, Reply,
};
pub use peers::{Connection, Running, WAITED_MAX};
#[cfg(feature = "sqlite")]
pub use rusqlite;
#[cfg(feature = "sqlite")]
pub use store::sqlite::{AfterCommit, SQL_ROWS_MAX, Sql, SqlTable};
pub use store::{
    Audit, AuditRecord, Breach, Capacity, CronRecord, DeadGroup, Durability, Edit, HISTORY_MINUTES_MAX, Health,
    Histogram, History, HistoryAsk, HistoryTally, KIND_HOURS_MAX, KindPoint, LOG_LINES_MAX, LockRecord, OTHER_KINDS,
    Owner, Page, Point, QueueCounts, Rule, Verified,
};
/// The token that stops a worker: from here, so that a program needs no crate of the same version beside this one.
pub use tokio_util::sync::CancellationToken;
pub use transfer::{Move, Progress, QueueMoved};
pub use worker::event::{Event, Tally};
pub use worker::handler::{Args, Ctx, IntoAnswer};
pub use worker::middleware::{Attempted, Middleware, Next};
pub use worker::{CONCURRENCY, GRACE, Signals, Worker, remote};

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
