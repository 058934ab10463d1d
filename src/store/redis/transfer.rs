//! Transfers of queues between stores: the transfer mark, batches with their checkpoint, and the removal of moved jobs.

use std::time::SystemTime;

use async_trait::async_trait;
use redis::Cmd;

use crate::clock::{Micros, micros, to_micros};
use crate::error::Result;
use crate::job::{Fence, JobId, JobRecord, JobRun, State, UniqueKey};
use crate::node::NodeId;
use crate::store::redis::jobs::settle;
use crate::store::redis::keys::QueueKeys;
use crate::store::redis::record;
use crate::store::redis::record::{DELAY_MAX, JobMeta};
use crate::store::redis::run_text;
use crate::store::redis::{Redis, script};
use crate::store::{TransferBatch, TransferBatchResult, TransferMark, TransferMarkReply, TransferStore};

#[async_trait]
impl TransferStore for Redis {
    async fn set_transfer_mark(&self, queue: &str, mover: NodeId, to: Option<&str>) -> Result<TransferMarkReply> {
        set_transfer_mark(self, queue, mover, to).await
    }

    async fn transfer_in(&self, batch: TransferBatch) -> Result<TransferBatchResult> {
        transfer_in(self, &batch).await
    }

    async fn transfer_out(&self, queue: &str, mover: NodeId, jobs: Vec<(JobId, SystemTime)>) -> Result<Option<usize>> {
        transfer_out(self, queue, mover, &jobs).await
    }
}

/// Implements `TransferStore::set_transfer_mark`.
pub(super) async fn set_transfer_mark(
    store: &Redis,
    queue: &str,
    mover: NodeId,
    to: Option<&str>,
) -> Result<TransferMarkReply> {
    let keys = store.register_queue("set_transfer_mark", queue).await?;
    let mut cmd = script::SET_TRANSFER_MARK.call(&*keys);
    cmd.arg(store.manual_now()).arg(&keys.channel).arg(mover.to_string()).arg(to.unwrap_or(""));
    let value = store.send_replicated("set_transfer_mark", &keys, Some(&script::SET_TRANSFER_MARK), &[cmd]).await?;
    let mut reply = store.parse_reply("set_transfer_mark", value)?;
    let mark = TransferMark::parse(&reply.text()?);
    let fence = reply.optional_int()?.unwrap_or(0);
    Ok(TransferMarkReply { mark, last_fence: Fence(fence.unsigned_abs()) })
}

/// Implements `TransferStore::transfer_in`.
pub(super) async fn transfer_in(store: &Redis, batch: &TransferBatch) -> Result<TransferBatchResult> {
    let is_query = batch.jobs.is_empty() && batch.checkpoint.replacement.is_none();
    let keys = match is_query {
        true => store.keys(&batch.queue),
        false => store.register_queue("transfer_in", &batch.queue).await?,
    };
    let cmd = batch_command(store, &keys, batch);
    let value = store.send_replicated("transfer_in", &keys, Some(&script::TRANSFER_IN), &[cmd]).await?;
    let mut reply = store.parse_reply("transfer_in", value)?;
    let (outcome, ids, checkpoint) = (reply.text()?, reply.ids()?, reply.text()?);
    Ok(match outcome.as_str() {
        "yes" => TransferBatchResult::Applied { skipped: ids },
        "taken" => TransferBatchResult::UniqueTaken(ids),
        _ => TransferBatchResult::CheckpointMismatch((!checkpoint.is_empty()).then_some(checkpoint)),
    })
}

fn batch_command(store: &Redis, keys: &QueueKeys, batch: &TransferBatch) -> Cmd {
    let mut cmd = script::TRANSFER_IN.call(keys);
    let text = |state: &Option<String>| state.clone().unwrap_or_default();
    cmd.arg(store.manual_now()).arg(&keys.channel).arg(format!("transfer:{}", batch.checkpoint.begun_by));
    cmd.arg(text(&batch.checkpoint.expected))
        .arg(text(&batch.checkpoint.replacement))
        .arg(format!("{:016}", batch.fence_floor.0));
    for record in &*batch.jobs {
        append_job(&mut cmd, record, micros(batch.keep_dead).min(DELAY_MAX));
    }
    cmd
}

