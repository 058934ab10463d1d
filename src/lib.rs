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
//!
//! The [`guide`] has a page for each subject; begin with [getting started](guide::getting_started).
//!
//! # A tour
//!
//! | to | use |
//! |---|---|
//! | open a store | [`Duly::open`]; [`Builder`] has options such as the lease, the clock and middleware |
//! | describe a kind of job | [`Args`] on a type of your own |
//! | push jobs | [`Duly::push`] or [`Duly::push_all`]; [`Push`] and [`PushExt`] have the options |
//! | push and end jobs in your own SQLite transaction | [`Duly::push_in`] and [`Ctx::ack_in`] |
//! | run jobs | [`Duly::worker`] returns a [`Worker`]; a handler gets a [`Ctx`] and may return an [`Outcome`] or a [`JobResult`] |
//! | choose when failed attempts are retried | [`Retry`] |
//! | read, change, wait for and remove jobs | [`Duly::jobs`]; a [`Filter`] selects many |
//! | pause and count queues, and set their capacity | [`Duly::queues`] |
//! | push jobs at fixed times | [`Duly::cron`] adds a rule, [`Duly::crons`] manages them; see [`cron`] |
//! | allow only one process at a time to do something | [`Duly::lock`]; [`Duly::locks`] lists the locks; see [`lock`] |
//! | run a method on other nodes | [`Duly::call`] and [`Duly::on_call`]; [`Duly::nodes`] lists the nodes; see [`call`] |
//! | wrap pushes and attempts | [`Middleware`] |
//! | test your jobs | [`Clock::manual`], [`Worker::drain`], and [`testing`] |
//! | operate a store | [`Duly::health`], [`Duly::verify`], [`Duly::backup`]; see [`admin`] |
//! | read statistics of attempts | [`Duly::kind_stats`] |
//! | move queues to another store | [`Duly::transfer_to`] |
//! | manage access to the HTTP API | [`Duly::tokens`] and [`Duly::audit`] |
//! | work on the keys of Sidekiq, ActionHero and others | `duly::compat`, with the feature `compat` |
//! | handle errors | [`Error`], sorted by what the caller can do |
//!
//! [`bounds`] lists every maximum and every default.
//!
//! # Features
//!
//! | feature | default | adds |
//! |---|---|---|
//! | `sqlite` | yes | stores in a SQLite file and in memory; SQLite is compiled into your program |
//! | `redis` | no | stores on Redis and Valkey: `redis://`, `rediss://`, with Sentinel and Cluster |
//! | `compat` | no | stores on the keys of other systems, see [interoperability](guide::interop); includes `redis` |
//! | `otel` | no | the OpenTelemetry context of a push becomes the parent of the job's attempts |
//!
//! Cargo allows one `libsqlite3-sys` per program, so all crates that link SQLite must accept the same version. duly
//! accepts rusqlite 0.39 to 0.41, as sqlx 0.9 and diesel 2.3 do, and re-exports the one that Cargo chose as
//! `duly::rusqlite`. If Cargo reports a conflict about `links = "sqlite3"`, update the other crate, or use duly without
//! SQLite: `default-features = false, features = ["redis"]`.

#![cfg_attr(docsrs, feature(doc_cfg))]
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
#[cfg(any(doc, doctest))]
pub mod guide;
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
pub use error::{BoxError, ConflictKind, Error, Result};
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
pub use worker::ctx::Ctx;
pub use worker::into_outcome::JobResult;
pub use worker::middleware::Middleware;

/// The Rust programs in the README run as tests, like those of the [`guide`].
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
