//! Transfer of a queue to or from another store. The transfer mark and the checkpoint are in duly's own keys: they
//! block duly nodes, but not Ruby processes. Therefore a transfer first reserves each batch: it takes the entries out of
//! Ruby's reach, and copies only those.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;

use crate::clock::{micros, to_micros};
use crate::compat::sidekiq::find_job::{EntryPosition, locate_jobs};
use crate::compat::sidekiq::keys::EntryKeys;
use crate::compat::sidekiq::scripts::{TRANSFER_IN, TRANSFER_OUT, TRANSFER_RESERVE};
use crate::compat::sidekiq::{Sidekiq, entry, mixed_list_error, process};
use crate::error::{ConflictKind, Error, Result};
use crate::job::{JobId, JobRecord, Priority, State};
use crate::node::NodeId;
use crate::store::redis::keyspace_id;
use crate::store::{
    ForeignProcess, SharedKeysStore, TransferBatch, TransferBatchResult, TransferMarkReply, TransferStore,
};

/// Identifies a job of a transfer: its id, which several entries may have, and when it was pushed.
type TransferKey = (JobId, SystemTime);

#[async_trait]
impl TransferStore for Sidekiq {
    async fn set_transfer_mark(&self, queue: &str, mover: NodeId, to: Option<&str>) -> Result<TransferMarkReply> {
        if to.is_none() {
            // Puts back what an interrupted transfer has reserved. Without the mark, nothing would put back the rest.
            let kept = transfer_out(self, queue, mover, &[]).await?.map_or(0, |reply| reply.kept);
            if kept > 0 {
                return Err(kept_reserved_error(&self.keys.queue_key(queue), kept));
            }
        }
        self.redis.set_transfer_mark(queue, mover, to).await
    }

    async fn transfer_in(&self, batch: TransferBatch) -> Result<TransferBatchResult> {
        transfer_in(self, &batch).await
    }

    async fn transfer_out(&self, queue: &str, mover: NodeId, jobs: Vec<TransferKey>) -> Result<Option<usize>> {
        Ok(transfer_out(self, queue, mover, &jobs).await?.map(|reply| reply.deleted))
    }
}

#[async_trait]
impl SharedKeysStore for Sidekiq {
    async fn transfer_reserve(
        &self,
        queue: &str,
        mover: NodeId,
        jobs: Vec<TransferKey>,
    ) -> Result<Option<Vec<TransferKey>>> {
        transfer_reserve(self, queue, mover, &jobs).await
    }

    async fn foreign_processes(&self) -> Result<Vec<ForeignProcess>> {
        process::ruby_processes(self, "move").await
    }

    async fn shared_keyspace(&self) -> Result<String> {
        Ok(format!("{} {}", keyspace_id(&self.redis).await?, self.keys.queues))
    }
}

/// Implements `TransferStore::transfer_in`.
pub(super) async fn transfer_in(store: &Sidekiq, batch: &TransferBatch) -> Result<TransferBatchResult> {
    let is_read_only = batch.jobs.is_empty() && batch.checkpoint.replacement.is_none();
    let keys = match is_read_only {
        true => store.redis.keys(&batch.queue),
        false => store.redis.register_queue("transfer_in", &batch.queue).await?,
    };
    let mut cmd = TRANSFER_IN.call(&EntryKeys::new(&store.keys, &keys));
    let text = |checkpoint: &Option<String>| checkpoint.clone().unwrap_or_default();
    cmd.arg(store.manual_now()).arg(&keys.channel).arg(format!("transfer:{}", batch.checkpoint.begun_by));
    cmd.arg(text(&batch.checkpoint.expected))
        .arg(text(&batch.checkpoint.replacement))
        .arg(format!("{:016}", batch.fence_floor.0));
    cmd.arg(&batch.queue).arg(micros(store.redis.options().remember_ids));
    for record in &*batch.jobs {
        check_supported(record)?;
        let (target, score) = target_key(record);
        let entry = entry::encode_record(record).map_err(|error| Error::invalid("args", error))?;
        cmd.arg(record.job.id.as_bytes()).arg(target).arg(score).arg(entry);
    }
    let value = store.redis.send_replicated("transfer_in", &keys, Some(&TRANSFER_IN), &[cmd]).await?;
    let mut reply = store.redis.parse_reply("transfer_in", value)?;
    let (status, skipped, checkpoint) = (reply.text()?, reply.ids()?, reply.text()?);
    match status.as_str() {
        "yes" => Ok(TransferBatchResult::Applied { skipped }),
        "lost" => Ok(TransferBatchResult::CheckpointMismatch((!checkpoint.is_empty()).then_some(checkpoint))),
        reason => Err(mixed_list_error(&batch.queue, reason)),
    }
}

