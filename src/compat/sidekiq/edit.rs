//! Edit: take a job that is not running out of its place, or give it another one.

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
use crate::node::NodeId;
use crate::store::ChangeResult;
use crate::store::redis::ConnectionRole;

/// How often a job is looked for again that was gone when it should be moved.
const FIND_TRIES_MAX: usize = 3;

/// `remove` of the contract.
pub(super) async fn remove(store: &Sidekiq, id: JobId) -> Result<ChangeResult> {
    move_entry(store, "remove", id, |_, _| None).await
}

/// `reschedule` of the contract.
pub(super) async fn reschedule(store: &Sidekiq, id: JobId, due: Due) -> Result<ChangeResult> {
    let now = store.now();
    move_entry(store, "reschedule", id, |found, crash| {
        let due = push::due_argument(due, now);
        let ready = due.is_none().then_some(now);
        let over = matches!(found.position, EntryPosition::Dead(_) | EntryPosition::Done(_));
        let read = entry::parse_entry(&found.queue, &found.bytes, crash).ok().filter(|_| !over);
        let (retried, crashes) = read.map_or((false, 0), |read| (read.has_failed, read.crashes));
        let new = match (over, ready) {
            (true, ready) => entry::restart_entry(&found.bytes, ready),
            (false, Some(now)) => entry::requeue_entry(&found.bytes, now, crashes),
            (false, None) => entry::schedule_entry(&found.bytes, crashes),
        };
        let set = if retried { JobSet::Retry } else { JobSet::Schedule };
        // Whoever found it has read it, so this does not fail; nothing may be lost if it ever does.
        let new = new.unwrap_or_else(|_| String::from_utf8_lossy(&found.bytes).into_owned());
        Some(EntryTarget { set: due.is_some().then_some(set), due: due.unwrap_or_default(), entry: new })
    })
    .await
}

/// Where an entry goes, and how it is written there.
struct EntryTarget {
    /// `None` is its queue.
    set: Option<JobSet>,
    due: String,
    entry: String,
}

async fn move_entry(
    store: &Sidekiq,
    op: &'static str,
    id: JobId,
    goal: impl Fn(&LocatedEntry, Option<&CrashRecord>) -> Option<EntryTarget>,
) -> Result<ChangeResult> {
    for _ in 0..FIND_TRIES_MAX {
        let Some(found) = find_entry(store, op, id).await? else {
            return Ok(ChangeResult::NotFound);
        };
        if matches!(found.position, EntryPosition::Running(..)) {
            return Ok(ChangeResult::Running);
        }
        let crash = read_crash(store, op, &found).await?;
        let goal = goal(&found, crash.as_ref());
        let to = goal.as_ref().map(|goal| (goal.set, goal.due.as_str()));
        let mut cmd = move_command(store, &found.queue, found.position, None, to);
        cmd.arg(id.as_bytes()).arg(&found.bytes[..]).arg(goal.map(|goal| goal.entry).unwrap_or_default());
        let mut reply = store.run_script(op, ConnectionRole::Client, &MOVE_ENTRIES, &cmd).await?;
        match (reply.text()?.as_str(), reply.int()?) {
            ("moving", _) => return Ok(ChangeResult::Moving),
            (_, 1..) => return Ok(ChangeResult::Applied),
            // It has gone elsewhere meanwhile.
            ("open", _) => {}
            (why, _) => return Err(mixed_list_error(&found.queue, why)),
        }
    }
    Ok(ChangeResult::NotFound)
}

/// The script that moves entries of one place, up to the entries.
pub(super) fn move_command(
    store: &Sidekiq,
    queue: &str,
    from: EntryPosition,
    mover: Option<NodeId>,
    to: Option<(Option<JobSet>, &str)>,
) -> Cmd {
    let (keys, list) = (store.redis.keys(queue), store.keys.queue_key(queue));
    let (source, kind) = match from {
        EntryPosition::Ready | EntryPosition::Running(..) => (&list, "list"),
        EntryPosition::Schedule(_) => (&store.keys.schedule, "set"),
        EntryPosition::Retry(_) => (&store.keys.retry, "set"),
        EntryPosition::Dead(_) => (&store.keys.dead, "set"),
        EntryPosition::Done(_) => (&keys.done, "done"),
    };
    let (target, goal, due) = match to {
        None => (&list, "", ""),
        Some((None, _)) => (&list, "list", ""),
        Some((Some(set), due)) => (set.key(store), "set", due),
    };
    let mut cmd = MOVE_ENTRIES.call(&EntryKeys::new(&store.keys, &keys).between(source, target));
    cmd.arg(store.manual_now()).arg(&keys.channel).arg(micros(store.redis.options().remember));
    cmd.arg(mover.map(|mover| mover.to_string()).unwrap_or_default()).arg(kind).arg(goal).arg(due).arg(queue);
    cmd
}
