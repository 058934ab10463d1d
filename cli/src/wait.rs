//! Waiting until a job is done or dead: `push --wait` and `jobs wait`.

use std::time::Duration;

use duly::{Duly, JobId, Record, State};

use crate::Setup;
use crate::escape::safe;
use crate::exit::{self, Fail};

/// What the caller knows of the job.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    /// It was in the store a moment ago.
    Pushed,
    /// Somebody named it.
    Named,
}

/// The job once it is done or dead; `None` if it was done and is not kept.
pub(crate) async fn until_final(
    duly: &Duly,
    id: JobId,
    at_most: Option<Duration>,
    known: Known,
) -> anyhow::Result<Option<Record>> {
    let seen = duly.get(id).await?;
    let ended = match at_most {
        Some(at_most) => tokio::time::timeout(at_most, duly.wait(id)).await,
        None => Ok(duly.wait(id).await),
    };
    match ended {
        Ok(ended) => match ended? {
            Some(record) => Ok(Some(record)),
            None => vanished(id, seen.as_ref(), known),
        },
        // It may have ended in the last moment, or before anybody waited.
        Err(_) => match duly.get(id).await? {
            Some(record) if record.state.is_final() => Ok(Some(record)),
            Some(record) => {
                Err(Fail::new(exit::TIMED_OUT, format!("job {id} is still {}: stopped waiting", record.state)))
            }
            None => vanished(id, seen.as_ref(), known),
        },
    }
}

/// Done jobs that are not kept leave no trace; dead ones always do.
fn vanished(id: JobId, seen: Option<&Record>, known: Known) -> anyhow::Result<Option<Record>> {
    let gone = match seen {
        Some(record) => record.job.keep.is_zero(),
        None => known == Known::Pushed,
    };
    if gone {
        return Ok(None);
    }
    Err(Fail::new(exit::NOT_FOUND, format!("no job {id} in the store: it was removed, or its keep time is over")))
}

/// Says how it ended; a dead job is a failure.
pub(crate) fn tell(setup: &Setup, record: Option<Record>) -> anyhow::Result<()> {
    let Some(record) = record else {
        setup.out.say_to_people("done");
        return Ok(());
    };
    if record.state == State::Dead {
        let error = record.failures.last().map_or("no error was recorded", |failure| failure.error.as_str());
        return Err(Fail::new(exit::FAILURE, format!("job {} is dead: {}", record.job.id, safe(error.trim_end()))));
    }
    setup.out.say_to_people("done");
    Ok(())
}