/// Appends one job: id, ready ticket, record, meta, state, due or keep-until time, unique key, number of runs,
/// group or ack, description of the group, keep time, number of output fields, each run, each field.
fn append_job(cmd: &mut Cmd, record: &JobRecord, keep_dead: Micros) {
    let (job, due) = (&record.job, record::clamp_moment(record.due));
    let ended = record::clamp_moment(record.ended.unwrap_or(record.due));
    let (ack, runs) = record.split_runs();
    // The meta of a dead or cancelled job has the time of its end.
    let has_meta = matches!(record.state, State::Dead | State::Cancelled)
        || record.attempts > 0
        || record.crashes > 0
        || !runs.is_empty();
    let meta = JobMeta {
        due,
        changed_at: ended,
        attempts: record.attempts,
        crashes: record.crashes,
        runs: u32::try_from(runs.len()).unwrap_or(u32::MAX),
        ticket_number: 0,
    };
    let ticket = match has_meta {
        true => record::encode_ticket(job.id, job.priority, Some(meta.ticket_number)),
        false => job.id.as_bytes().to_vec(),
    };
    cmd.arg(job.id.as_bytes()).arg(ticket);
    cmd.arg(record::encode_job(job, due)).arg(if has_meta { meta.encode() } else { String::new() });
    match record.state {
        State::Ready | State::Running => cmd.arg("r").arg(due),
        State::Scheduled => cmd.arg("s").arg(due),
        State::Done => cmd.arg("d").arg(ended + micros(job.keep).min(DELAY_MAX)),
        State::Dead => cmd.arg("b").arg(ended + keep_dead),
        State::Cancelled => cmd.arg("c").arg(ended + keep_dead),
    };
    let key = job.unique.as_ref().map(UniqueKey::as_str).filter(|_| !record.state.is_final());
    cmd.arg(key.unwrap_or("")).arg(runs.len());
    let last_error = record.failures.last().map_or("", |failure| failure.error.as_str());
    let (group, description) = match record.state {
        State::Dead => settle::dead_group(&job.kind, last_error),
        _ => (ack.map_or(String::new(), encode_ack), String::new()),
    };
    let fields = output_fields(record);
    cmd.arg(group).arg(description).arg(micros(job.keep).min(DELAY_MAX)).arg(2 * fields.len());
    for run in runs {
        cmd.arg(run_text::encode_dated_run(run));
    }
    for (name, value) in fields {
        cmd.arg(name).arg(value);
    }
}

/// Encodes the run that made a job done, as settle stores it.
fn encode_ack(run: &JobRun) -> String {
    let (started, duration) = (run.started.unwrap_or(run.ended), run.duration.unwrap_or_default());
    run_text::encode_ack(run.node, started, duration, run.output.as_deref())
}

/// Returns the progress, log and result of a job as hash fields.
fn output_fields(record: &JobRecord) -> Vec<(String, String)> {
    let mut fields = Vec::new();
    for (n, line) in record.log.iter().enumerate() {
        fields.push((format!("l{}", n + 1), record::encode_log_line(line.at, line.attempt, &line.line)));
    }
    fields.extend(record.progress.iter().map(|progress| ("p".to_owned(), record::encode_progress(progress))));
    fields.extend(record.result.iter().map(|result| ("r".to_owned(), result.clone())));
    if !fields.is_empty() {
        fields.push(("n".to_owned(), record.log.len().to_string()));
    }
    fields
}

/// Implements `TransferStore::transfer_out`.
pub(super) async fn transfer_out(
    store: &Redis,
    queue: &str,
    mover: NodeId,
    jobs: &[(JobId, SystemTime)],
) -> Result<Option<usize>> {
    let keys = store.keys(queue);
    let mut cmd = script::TRANSFER_OUT.call(&*keys);
    cmd.arg(store.manual_now()).arg(mover.to_string());
    for (id, pushed) in jobs {
        cmd.arg(id.as_bytes()).arg(to_micros(*pushed));
    }
    let value = store.send_replicated("transfer_out", &keys, Some(&script::TRANSFER_OUT), &[cmd]).await?;
    Ok(usize::try_from(store.parse_reply("transfer_out", value)?.int()?).ok())
}
