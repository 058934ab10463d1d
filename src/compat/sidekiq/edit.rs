//! Removes and reschedules jobs that are not running.

use redis::Cmd;

use super::entry::CrashRecord;
use super::keys::EntryKeys;
use super::scripts::MOVE_ENTRIES;
use super::{Sidekiq, entry, mixed_list_error, push};
use crate::clock::micros;
use crate::compat::sidekiq::find_job::{EntryPosition, JobSet, LocatedEntry, find_entry, read_crash};
use crate::error::Result;
use crate::job::JobId;
use crate::job::push::Due;
use crate::store::ChangeResult;
use crate::store::redis::ConnectionRole;

/// Most tries to find a job that changes its position while it is being moved.
const FIND_TRIES_MAX: usize = 3;

/// Implements `JobStore::remove`.
pub(super) async fn remove(store: &Sidekiq, id: JobId) -> Result<ChangeResult> {
    move_entry(store, "remove", id, |_, _| None).await
}

/// Implements `JobStore::reschedule`.
pub(super) async fn reschedule(store: &Sidekiq, id: JobId, due: Due) -> Result<ChangeResult> {
    let now = store.now();
    move_entry(store, "reschedule", id, |found, crash| {
        let due = push::due_argument(due, now);
        let ready = due.is_none().then_some(now);
        let has_ended = matches!(found.position, EntryPosition::Dead(_) | EntryPosition::Done(_));
        let parsed = entry::parse_entry(&found.queue, &found.bytes, crash).ok().filter(|_| !has_ended);
        let (has_failed, crashes) = parsed.map_or((false, 0), |entry| (entry.has_failed, entry.crashes));
        let new = match (has_ended, ready) {
            (true, ready) => entry::restart_entry(&found.bytes, ready),
            (false, Some(now)) => entry::requeue_entry(&found.bytes, now, crashes),
            (false, None) => entry::schedule_entry(&found.bytes, crashes),
        };
        let set = if has_failed { JobSet::Retry } else { JobSet::Schedule };
        // Cannot fail, since the search has parsed the entry. If it ever does, the entry must not be lost.
        let new = new.unwrap_or_else(|_| String::from_utf8_lossy(&found.bytes).into_owned());
        Some(EntryTarget { set: due.is_some().then_some(set), due: due.unwrap_or_default(), entry: new })
    })
    .await
}

/// The new position of an entry, and its new text.
struct EntryTarget {
    /// `None` means its queue.
    set: Option<JobSet>,
    due: String,
    entry: String,
}

async fn move_entry(
    store: &Sidekiq,
    op: &'static str,
    id: JobId,
    target_of: impl Fn(&LocatedEntry, Option<&CrashRecord>) -> Option<EntryTarget>,
) -> Result<ChangeResult> {
    for _ in 0..FIND_TRIES_MAX {
        let Some(found) = find_entry(store, op, id).await? else {
            return Ok(ChangeResult::NotFound);
        };
        match found.position {
            EntryPosition::Running(..) => return Ok(ChangeResult::Running),
            EntryPosition::Reserved(..) => return Ok(ChangeResult::Moving),
            _ => {}
        }
        let crash = read_crash(store, op, &found).await?;
        let target = target_of(&found, crash.as_ref());
        let to = target.as_ref().map(|target| (target.set, target.due.as_str()));
        let mut cmd = move_command(store, &found.queue, found.position, to);
        cmd.arg(id.as_bytes()).arg(&found.bytes[..]).arg(target.map(|target| target.entry).unwrap_or_default());
        let mut reply = store.run_script(op, ConnectionRole::Client, &MOVE_ENTRIES, &cmd).await?;
        match (reply.text()?.as_str(), reply.int()?) {
            ("moving", _) => return Ok(ChangeResult::Moving),
            (_, 1..) => return Ok(ChangeResult::Applied),
            // The entry has changed its position in the meantime.
            ("open", _) => {}
            (reason, _) => return Err(mixed_list_error(&found.queue, reason)),
        }
    }
    Ok(ChangeResult::NotFound)
}

/// Returns the call of the script that moves entries from one position; the caller appends the entries.
fn move_command(store: &Sidekiq, queue: &str, from: EntryPosition, to: Option<(Option<JobSet>, &str)>) -> Cmd {
    let (keys, list) = (store.redis.keys(queue), store.keys.queue_key(queue));
    let (source, source_kind) = match from {
        EntryPosition::Ready | EntryPosition::Running(..) | EntryPosition::Reserved(..) => (&list, "list"),
        EntryPosition::Schedule(_) => (&store.keys.schedule, "set"),
        EntryPosition::Retry(_) => (&store.keys.retry, "set"),
        EntryPosition::Dead(_) => (&store.keys.dead, "set"),
        EntryPosition::Done(_) => (&keys.done, "done"),
    };
    let (target, target_kind, due) = match to {
        None => (&list, "", ""),
        Some((None, _)) => (&list, "list", ""),
        Some((Some(set), due)) => (set.key(store), "set", due),
    };
    let mut cmd = MOVE_ENTRIES.call(&EntryKeys::new(&store.keys, &keys).between(source, target));
    cmd.arg(store.manual_now()).arg(&keys.channel).arg(micros(store.redis.options().remember_ids));
    cmd.arg(source_kind).arg(target_kind).arg(due).arg(queue);
    cmd
}
