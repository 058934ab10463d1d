//! A queue on its way to another store, or from one. Its mark and the note of a move are under our own keys: they hold up
//! duly's nodes, not Ruby's, which are to be stopped before.

use std::collections::HashSet;
use std::time::SystemTime;

use crate::clock::{micros, to_micros};
use crate::compat::sidekiq::find_job::{EntryPosition, LocatedEntry, locate_jobs};
use crate::compat::sidekiq::keys::EntryKeys;
use crate::compat::sidekiq::scripts::{MOVE_ENTRIES, TRANSFER_IN};
use crate::compat::sidekiq::{Sidekiq, edit, entry, mixed_list_error};
use crate::error::{Error, Result};
use crate::job::{JobId, JobRecord, Priority, State};
use crate::node::NodeId;
use crate::store::redis::ConnectionRole;
use crate::store::{TransferBatch, TransferBatchResult};

/// `move_in` of the contract.
pub(super) async fn transfer_in(store: &Sidekiq, batch: &TransferBatch) -> Result<TransferBatchResult> {
    let only_looks = batch.jobs.is_empty() && batch.checkpoint.replacement.is_none();
    let keys = match only_looks {
        true => store.redis.keys(&batch.queue),
        false => store.redis.register_queue("move_in", &batch.queue).await?,
    };
    let mut cmd = TRANSFER_IN.call(&EntryKeys::new(&store.keys, &keys));
    let note = |note: &Option<String>| note.clone().unwrap_or_default();
    cmd.arg(store.manual_now()).arg(&keys.channel).arg(format!("transfer:{}", batch.checkpoint.begun_by));
    cmd.arg(note(&batch.checkpoint.expected))
        .arg(note(&batch.checkpoint.replacement))
        .arg(format!("{:016}", batch.fence_floor.0));
    cmd.arg(&batch.queue).arg(micros(store.redis.options().remember));
    for record in &*batch.jobs {
        check_supported(record)?;
        let (place, moment) = target_key(record);
        let entry = entry::encode_record(record).map_err(|why| Error::invalid("args", why))?;
        cmd.arg(record.job.id.as_bytes()).arg(place).arg(moment).arg(entry);
    }
    let value = store.redis.send_replicated("move_in", &keys, Some(&TRANSFER_IN), &[cmd]).await?;
    let mut reply = store.redis.parse_reply("move_in", value)?;
    let (answer, ids, note) = (reply.text()?, reply.ids()?, reply.text()?);
    match answer.as_str() {
        "yes" => Ok(TransferBatchResult::Applied { skipped: ids }),
        "lost" => Ok(TransferBatchResult::CheckpointMismatch((!note.is_empty()).then_some(note))),
        why => Err(mixed_list_error(&batch.queue, why)),
    }
}

fn check_supported(record: &JobRecord) -> Result<()> {
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
fn target_key(record: &JobRecord) -> (&'static str, i64) {
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
pub(super) async fn transfer_out(
    store: &Sidekiq,
    queue: &str,
    mover: NodeId,
    jobs: &[(JobId, SystemTime)],
) -> Result<Option<usize>> {
    let mut seen: Vec<_> = {
        let known = store.state();
        jobs.iter().filter_map(|job| Some((*job, known.located.get(job)?.clone()))).collect()
    };
    // What was not seen is an earlier mover's.
    let mut unknown: HashSet<_> = jobs.iter().copied().collect();
    seen.iter().for_each(|(job, _)| _ = unknown.remove(job));
    seen.extend(locate_jobs(store, "move_out", queue, unknown).await?);
    let mut places: Vec<(EntryPosition, Vec<(JobId, LocatedEntry)>)> = Vec::new();
    for ((id, _), found) in seen.into_iter().filter(|(_, found)| found.queue == queue) {
        let same_place = |at: &EntryPosition| std::mem::discriminant(at) == std::mem::discriminant(&found.position);
        match places.iter_mut().find(|(at, _)| same_place(at)) {
            Some((_, of_place)) => of_place.push((id, found)),
            None => places.push((found.position, vec![(id, found)])),
        }
    }
    if places.is_empty() {
        places.push((EntryPosition::Ready, Vec::new()));
    }
    let mut gone = 0;
    for (at, entries) in places {
        let mut cmd = edit::move_command(store, queue, at, Some(mover), None);
        for (id, found) in &entries {
            cmd.arg(id.as_bytes()).arg(&found.bytes[..]).arg("");
        }
        let mut reply = store.run_script("move_out", ConnectionRole::Client, &MOVE_ENTRIES, &cmd).await?;
        reply.text()?;
        match usize::try_from(reply.int()?) {
            Ok(some) => gone += some,
            Err(_) => return Ok(None),
        }
    }
    Ok(Some(gone))
}
