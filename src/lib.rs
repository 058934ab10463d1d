//! Durable jobs that run on time.
//!
//! A program pushes a **job** through [`Duly`] into a **store**: a SQLite file without a server, or Redis or Valkey.
//! A **worker** claims the job when it is **due**, runs it as an **attempt**, and records its **outcome**.
//! The store accepts the outcome only if the worker's **node** still holds the job with that **fence**.
//! An acknowledged push survives any crash: the job has run, or it is still in the store.
//!
//! ```
//! use std::time::Duration;
//! use duly::{Args, Ctx, Duly, PushExt};
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
//! let summary = duly.worker().queue("default", 20).on(resize).drain().await?; // a service calls .run()
//! assert_eq!(summary.acked, 1);
//! # Ok(())
//! # }
//! ```

#![warn(missing_debug_implementations, missing_docs, unreachable_pub)]
#![cfg_attr(not(feature = "sqlite"), allow(dead_code, reason = "what only a store uses"))]

mod adaptive_wait;
pub mod admin;
pub mod bounds;
mod client;
mod clock;
#[cfg(feature = "compat")]
pub mod compat;
pub mod cron;
mod error;
pub mod job;
pub mod lock;
pub mod metrics;
mod node;
#[cfg(feature = "otel")]
mod otel;
mod peers;
#[doc(hidden)]
pub mod store;
mod sync;
pub mod testing;
mod transfer;
mod uuid_id;
pub mod worker;

/// Calls between nodes: methods that a node registers, and the replies to a call.
pub mod call {
    pub use crate::peers::HeldConnection;
    pub use crate::peers::call::{Call, CallContext, MethodRegistration};
    pub use crate::peers::replies::{Replies, Reply};
}

pub use client::{Builder, Duly};
pub use clock::Clock;
pub use error::{BoxError, Error, Result};
pub use job::args::{Args, PushExt};
pub use job::filter::Filter;
pub use job::push::{Push, PushResult};
pub use job::retry::Retry;
pub use job::{Fence, Job, JobId, JobRecord, Outcome, Priority, State};
pub use node::NodeId;
#[cfg(feature = "sqlite")]
pub use rusqlite;
pub use store::Durability;
#[cfg(feature = "sqlite")]
pub use store::sqlite::AfterCommit;
/// Stops a worker. Re-exported so that a program needs no dependency on the same version of `tokio-util`.
pub use tokio_util::sync::CancellationToken;
pub use worker::Worker;
pub use worker::event::{Event, RunSummary};
pub use worker::handler::{Ctx, IntoOutcome};
pub use worker::middleware::Middleware;

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
    #[doc = include_str!("../docs/guide/debugging.md")]
    struct Debugging;
    #[doc = include_str!("../docs/guide/moving-stores.md")]
    struct MovingStores;
    #[doc = include_str!("../docs/guide/locks.md")]
    struct Locks;
    #[doc = include_str!("../docs/guide/calls.md")]
    struct Calls;
    #[cfg(feature = "compat")]
    #[doc = include_str!("../docs/guide/interop.md")]
    struct Interop;
    #[cfg(feature = "compat")]
    #[doc = include_str!("../docs/migrating/actionhero.md")]
    struct ActionHero;
    #[doc = include_str!("../docs/guide/cron.md")]
    struct Cron;
    #[doc = include_str!("../docs/guide/managing-jobs.md")]
    struct ManagingJobs;
}
