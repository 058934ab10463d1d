//! A queue on its way to another store, or from one: the mark, batches with their marker, and what has gone.

use std::time::SystemTime;

use redis::Cmd;

use crate::clock::{Micros, micros, to_micros};
use crate::error::Result;
use crate::job::{Fence, JobId, JobRecord, State};
use crate::node::NodeId;
use crate::store::redis::jobs::settle;
use crate::store::redis::keys::QueueKeys;
use crate::store::redis::record;
use crate::store::redis::record::{DELAY_MAX, JobMeta};
use crate::store::redis::{Redis, script};
use crate::store::{TransferBatch, TransferBatchResult, TransferMark, TransferMarkReply};

/// `set_moving` of the contract.
pub(super) async fn set_transfer_mark(
    store: &Redis,
    queue: &str,
    mover: NodeId,
    to: Option<&str>,
) -> Result<TransferMarkReply> {
    let keys = store.register_queue("set_moving", queue).await?;
    let mut cmd = script::SET_TRANSFER_MARK.call(&*keys);
    cmd.arg(store.manual_now()).arg(&keys.channel).arg(mover.to_string()).arg(to.unwrap_or(""));
    let value = store.send_replicated("set_moving", &keys, Some(&script::SET_TRANSFER_MARK), &[cmd]).await?;
    let mut reply = store.parse_reply("set_moving", value)?;
    let moving = TransferMark::parse(&reply.text()?);
    let fence = reply.optional_int()?.unwrap_or(0);
    Ok(TransferMarkReply { mark: moving, last_fence: Fence(fence.unsigned_abs()) })
}

/// `move_in` of the contract.
pub(super) async fn transfer_in(store: &Redis, batch: &TransferBatch) -> Result<TransferBatchResult> {
    let only_looks = batch.jobs.is_empty() && batch.checkpoint.replacement.is_none();
    let keys = match only_looks {
        true => store.keys(&batch.queue),
        false => store.register_queue("move_in", &batch.queue).await?,
    };
    let cmd = batch_command(store, &keys, batch);
    let value = store.send_replicated("move_in", &keys, Some(&script::TRANSFER_IN), &[cmd]).await?;
    let mut reply = store.parse_reply("move_in", value)?;
    let (answer, ids, note) = (reply.text()?, reply.ids()?, reply.text()?);
    Ok(match answer.as_str() {
        "yes" => TransferBatchResult::Applied { skipped: ids },
        "taken" => TransferBatchResult::UniqueTaken(ids),
        _ => TransferBatchResult::CheckpointMismatch((!note.is_empty()).then_some(note)),
    })
}

fn batch_command(store: &Redis, keys: &QueueKeys, batch: &TransferBatch) -> Cmd {
    let mut cmd = script::TRANSFER_IN.call(keys);
    let note = |note: &Option<String>| note.clone().unwrap_or_default();
    cmd.arg(store.manual_now()).arg(&keys.channel).arg(format!("transfer:{}", batch.checkpoint.begun_by));
    cmd.arg(note(&batch.checkpoint.expected))
        .arg(note(&batch.checkpoint.replacement))
        .arg(format!("{:016}", batch.fence_floor.0));
    for record in &*batch.jobs {
        append_job(&mut cmd, record, micros(batch.keep_dead).min(DELAY_MAX));
    }
    cmd
}

/// One job: id, ready ticket, record, meta, where it is, due or until, unique key, how many failures, its group, how long it is
/// kept when done, how many fields of notes, each failure, each field.
fn append_job(cmd: &mut Cmd, record: &JobRecord, keep_dead: Micros) {
    let (job, due) = (&record.job, record::clamp_moment(record.due));
    let ended = record::clamp_moment(record.ended.unwrap_or(record.due));
    // A dead job says in its meta when it died.
    let in_trouble =
        record.state == State::Dead || record.attempts > 0 || record.crashes > 0 || !record.failures.is_empty();
    let meta = JobMeta {
        due,
        changed_at: ended,
        attempts: record.attempts,
        crashes: record.crashes,
        failures: u32::try_from(record.failures.len()).unwrap_or(u32::MAX),
        ticket_number: 0,
    };
    let ticket = match in_trouble {
        true => record::encode_ticket(job.id, job.priority, Some(meta.ticket_number)),
        false => job.id.as_bytes().to_vec(),
    };
    cmd.arg(job.id.as_bytes()).arg(ticket);
    cmd.arg(record::encode_job(job, due)).arg(if in_trouble { meta.encode() } else { String::new() });
    match record.state {
        State::Ready | State::Running => cmd.arg("r").arg(due),
        State::Scheduled => cmd.arg("s").arg(due),
        State::Done => cmd.arg("d").arg(ended + micros(job.keep).min(DELAY_MAX)),
        State::Dead => cmd.arg("b").arg(ended + keep_dead),
    };
    let key = job.unique.as_deref().filter(|_| !record.state.is_final());
    cmd.arg(key.unwrap_or("")).arg(record.failures.len());
    let died_of = record.failures.last().map_or("", |failure| failure.error.as_str());
    let (group, what) = match record.state {
        State::Dead => settle::dead_group(&job.kind, died_of),
        _ => (String::new(), String::new()),
    };
    let notes = output_fields(record);
    cmd.arg(group).arg(what).arg(micros(job.keep).min(DELAY_MAX)).arg(2 * notes.len());
    for failed in &record.failures {
        let rest = record::encode_failure(failed.attempt, failed.node, &failed.error);
        cmd.arg(format!("{:016}{rest}", record::clamp_moment(failed.at)));
    }
    for (name, value) in notes {
        cmd.arg(name).arg(value);
    }
}

/// What a job has said, as fields of its notes.
fn output_fields(record: &JobRecord) -> Vec<(String, String)> {
    let mut notes = Vec::new();
    for (n, said) in record.log.iter().enumerate() {
        notes.push((format!("l{}", n + 1), record::encode_log_line(said.at, said.attempt, &said.line)));
    }
    notes.extend(record.progress.iter().map(|progress| ("p".to_owned(), record::encode_progress(progress))));
    notes.extend(record.result.iter().map(|result| ("r".to_owned(), result.clone())));
    if !notes.is_empty() {
        notes.push(("n".to_owned(), record.log.len().to_string()));
    }
    notes
}

/// `move_out` of the contract.
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
    let value = store.send_replicated("move_out", &keys, Some(&script::TRANSFER_OUT), &[cmd]).await?;
    Ok(usize::try_from(store.parse_reply("move_out", value)?.int()?).ok())
}
