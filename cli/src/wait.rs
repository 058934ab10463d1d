//! Waiting until a job is done or dead: `push --wait` and `jobs wait`.

use std::time::Duration;

use duly::{Duly, JobId, JobRecord, State};

use crate::Setup;
use crate::escape::escape_text;
use crate::exit::{self, CliError};

/// What the caller knows of the job.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum JobOrigin {
    /// It was in the store a moment ago.
    JustPushed,
    /// Somebody named it.
    GivenById,
}

/// The job once it is done or dead; `None` if it was done and is not kept.
pub(crate) async fn wait_until_final(
    duly: &Duly,
    id: JobId,
    at_most: Option<Duration>,
    known: JobOrigin,
) -> anyhow::Result<Option<JobRecord>> {
    let seen = duly.get(id).await?;
    let ended = match at_most {
        Some(at_most) => tokio::time::timeout(at_most, duly.wait(id)).await,
        None => Ok(duly.wait(id).await),
    };
    match ended {
        Ok(ended) => match ended? {
            Some(record) => Ok(Some(record)),
            None => resolve_missing_job(id, seen.as_ref(), known),
        },
        // It may have ended in the last moment, or before anybody waited.
        Err(_) => match duly.get(id).await? {
            Some(record) if record.state.is_final() => Ok(Some(record)),
            Some(record) => {
                Err(CliError::new(exit::TIMED_OUT, format!("job {id} is still {}: stopped waiting", record.state)))
            }
            None => resolve_missing_job(id, seen.as_ref(), known),
        },
    }
}

/// Done jobs that are not kept leave no trace; dead ones always do.
fn resolve_missing_job(id: JobId, seen: Option<&JobRecord>, known: JobOrigin) -> anyhow::Result<Option<JobRecord>> {
    let gone = match seen {
        Some(record) => record.job.keep.is_zero(),
        None => known == JobOrigin::JustPushed,
    };
    if gone {
        return Ok(None);
    }
    Err(CliError::new(exit::NOT_FOUND, format!("no job {id} in the store: it was removed, or its keep time is over")))
}

/// Says how it ended; a dead job is a failure.
pub(crate) fn print_result(setup: &Setup, record: Option<JobRecord>) -> anyhow::Result<()> {
    let Some(record) = record else {
        setup.out.print_hint("done");
        return Ok(());
    };
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
