//! Waiting until a job is done or dead: `push --wait` and `jobs wait`.

use std::time::Duration;

use duly::{Duly, JobId, Record, State};

use crate::Setup;
use crate::escape::safe;
use crate::exit::{self, Fail};
use crate::time;

/// The first look comes soon, later ones at leisure: waiting must not cost the store anything.
const LOOK_MIN: Duration = Duration::from_millis(20);
const LOOK_MAX: Duration = Duration::from_millis(500);

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
    let started = time::tick();
    let mut pause = LOOK_MIN;
    let mut seen: Option<Record> = None;
    // Ends with the job, or with the time that was allowed.
    loop {
        match duly.get(id).await? {
            Some(record) if record.state.is_final() => return Ok(Some(record)),
            Some(record) => seen = Some(record),
            None => return vanished(id, seen.as_ref(), known),
        }
        let left = at_most.map(|at_most| at_most.saturating_sub(started.elapsed()));
        if left == Some(Duration::ZERO) {
            let state = seen.map_or("gone", |record| record.state.as_str());
            return Err(Fail::new(exit::TIMED_OUT, format!("job {id} is still {state}: stopped waiting")));
        }
        tokio::time::sleep(pause.min(left.unwrap_or(pause))).await;
        pause = (pause * 3 / 2).min(LOOK_MAX);
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
