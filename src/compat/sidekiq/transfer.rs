//! A queue on its way to another store, or from one. Its mark and the note of a move are under our own keys: they hold up
//! duly's nodes, not Ruby's, which are to be stopped before.

use std::collections::HashSet;
use std::time::SystemTime;

use crate::clock::{micros, to_micros};
use crate::compat::sidekiq::find_job::{At, Found, gather};
use crate::compat::sidekiq::keys::EntryKeys;
use crate::compat::sidekiq::scripts::{MOVE_ENTRIES, TRANSFER_IN};
use crate::compat::sidekiq::{Sidekiq, edit, entry, mixed};
use crate::error::{Error, Result};
use crate::job::{JobId, Priority, Record, State};
use crate::node::NodeId;
use crate::store::redis::Way;
use crate::store::{MoveIn, MovedIn};

/// `move_in` of the contract.
pub(super) async fn move_in(store: &Sidekiq, batch: &MoveIn) -> Result<MovedIn> {
    let only_looks = batch.jobs.is_empty() && batch.marker.is.is_none();
    let keys = match only_looks {
        true => store.redis.keys(&batch.queue),
        false => store.redis.register("move_in", &batch.queue).await?,
    };
    let mut cmd = TRANSFER_IN.call(&EntryKeys::new(&store.keys, &keys));
    let note = |note: &Option<String>| note.clone().unwrap_or_default();
    cmd.arg(store.manual_now()).arg(&keys.channel).arg(format!("transfer:{}", batch.marker.begun_by));
    cmd.arg(note(&batch.marker.was)).arg(note(&batch.marker.is)).arg(format!("{:016}", batch.fence.0));
    cmd.arg(&batch.queue).arg(micros(store.redis.options().remember));
    for record in &*batch.jobs {
        check(record)?;
        let (place, moment) = arrival(record);
        let entry = entry::write_record(record).map_err(|why| Error::invalid("args", why))?;
        cmd.arg(record.job.id.as_bytes()).arg(place).arg(moment).arg(entry);
    }
    let value = store.redis.deliver("move_in", &keys, Some(&TRANSFER_IN), &[cmd]).await?;
    let mut reply = store.redis.reply("move_in", value)?;
    let (answer, ids, note) = (reply.text()?, reply.ids()?, reply.text()?);
    match answer.as_str() {
        "yes" => Ok(MovedIn::Yes { known: ids }),
        "lost" => Ok(MovedIn::Lost((!note.is_empty()).then_some(note))),
        why => Err(mixed(&batch.queue, why)),
    }
}

fn check(record: &Record) -> Result<()> {
    if record.job.priority != Priority::Normal {
        return Err(Error::invalid("priority", format!("job {} has one, and Sidekiq has none", record.job.id)));
    }
    match &record.job.unique {
        Some(_) if !record.state.is_final() => {
            Err(Error::invalid("unique", format!("job {} has a unique key, and Sidekiq has none", record.job.id)))
        }
        _ => Ok(()),
    }
}

/// The place that a job goes to, as the script names it, and its time there.
fn arrival(record: &Record) -> (&'static str, i64) {
    let ended = to_micros(record.ended.unwrap_or(record.due));
    match record.state {
        State::Ready | State::Running => ("list", 0),
        State::Scheduled if record.attempts > 0 => ("retry", to_micros(record.due)),
        State::Scheduled => ("schedule", to_micros(record.due)),
        State::Dead => ("dead", ended),
        State::Done => ("done", ended + micros(record.job.keep)),
    }
}

/// `move_out` of the contract: place by place, each entry only if it is still there.
pub(super) async fn move_out(
    store: &Sidekiq,
    queue: &str,
    mover: NodeId,
    jobs: &[(JobId, SystemTime)],
) -> Result<Option<usize>> {
    let mut seen: Vec<_> = {
        let known = store.known();
        jobs.iter().filter_map(|job| Some((*job, known.seen.get(job)?.clone()))).collect()
    };
    // What was not seen is an earlier mover's.
    let mut unknown: HashSet<_> = jobs.iter().copied().collect();
    seen.iter().for_each(|(job, _)| _ = unknown.remove(job));
    seen.extend(gather(store, "move_out", queue, unknown).await?);
    let mut places: Vec<(At, Vec<(JobId, Found)>)> = Vec::new();
    for ((id, _), found) in seen.into_iter().filter(|(_, found)| found.queue == queue) {
        let same_place = |at: &At| std::mem::discriminant(at) == std::mem::discriminant(&found.at);
        match places.iter_mut().find(|(at, _)| same_place(at)) {
            Some((_, of_place)) => of_place.push((id, found)),
            None => places.push((found.at, vec![(id, found)])),
        }
    }
    if places.is_empty() {
        places.push((At::Ready, Vec::new()));
    }
    let mut gone = 0;
    for (at, entries) in places {
        let mut cmd = edit::begin(store, queue, at, Some(mover), None);
        for (id, found) in &entries {
            cmd.arg(id.as_bytes()).arg(&found.bytes[..]).arg("");
        }
        let mut reply = store.run("move_out", Way::Door, &MOVE_ENTRIES, &cmd).await?;
        reply.text()?;
        match usize::try_from(reply.int()?) {
            Ok(some) => gone += some,
            Err(_) => return Ok(None),
        }
    }
    Ok(Some(gone))
}
