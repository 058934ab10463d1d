//! Transfer of a queue to or from another store. The transfer mark and the checkpoint are in duly's own keys: they
//! block duly nodes, but not Ruby processes, which must be stopped first.

use std::collections::HashSet;
use std::time::SystemTime;

use async_trait::async_trait;

use crate::clock::{micros, to_micros};
use crate::compat::sidekiq::find_job::{EntryPosition, LocatedEntry, locate_jobs};
use crate::compat::sidekiq::keys::EntryKeys;
use crate::compat::sidekiq::scripts::{MOVE_ENTRIES, TRANSFER_IN};
use crate::compat::sidekiq::{Sidekiq, edit, entry, mixed_list_error};
use crate::error::{Error, Result};
use crate::job::{JobId, JobRecord, Priority, State};
use crate::node::NodeId;
use crate::store::redis::{ConnectionRole, keyspace_id};
use crate::store::{TransferBatch, TransferBatchResult, TransferMarkReply, TransferStore};

#[async_trait]
impl TransferStore for Sidekiq {
    async fn set_transfer_mark(&self, queue: &str, mover: NodeId, to: Option<&str>) -> Result<TransferMarkReply> {
        self.redis.set_transfer_mark(queue, mover, to).await
    }

    async fn transfer_in(&self, batch: TransferBatch) -> Result<TransferBatchResult> {
        transfer_in(self, &batch).await
    }

    async fn transfer_out(&self, queue: &str, mover: NodeId, jobs: Vec<(JobId, SystemTime)>) -> Result<Option<usize>> {
        transfer_out(self, queue, mover, &jobs).await
    }

    async fn shared_keyspace(&self) -> Result<Option<String>> {
        Ok(Some(format!("{} {}", keyspace_id(&self.redis).await?, self.keys.queues)))
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
        State::Dead => ("dead", ended),
        State::Done => ("done", ended + micros(record.job.keep)),
    }
}

/// Implements `TransferStore::transfer_out`: removes each entry only if it is still at its position.
pub(super) async fn transfer_out(
    store: &Sidekiq,
    queue: &str,
    mover: NodeId,
    jobs: &[(JobId, SystemTime)],
) -> Result<Option<usize>> {
    let mut located: Vec<_> = {
        let state = store.state();
        jobs.iter().filter_map(|job| Some((*job, state.located.get(job)?.clone()))).collect()
    };
    // Jobs without a known position were listed by an earlier process of this transfer.
    let mut unknown: HashSet<_> = jobs.iter().copied().collect();
    located.iter().for_each(|(job, _)| _ = unknown.remove(job));
    located.extend(locate_jobs(store, "transfer_out", queue, unknown).await?);
    let mut sources: Vec<(EntryPosition, Vec<(JobId, LocatedEntry)>)> = Vec::new();
    for ((id, _), found) in located.into_iter().filter(|(_, found)| found.queue == queue) {
        let variant = std::mem::discriminant(&found.position);
        match sources.iter_mut().find(|(source, _)| std::mem::discriminant(source) == variant) {
            Some((_, entries)) => entries.push((id, found)),
            None => sources.push((found.position, vec![(id, found)])),
        }
    }
    if sources.is_empty() {
        sources.push((EntryPosition::Ready, Vec::new()));
    }
    let mut removed = 0;
    for (source, entries) in sources {
        let mut cmd = edit::move_command(store, queue, source, Some(mover), None);
        for (id, found) in &entries {
            cmd.arg(id.as_bytes()).arg(&found.bytes[..]).arg("");
        }
        let mut reply = store.run_script("transfer_out", ConnectionRole::Client, &MOVE_ENTRIES, &cmd).await?;
        reply.text()?;
        match usize::try_from(reply.int()?) {
            Ok(count) => removed += count,
            Err(_) => return Ok(None),
        }
    }
    Ok(Some(removed))
}
