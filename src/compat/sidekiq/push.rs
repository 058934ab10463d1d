//! Pushes jobs into their queues or the schedule, with one operation per queue.

use std::collections::HashSet;

use super::keys::EntryKeys;
use super::scripts::PUSH;
use super::{Sidekiq, entry, mixed_list_error};
use crate::clock::{Micros, micros, to_micros};
use crate::compat::sidekiq::find_job;
use crate::error::{Error, Result};
use crate::job::push::{Due, Push, PushResult};
use crate::job::{JobId, Priority};
use crate::store::redis::{ScriptReply, partially_applied};

/// Most times a push is sent again after its reply was lost.
const RESENDS_MAX: usize = 3;
/// Most entries of a queue and the sets that are scanned for a caller's own id; with more, only remembered ids count.
const ID_SCAN_MAX: usize = 10_000;
/// The latest time at which a score still has microsecond precision, and the longest delay.
const DUE_MAX: Micros = 4_000_000_000_000_000;

/// A job ready to be sent.
struct PreparedJob {
    index: usize,
    id: JobId,
    entry: String,
    /// The due time, or `+` and a delay; `None` means now.
    due: Option<String>,
}

/// Implements `JobStore::push`.
pub(super) async fn push(store: &Sidekiq, jobs: Vec<Push>) -> Result<Vec<PushResult>> {
    let now = store.now();
    let mut queues: Vec<(&str, Vec<PreparedJob>)> = Vec::new();
    for (index, job) in jobs.iter().enumerate() {
        check_supported(job)?;
        let due = due_argument(job.due, now);
        let entry = entry::encode_push(job, now, due.is_none()).map_err(|error| Error::invalid("args", error))?;
        let prepared = PreparedJob { index, id: job.id, entry, due };
        match queues.iter_mut().find(|(queue, _)| *queue == job.queue) {
            Some((_, of_queue)) => of_queue.push(prepared),
            None => queues.push((&job.queue, vec![prepared])),
        }
    }
    let mut results: Vec<Option<PushResult>> = jobs.iter().map(|_| None).collect();
    for (queue_index, (queue, prepared)) in queues.into_iter().enumerate() {
        let pushed = push_queue(store, queue, &jobs, prepared, &mut results).await;
        pushed.map_err(|error| if queue_index > 0 { partially_applied(error) } else { error })?;
    }
    Ok(results.into_iter().zip(&jobs).map(|(result, job)| result.unwrap_or(PushResult::New(job.id))).collect())
}

/// Pushes the jobs of one queue that do not exist yet, and sets the result of each.
async fn push_queue(
    store: &Sidekiq,
    queue: &str,
    jobs: &[Push],
    mut prepared: Vec<PreparedJob>,
    results: &mut [Option<PushResult>],
) -> Result<()> {
    let chosen: HashSet<JobId> =
        prepared.iter().map(|job| &jobs[job.index]).filter(|push| !push.has_fresh_id).map(|push| push.id).collect();
    let existing = find_job::find_existing_ids(store, "push", queue, &chosen, ID_SCAN_MAX).await?;
    let mut seen = HashSet::with_capacity(prepared.len());
    prepared.retain(|job| {
        let is_new = !existing.contains(&job.id) && seen.insert(job.id);
        if !is_new {
            results[job.index] = Some(PushResult::Existing(job.id));
        }
        is_new
    });
    let remembered = send(store, queue, &prepared, !chosen.is_empty()).await?;
    for job in &prepared {
        let is_new = jobs[job.index].has_fresh_id || !remembered.contains(&job.id);
        results[job.index] = Some(if is_new { PushResult::New(job.id) } else { PushResult::Existing(job.id) });
    }
    Ok(())
}

/// Rejects options that Sidekiq's format cannot express: a Ruby process that runs the job would ignore them.
pub(super) fn check_supported(job: &Push) -> Result<()> {
    if job.priority != Priority::Normal {
        return Err(Error::invalid("priority", "Sidekiq has no priorities within a queue; use a separate queue"));
    }
    if job.unique.is_some() {
        let reason =
            "Sidekiq has no unique keys: a Ruby process that ran the job would not free it; choose an id instead";
        return Err(Error::invalid("unique", reason));
    }
    Ok(())
}

/// Sends the jobs of one queue, again if the reply is lost. Returns the ids that already existed.
///
/// After a lost reply, these may include jobs of the first request; only a fresh id shows that a job is new.
async fn send(store: &Sidekiq, queue: &str, prepared: &[PreparedJob], chosen: bool) -> Result<HashSet<JobId>> {
    if prepared.is_empty() {
        return Ok(HashSet::new());
    }
    let mut lost = false;
    for _ in 0..RESENDS_MAX {
        match send_once(store, queue, prepared, chosen || lost).await {
            Err(Error::Unknown { cause, .. }) if store.redis.options().replicas == 0 => {
                tracing::debug!(?cause, "the reply to a push was lost; sending it again");
                lost = true;
            }
            // The request with the lost reply may have been applied, even though this one failed.
            Err(error) if lost => return Err(partially_applied(error)),
            other => return Ok(other?.ids()?.into_iter().collect()),
        }
    }
    let existing = send_once(store, queue, prepared, true).await.map_err(partially_applied)?.ids()?;
    Ok(existing.into_iter().collect())
}

async fn send_once(store: &Sidekiq, queue: &str, prepared: &[PreparedJob], check_ids: bool) -> Result<ScriptReply> {
    let keys = store.redis.register_queue("push", queue).await?;
    let mut cmd = PUSH.call(&EntryKeys::new(&store.keys, &keys));
    cmd.arg(store.manual_now()).arg(&keys.channel).arg(micros(store.redis.options().remember_ids)).arg(queue);
    cmd.arg(u8::from(check_ids)).arg(prepared.iter().filter(|job| job.due.is_none()).count());
    for job in prepared.iter().filter(|job| job.due.is_none()) {
        cmd.arg(job.id.as_bytes()).arg(&job.entry);
    }
    for (job, due) in prepared.iter().filter_map(|job| Some((job, job.due.as_ref()?))) {
        cmd.arg(job.id.as_bytes()).arg(&job.entry).arg(due);
    }
    let value = store.redis.send_replicated("push", &keys, Some(&PUSH), &[cmd]).await?;
    let mut reply = store.redis.parse_reply("push", value)?;
    match reply.text()?.as_str() {
        "" => Ok(reply),
        reason => Err(mixed_list_error(queue, reason)),
    }
}

/// Returns the script argument for a due time; `None` means now.
pub(super) fn due_argument(due: Due, now: Micros) -> Option<String> {
    match due {
        Due::Now => None,
        Due::After(delay) if delay.is_zero() => None,
        Due::After(delay) => Some(format!("+{}", micros(delay).min(DUE_MAX))),
        Due::At(time) => {
            let due = to_micros(time).clamp(0, 2 * DUE_MAX);
            (due > now).then(|| due.to_string())
        }
    }
}
