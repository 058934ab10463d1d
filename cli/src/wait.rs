//! Waits until a job is done or dead, for `push --wait` and `jobs wait`.

use std::time::Duration;

use duly::{Duly, JobId, JobRecord, State};

use crate::Setup;
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
    duly: &Duly,
    id: JobId,
    timeout: Option<Duration>,
    origin: JobOrigin,
) -> anyhow::Result<Option<JobRecord>> {
    let initial = duly.jobs().get(id).await?;
    let waited = match timeout {
        Some(timeout) => tokio::time::timeout(timeout, duly.jobs().wait(id)).await,
        None => Ok(duly.jobs().wait(id).await),
    };
    match waited {
        Ok(result) => match result? {
            Some(record) => Ok(Some(record)),
            None => resolve_missing_job(id, initial.as_ref(), origin),
        },
        // The job may have ended at the last moment, or before the wait began.
        Err(_) => match duly.jobs().get(id).await? {
            Some(record) if record.state.is_final() => Ok(Some(record)),
            Some(record) => {
                Err(CliError::new(exit::TIMED_OUT, format!("job {id} is still {}: stopped waiting", record.state)))
            }
            None => resolve_missing_job(id, initial.as_ref(), origin),
        },
    }
}

/// Decides about a job that is no longer in the store: done without keep time, or not found. Dead jobs always stay.
fn resolve_missing_job(id: JobId, initial: Option<&JobRecord>, origin: JobOrigin) -> anyhow::Result<Option<JobRecord>> {
    let was_done = match initial {
        Some(record) => record.job.keep.is_zero(),
        None => origin == JobOrigin::JustPushed,
    };
    if was_done {
        return Ok(None);
    }
    Err(CliError::new(exit::NOT_FOUND, format!("job {id} not found: it was removed, or its keep time is over")))
}

/// Prints the result of a wait; a dead or cancelled job is an error.
pub(crate) fn print_result(setup: &Setup, record: Option<JobRecord>) -> anyhow::Result<()> {
    let Some(record) = record else {
        setup.out.print_hint("done");
        return Ok(());
    };
    if record.state == State::Cancelled {
        return Err(CliError::new(exit::FAILURE, format!("job {} was cancelled", record.job.id)));
    }
    if record.state == State::Dead {
        let error = record.failures.last().map_or("no error was recorded", |failure| failure.error.as_str());
        return Err(CliError::new(
            exit::FAILURE,
            format!("job {} is dead: {}", record.job.id, escape_text(error.trim_end())),
        ));
    }
    setup.out.print_hint("done");
    Ok(())
}
