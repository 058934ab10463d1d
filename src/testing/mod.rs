//! A kit for your own tests: what was pushed, in words, and attempts that end as if the process had been killed.
//!
//! With [`Duly::open`](crate::Duly::open) on `:memory:`, [`Clock::manual`](crate::Clock::manual) and
//! [`Worker::drain`](crate::Worker::drain) a test needs no server, no file and no waiting.

mod crash;

use std::ops::Deref;

pub(crate) use crash::Crash;
pub use crash::CrashAt;

use crate::client::Duly;
use crate::error::{Error, Result};
use crate::job::JobRecord;
use crate::store::{Filter, PAGE_SIZE_MAX};
use crate::worker::handler::Args;

/// Most jobs that are looked through for what was pushed: a test that pushes more should count.
const PUSHED_JOBS_MAX: usize = 100_000;

/// A job of one kind in the store, with its args as they are typed.
#[derive(Debug)]
#[non_exhaustive]
pub struct PushedJob<A> {
    /// What its handler gets.
    pub args: A,
    /// All else that is known of it.
    pub record: JobRecord,
}

impl<A> Deref for PushedJob<A> {
    type Target = A;

    fn deref(&self) -> &A {
        &self.args
    }
}

impl Duly {
    /// All jobs of the kind `A::KIND` that are in the store, in whatever state, the first pushed first. For tests: it looks
    /// through everything. Done jobs are there as long as they are kept.
    pub async fn pushed_jobs<A: Args>(&self) -> Result<Vec<PushedJob<A>>> {
        let mut found = Vec::new();
        let mut filter = Filter { kind: Some(A::KIND.to_owned()), limit: PAGE_SIZE_MAX, ..Filter::default() };
        loop {
            let page = self.list(filter.clone()).await?;
            for record in page.jobs {
                let args = serde_json::from_str(&record.job.args)
                    .map_err(|why| Error::invalid("args", format!("of job {} do not decode: {why}", record.job.id)))?;
                found.push(PushedJob { args, record });
            }
            match page.next_cursor {
                Some(next) if found.len() < PUSHED_JOBS_MAX => filter.cursor = Some(next),
                _ => break,
            }
        }
        found.sort_by_key(|found: &PushedJob<A>| (found.record.job.pushed, found.record.job.id));
        Ok(found)
    }
}

/// Fails, and says what was pushed instead, unless a job with exactly these args is in the store. Answers the job.
///
/// # Panics
/// If there is none.
#[track_caller]
pub fn assert_pushed<'j, A: Args>(jobs: &'j [PushedJob<A>], args: &A) -> &'j PushedJob<A> {
    let wanted = args_json(args);
    match jobs.iter().find(|job| args_json(&job.args) == wanted) {
        Some(job) => job,
        None => panic!("no job {} {wanted} was pushed, but {}", A::KIND, describe_jobs(jobs)),
    }
}

/// Fails, and says what was pushed, if a job with exactly these args is in the store.
///
/// # Panics
/// If there is one.
#[track_caller]
pub fn assert_not_pushed<A: Args>(jobs: &[PushedJob<A>], args: &A) {
    let wanted = args_json(args);
    let none = !jobs.iter().any(|job| args_json(&job.args) == wanted);
    assert!(none, "a job {} {wanted} was pushed: {}", A::KIND, describe_jobs(jobs));
}

fn args_json<A: Args>(args: &A) -> String {
    serde_json::to_string(args).unwrap_or_else(|why| format!("(cannot be written: {why})"))
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
