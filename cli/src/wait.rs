//! Waits until a job is done or dead, for `push --wait` and `jobs wait`.

use std::time::Duration;

use duly::{JobId, State};
use duly_http::views::JobView;

use crate::Setup;
use crate::backend::{Backend, WaitEnd};
use crate::escape::escape_text;
use crate::exit::{self, CliError};

/// How the caller got the id of the job.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum JobOrigin {
    /// This process has just pushed the job.
    JustPushed,
    /// The user named the id.
    GivenById,
}

/// Waits until the job is done or dead; returns `None` if it is done and not kept.
pub(crate) async fn wait_until_final(
    backend: &Backend,
    id: JobId,
    timeout: Option<Duration>,
    origin: JobOrigin,
) -> anyhow::Result<Option<JobView>> {
    let initial = backend.find_job(id).await?;
    match backend.wait_for_job(id, timeout).await? {
        WaitEnd::Final(job) => Ok(Some(*job)),
        WaitEnd::Gone => resolve_missing_job(id, initial.as_ref(), origin),
        WaitEnd::TimedOut(state) => {
            Err(CliError::new(exit::TIMED_OUT, format!("job {id} is still {state}: stopped waiting")))
        }
    }
}

/// Decides about a job that is no longer in the store: done without keep time, or not found. Dead jobs always stay.
fn resolve_missing_job(id: JobId, initial: Option<&JobView>, origin: JobOrigin) -> anyhow::Result<Option<JobView>> {
    let was_done = match initial {
        Some(job) => job.keep_ms == 0,
        None => origin == JobOrigin::JustPushed,
    };
    if was_done {
        return Ok(None);
    }
    Err(CliError::new(exit::NOT_FOUND, format!("job {id} not found: it was removed, or its keep time is over")))
}

/// Prints the result of a wait; a dead or cancelled job is an error.
pub(crate) fn print_result(setup: &Setup, job: Option<JobView>) -> anyhow::Result<()> {
    let job = job.map(|job| (job.state.parse::<State>(), job));
    match job {
        Some((Ok(State::Cancelled), job)) => Err(CliError::new(exit::FAILURE, format!("job {} was cancelled", job.id))),
        Some((Ok(State::Dead), job)) => {
            let error = job.failures.last().map_or("no error was recorded", |failure| failure.error.as_str());
            let reason = format!("job {} is dead: {}", job.id, escape_text(error.trim_end()));
            Err(CliError::new(exit::FAILURE, reason))
        }
        _ => {
            setup.out.print_hint("done");
            Ok(())
        }
    }
}