fn check_supported(record: &JobRecord) -> Result<()> {
    if record.job.priority != Priority::Normal {
        return Err(Error::invalid("priority", format!("job {} has a priority, and Sidekiq has none", record.job.id)));
    }
    match &record.job.unique {
        Some(_) if !record.state.is_final() => {
            Err(Error::invalid("unique", format!("job {} has a unique key, and Sidekiq has none", record.job.id)))
        }
        _ => Ok(()),
    }
}

/// Returns the script's name for the key that a job goes to, and its score there.
fn target_key(record: &JobRecord) -> (&'static str, i64) {
    let ended = to_micros(record.ended.unwrap_or(record.due));
    match record.state {
        State::Ready | State::Running => ("list", 0),
        State::Scheduled if record.attempts > 0 => ("retry", to_micros(record.due)),
        State::Scheduled => ("schedule", to_micros(record.due)),
        // Sidekiq has no cancelled jobs; its dead jobs do not run again either.
        State::Dead | State::Cancelled => ("dead", ended),
        State::Done => ("done", ended + micros(record.job.keep)),
    }
}

/// Implements `SharedKeysStore::transfer_reserve`: reserves each entry only if it is still in its position, so that a job is
/// either taken by Ruby or copied, but not both.
async fn transfer_reserve(
    store: &Sidekiq,
    queue: &str,
    mover: NodeId,
    jobs: &[TransferKey],
) -> Result<Option<Vec<TransferKey>>> {
    let mut located: Vec<_> = {
        let state = store.state();
        jobs.iter().filter_map(|job| Some((*job, state.located.get(job)?.clone()))).collect()
    };
    let mut unknown: HashSet<_> = jobs.iter().copied().collect();
    located.iter().for_each(|(job, _)| _ = unknown.remove(job));
    let mut reserved = Vec::with_capacity(jobs.len());
    if !unknown.is_empty() {
        // Not listed right before: a call whose reply was lost has reserved them, or they are still in their positions.
        let entries: Vec<_> = unknown.iter().map(|job| (*job, Arc::from([]))).collect();
        let Some(already) = reserve_entries(store, queue, mover, None, &entries).await? else {
            return Ok(None);
        };
        already.iter().for_each(|job| _ = unknown.remove(job));
        reserved.extend(already);
        located.extend(locate_jobs(store, "transfer_reserve", queue, unknown).await?);
    }
    let mut sources: Vec<(EntryPosition, Vec<KeyedEntry>)> = Vec::new();
    for (job, found) in located.into_iter().filter(|(_, found)| found.queue == queue) {
        let variant = std::mem::discriminant(&found.position);
        match sources.iter_mut().find(|(source, _)| std::mem::discriminant(source) == variant) {
            Some((_, entries)) => entries.push((job, found.bytes)),
            None => sources.push((found.position, vec![(job, found.bytes)])),
        }
    }
    for (source, entries) in sources {
        match reserve_entries(store, queue, mover, Some(source), &entries).await? {
            Some(now_reserved) => reserved.extend(now_reserved),
            None => return Ok(None),
        }
    }
    Ok(Some(reserved))
}

/// A job of a transfer, and the entry of Sidekiq that is this job.
type KeyedEntry = (TransferKey, Arc<[u8]>);

