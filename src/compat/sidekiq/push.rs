//! Push: each job into its own queue, or the schedule, in one step per queue.

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

/// How often a push is sent again whose answer was lost.
const RESENDS_MAX: usize = 3;
/// Up to so many entries in a queue and the sets are looked through for an id that somebody has chosen; beyond that only
/// those count that are remembered.
const ID_SCAN_MAX: usize = 10_000;
/// The latest moment that a score can tell apart from its neighbours, and the longest delay.
const MOMENT_MAX: Micros = 4_000_000_000_000_000;

/// A job as it is sent.
struct PreparedJob {
    index: usize,
    id: JobId,
    entry: String,
    /// When it is due: a moment, or `+` and a delay; `None` is now.
    due: Option<String>,
}

/// `push` of the contract.
pub(super) async fn push(store: &Sidekiq, jobs: Vec<Push>) -> Result<Vec<PushResult>> {
    let now = store.now();
    let mut queues: Vec<(&str, Vec<PreparedJob>)> = Vec::new();
    for (at, job) in jobs.iter().enumerate() {
        check_supported(job)?;
        let due = due_argument(job.due, now);
        let entry = entry::encode_push(job, now, due.is_none()).map_err(|why| Error::invalid("args", why))?;
        let ready = PreparedJob { index: at, id: job.id, entry, due };
        match queues.iter_mut().find(|(queue, _)| *queue == job.queue) {
            Some((_, of_queue)) => of_queue.push(ready),
            None => queues.push((&job.queue, vec![ready])),
        }
    }
    let mut answers: Vec<Option<PushResult>> = jobs.iter().map(|_| None).collect();
    for (no, (queue, ready)) in queues.into_iter().enumerate() {
        let pushed = push_queue(store, queue, &jobs, ready, &mut answers).await;
        pushed.map_err(|error| if no > 0 { partially_applied(error) } else { error })?;
    }
    Ok(answers.into_iter().zip(&jobs).map(|(answer, job)| answer.unwrap_or(PushResult::New(job.id))).collect())
}

/// Pushes the jobs of one queue, all but those that are there already, and answers each.
async fn push_queue(
    store: &Sidekiq,
    queue: &str,
    jobs: &[Push],
    mut ready: Vec<PreparedJob>,
    answers: &mut [Option<PushResult>],
) -> Result<()> {
    let chosen: HashSet<JobId> =
        ready.iter().map(|one| &jobs[one.index]).filter(|job| !job.has_fresh_id).map(|j| j.id).collect();
    let there = find_job::find_existing_ids(store, "push", queue, &chosen, ID_SCAN_MAX).await?;
    let mut seen = HashSet::with_capacity(ready.len());
    ready.retain(|one| {
        let is_new = !there.contains(&one.id) && seen.insert(one.id);
        if !is_new {
            answers[one.index] = Some(PushResult::Existing(one.id));
        }
        is_new
    });
    let known = send(store, queue, &ready, !chosen.is_empty()).await?;
    for one in &ready {
        let is_new = jobs[one.index].has_fresh_id || !known.contains(&one.id);
        answers[one.index] = Some(if is_new { PushResult::New(one.id) } else { PushResult::Existing(one.id) });
    }
    Ok(())
}

/// What Sidekiq's format has no place for is refused: whoever runs the job would not keep to it.
pub(super) fn check_supported(job: &Push) -> Result<()> {
    if job.priority != Priority::Normal {
        return Err(Error::invalid("priority", "Sidekiq has none within a queue; use a queue of its own"));
    }
    if job.unique.is_some() {
        let reason =
            "Sidekiq has no unique keys: a Ruby process that ran the job would not free it; choose an id instead";
        return Err(Error::invalid("unique", reason));
    }
    Ok(())
}

/// Sends what goes into one queue, again if the answer is lost. Answers which ids were known: of a job that is there because
/// of the lost one nobody can tell, unless its id was made just now.
async fn send(store: &Sidekiq, queue: &str, ready: &[PreparedJob], chosen: bool) -> Result<HashSet<JobId>> {
    if ready.is_empty() {
        return Ok(HashSet::new());
    }
    let mut lost = false;
    for _ in 0..RESENDS_MAX {
        match send_once(store, queue, ready, chosen || lost).await {
            Err(Error::Unknown { source, .. }) if store.redis.options().replicas == 0 => {
                tracing::debug!(?source, "the answer to a push was lost; it is sent again");
                lost = true;
            }
            // The one whose answer was lost may be in, whatever becomes of this one.
            Err(error) if lost => return Err(partially_applied(error)),
            other => return Ok(other?.ids()?.into_iter().collect()),
        }
    }
    let last = send_once(store, queue, ready, true).await.map_err(partially_applied)?.ids()?;
    Ok(last.into_iter().collect())
}

async fn send_once(store: &Sidekiq, queue: &str, ready: &[PreparedJob], look: bool) -> Result<ScriptReply> {
    let keys = store.redis.register_queue("push", queue).await?;
    let mut cmd = PUSH.call(&EntryKeys::new(&store.keys, &keys));
    cmd.arg(store.manual_now()).arg(&keys.channel).arg(micros(store.redis.options().remember)).arg(queue);
    cmd.arg(u8::from(look)).arg(ready.iter().filter(|one| one.due.is_none()).count());
    for one in ready.iter().filter(|one| one.due.is_none()) {
        cmd.arg(one.id.as_bytes()).arg(&one.entry);
    }
    for (one, due) in ready.iter().filter_map(|one| Some((one, one.due.as_ref()?))) {
        cmd.arg(one.id.as_bytes()).arg(&one.entry).arg(due);
    }
    let value = store.redis.send_replicated("push", &keys, Some(&PUSH), &[cmd]).await?;
    let mut reply = store.redis.parse_reply("push", value)?;
    match reply.text()?.as_str() {
        "" => Ok(reply),
        why => Err(mixed_list_error(queue, why)),
    }
}

/// When a job falls due, as scripts take it; `None` is now.
pub(super) fn due_argument(due: Due, now: Micros) -> Option<String> {
    match due {
        Due::Now => None,
        Due::After(delay) if delay.is_zero() => None,
        Due::After(delay) => Some(format!("+{}", micros(delay).min(MOMENT_MAX))),
        Due::At(moment) => {
            let moment = to_micros(moment).clamp(0, 2 * MOMENT_MAX);
            (moment > now).then(|| moment.to_string())
        }
    }
}
