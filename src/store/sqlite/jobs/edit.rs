//! Changes to jobs that are not running: edits of one job, and bulk changes.

use rusqlite::params;

use crate::job::push::Due;
use crate::job::{Job, JobId, State};
use crate::store::sqlite::jobs::counts::Of;
use crate::store::sqlite::jobs::state;
use crate::store::sqlite::jobs::state::{DONE, Place};
use crate::store::sqlite::rows::{Body, JOB_COLUMNS, checked, rank};
use crate::store::sqlite::tx::Tx;
use crate::store::{CHANGE_MAX, Edit, Moved, Target};

/// Implements `edit` of the store contract.
pub(crate) fn edit(tx: &Tx<'_>, id: JobId, edit: &Edit) -> rusqlite::Result<Moved> {
    let Some(job_no) = state::find(tx.conn, id)? else {
        return Ok(Moved::NotFound);
    };
    let place = match state::find_place(tx.conn, job_no)? {
        Some(Place::Held { .. }) => return Ok(Moved::Running),
        None => return Ok(Moved::NotFound),
        Some(_) if state::is_moving(tx, job_no)? => return Ok(Moved::Moving),
        Some(place) => place,
    };
    let (bytes, queue) = state::size(tx, job_no)?;
    let (job, whole) = tx
        .statement(&format!("SELECT {JOB_COLUMNS} FROM duly_job j WHERE j.job_no = ?1"))?
        .query_row([job_no], |row| checked(row, String::new()))?;
    if !whole {
        return Ok(Moved::Unreadable);
    }
    if let Some(args) = &edit.args {
        set_args(tx, job_no, Job { args: args.clone(), ..job })?;
        if !matches!(place, Place::Ended { .. }) {
            tx.add(queue, Of::Bytes, args.len() as i64 - bytes);
        }
    }
    if let Some(priority) = edit.priority {
        set_priority(tx, job_no, &place, rank(priority))?;
    }
    Ok(Moved::Yes)
}

/// Writes new args and their checksum.
fn set_args(tx: &Tx<'_>, job_no: i64, job: Job) -> rusqlite::Result<()> {
    let tags = (!job.tags.is_empty()).then(|| job.tags.join(" "));
    let sum = Body::of(&job, tags.as_deref()).sum();
    tx.statement("UPDATE duly_job SET args = ?2, checksum = ?3 WHERE job_no = ?1")?
        .execute(params![job_no, job.args, sum])?;
    Ok(())
}

/// Changes the priority. A ready job moves to the tail of its new priority.
fn set_priority(tx: &Tx<'_>, job_no: i64, place: &Place, priority: i64) -> rusqlite::Result<()> {
    let was: i64 =
        tx.statement("SELECT priority FROM duly_job WHERE job_no = ?1")?.query_row([job_no], |row| row.get(0))?;
    if was == priority {
        return Ok(());
    }
    match place {
        Place::Ready { seq, .. } => {
            tx.statement(
                "UPDATE duly_ready SET priority = ?3, seq = ?4
                  WHERE (queue_no, priority, seq) = (SELECT queue_no, priority, ?2 FROM duly_job WHERE job_no = ?1)",
            )?
            .execute(params![job_no, seq, priority, tx.number()?])?;
        }
        Place::Scheduled { .. } => {
            tx.statement("UPDATE duly_scheduled SET priority = ?2 WHERE job_no = ?1")?
                .execute(params![job_no, priority])?;
        }
        Place::Ended { .. } | Place::Held { .. } => {}
    }
    tx.statement("UPDATE duly_job SET priority = ?2 WHERE job_no = ?1")?.execute(params![job_no, priority])?;
    Ok(())
}

/// Implements `remove_all` of the store contract.
pub(crate) fn remove_all(tx: &Tx<'_>, targets: &[Target]) -> rusqlite::Result<Vec<Moved>> {
    each(tx, targets, |id| state::remove(tx, id))
}

/// Implements `reschedule_all` of the store contract.
pub(crate) fn reschedule_all(tx: &Tx<'_>, targets: &[Target], due: Due) -> rusqlite::Result<Vec<Moved>> {
    each(tx, targets, |id| state::reschedule(tx, id, due))
}

fn each(
    tx: &Tx<'_>,
    targets: &[Target],
    mut change: impl FnMut(JobId) -> rusqlite::Result<Moved>,
) -> rusqlite::Result<Vec<Moved>> {
    let seen = targets.iter().take(CHANGE_MAX).map(|target| match state_of(tx, target.id)? {
        None => Ok(Moved::NotFound),
        Some(State::Running) => Ok(Moved::Running),
        Some(state) if state != target.state => Ok(Moved::Changed),
        Some(_) => change(target.id),
    });
    seen.collect()
}

fn state_of(tx: &Tx<'_>, id: JobId) -> rusqlite::Result<Option<State>> {
    let Some(job_no) = state::find(tx.conn, id)? else {
        return Ok(None);
    };
    Ok(state::find_place(tx.conn, job_no)?.map(|place| match place {
        Place::Scheduled { .. } => State::Scheduled,
        Place::Ready { .. } => State::Ready,
        Place::Held { .. } => State::Running,
        Place::Ended { state, .. } if state == DONE => State::Done,
        Place::Ended { .. } => State::Dead,
    }))
}