/// Reserves the entries at this position; without one, only returns which are reserved already.
async fn reserve_entries(
    store: &Sidekiq,
    queue: &str,
    mover: NodeId,
    source: Option<EntryPosition>,
    entries: &[(TransferKey, Arc<[u8]>)],
) -> Result<Option<Vec<TransferKey>>> {
    let (keys, list) = (store.redis.keys(queue), store.keys.queue_key(queue));
    let (key, name) = match source {
        None => (&list, "reserved"),
        Some(EntryPosition::Ready) => (&list, "list"),
        Some(EntryPosition::Schedule(_)) => (&store.keys.schedule, "schedule"),
        Some(EntryPosition::Retry(_)) => (&store.keys.retry, "retry"),
        Some(EntryPosition::Dead(_)) => (&store.keys.dead, "dead"),
        Some(EntryPosition::Done(_)) => (&keys.done, "done"),
        Some(EntryPosition::Running(..) | EntryPosition::Reserved(..)) => return Ok(Some(Vec::new())),
    };
    let mut cmd = TRANSFER_RESERVE.call(&EntryKeys::new(&store.keys, &keys).between(key, "").reserved());
    cmd.arg(store.manual_now()).arg(mover.to_string()).arg(name);
    for (job, bytes) in entries {
        cmd.arg(reserved_field(*job)).arg(job.0.as_bytes()).arg(&bytes[..]);
    }
    // A reservation that a failover undid would give Ruby jobs that the target has too.
    let value = store.redis.send_replicated("transfer_reserve", &keys, Some(&TRANSFER_RESERVE), &[cmd]).await?;
    let mut reply = store.redis.parse_reply("transfer_reserve", value)?;
    if reply.text()? != "marked" {
        return Ok(None);
    }
    let parse = |text: &Option<Vec<u8>>| std::str::from_utf8(text.as_deref()?).ok()?.parse::<usize>().ok();
    let numbers = reply.list()?;
    Ok(Some(numbers.iter().filter_map(parse).filter_map(|number| entries.get(number - 1)).map(|e| e.0).collect()))
}

/// The result of `transfer_out`.
struct TransferOutReply {
    /// Entries that were deleted.
    deleted: usize,
    /// Entries that stay reserved, because the key of their queue has a value of another type.
    kept: usize,
}

/// Implements `TransferStore::transfer_out`.
async fn transfer_out(
    store: &Sidekiq,
    queue: &str,
    mover: NodeId,
    jobs: &[TransferKey],
) -> Result<Option<TransferOutReply>> {
    let keys = store.redis.keys(queue);
    let mut cmd = TRANSFER_OUT.call(&EntryKeys::new(&store.keys, &keys).reserved());
    cmd.arg(store.manual_now()).arg(&keys.channel).arg(mover.to_string());
    for job in jobs {
        cmd.arg(reserved_field(*job)).arg(job.0.as_bytes());
    }
    let value = store.redis.send_replicated("transfer_out", &keys, Some(&TRANSFER_OUT), &[cmd]).await?;
    let mut reply = store.redis.parse_reply("transfer_out", value)?;
    let status = reply.text()?;
    let mut count = || reply.int().map(|count| usize::try_from(count).unwrap_or(0));
    let reply = TransferOutReply { deleted: count()?, kept: count()? };
    Ok(Some(reply).filter(|_| status == "marked"))
}

fn kept_reserved_error(key: &str, kept: usize) -> Error {
    Error::conflict(
        ConflictKind::InUse,
        format!(
            "{kept} jobs that a move has reserved cannot return to {key:?}, because that key is not a list; rename or delete the key, then repeat this"
        ),
    )
}

/// Returns the field of a reserved entry: id and push time, which an entry keeps in all its positions.
fn reserved_field((id, pushed): TransferKey) -> Vec<u8> {
    [&id.as_bytes()[..], to_micros(pushed).to_string().as_bytes()].concat()
}
