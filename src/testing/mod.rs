//! Helpers for your own tests: single attempts, assertions on pushed jobs, and simulated crashes.
//!
//! With [`Duly::open`](crate::Duly::open) on `:memory:`, [`Clock::manual`](crate::Clock::manual) and
//! [`Worker::drain`](crate::Worker::drain) a test needs no server, no file and no waiting.

#[cfg(feature = "sqlite")]
mod attempt;
mod crash;

use std::ops::Deref;

#[cfg(feature = "sqlite")]
pub use attempt::{AttemptReport, TestAttempt};
pub(crate) use crash::Crash;
pub use crash::CrashAt;

use crate::client::Duly;
use crate::error::Result;
use crate::job::JobRecord;
use crate::job::args::Args;
use crate::store::{Filter, PAGE_SIZE_MAX};

/// Maximum jobs read by [`Duly::pushed_jobs`]; tests that push more should use counts.
const PUSHED_JOBS_MAX: usize = 100_000;

/// A job of one kind in the store, with decoded args.
///
/// See [`Duly::pushed_jobs`] for an example.
#[derive(Debug)]
#[non_exhaustive]
pub struct PushedJob<A> {
    /// The args.
    pub args: A,
    /// The job and its state.
    pub record: JobRecord,
}

impl<A> Deref for PushedJob<A> {
    type Target = A;

    fn deref(&self) -> &A {
        &self.args
    }
}

impl Duly {
    /// Returns all jobs of the kind `A::KIND` in the store, in any state, in the order of their pushes. Done jobs are
    /// included as long as they are kept. For tests: it reads all jobs of the kind.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Invalid`](crate::Error::Invalid) if the args of a job do not decode as `A`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Welcome { user: u64 }
    /// # impl duly::Args for Welcome { const KIND: &'static str = "welcome"; }
    /// duly.push(Welcome { user: 7 }).await?;
    /// let welcomes = duly.pushed_jobs::<Welcome>().await?;
    /// assert_eq!(welcomes[0].user, 7);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn pushed_jobs<A: Args>(&self) -> Result<Vec<PushedJob<A>>> {
        let mut jobs = Vec::new();
        let mut filter = Filter { kind: Some(A::KIND.to_owned()), limit: PAGE_SIZE_MAX, ..Filter::default() };
        loop {
            let page = self.jobs().list(filter.clone()).await?;
            for record in page.jobs {
                let args = record.job.decode_args()?;
                jobs.push(PushedJob { args, record });
            }
            match page.next_cursor {
                Some(next) if jobs.len() < PUSHED_JOBS_MAX => filter.cursor = Some(next),
                _ => break,
            }
        }
        jobs.sort_by_key(|job: &PushedJob<A>| (job.record.job.pushed, job.record.job.id));
        Ok(jobs)
    }
}

/// Asserts that a job with exactly these args is in the store, and returns it.
///
/// # Panics
///
/// Panics if there is no such job. The message lists the jobs that were pushed.
///
/// # Examples
///
/// ```
/// # use duly::{Duly, PushExt, testing::{assert_not_pushed, assert_pushed}};
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct Welcome { user: u64 }
/// # impl duly::Args for Welcome { const KIND: &'static str = "welcome"; }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> duly::Result<()> {
/// # let duly = Duly::open(":memory:").await?;
/// duly.push(Welcome { user: 7 }.queue("mail")).await?;
/// let welcomes = duly.pushed_jobs::<Welcome>().await?;
/// assert_eq!(assert_pushed(&welcomes, &Welcome { user: 7 }).record.job.queue, "mail");
/// assert_not_pushed(&welcomes, &Welcome { user: 8 });
/// # Ok(())
/// # }
/// ```
#[track_caller]
pub fn assert_pushed<'j, A: Args>(jobs: &'j [PushedJob<A>], args: &A) -> &'j PushedJob<A> {
    let wanted = args_json(args);
    match jobs.iter().find(|job| args_json(&job.args) == wanted) {
        Some(job) => job,
        None => panic!("no job {} {wanted} was pushed, but {}", A::KIND, describe_jobs(jobs)),
    }
}

/// Asserts that no job with exactly these args is in the store.
///
/// # Panics
///
/// Panics if there is one. The message lists the jobs that were pushed.
///
/// # Examples
///
/// ```
/// # use duly::{Args, Duly, testing::assert_not_pushed};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> duly::Result<()> {
/// # let duly = Duly::open(":memory:").await?;
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct Welcome { user: u64 }
/// # impl Args for Welcome { const KIND: &'static str = "welcome"; }
/// // The program under test must not greet a user who has not confirmed the address.
/// assert_not_pushed(&duly.pushed_jobs::<Welcome>().await?, &Welcome { user: 7 });
/// # Ok(())
/// # }
/// ```
#[track_caller]
pub fn assert_not_pushed<A: Args>(jobs: &[PushedJob<A>], args: &A) {
    let wanted = args_json(args);
    let is_absent = !jobs.iter().any(|job| args_json(&job.args) == wanted);
    assert!(is_absent, "a job {} {wanted} was pushed: {}", A::KIND, describe_jobs(jobs));
}

fn args_json<A: Args>(args: &A) -> String {
    serde_json::to_string(args).unwrap_or_else(|error| format!("(cannot be written: {error})"))
}

fn describe_jobs<A: Args>(jobs: &[PushedJob<A>]) -> String {
    if jobs.is_empty() {
        return "none of this kind".to_owned();
    }
    let lines = jobs.iter().map(|job| {
        let record = &job.record;
        format!("\n  {} in queue {}, {}", record.job.args, record.job.queue, record.state)
    });
    format!("{} of this kind:{}", jobs.len(), lines.collect::<String>())
}
