//! Edit: take a job that is not running out of its place, or give it another one.

use redis::Cmd;

use super::entry::Crash;
use super::keys::EntryKeys;
use super::scripts::MOVE_ENTRIES;
use super::{Sidekiq, entry, mixed, push};
use crate::clock::micros;
use crate::compat::sidekiq::find_job::{At, Found, Set, crash, find};
use crate::error::Result;
use crate::job::JobId;
use crate::job::push::Due;
use crate::node::NodeId;
use crate::store::Moved;
use crate::store::redis::Way;

/// How often a job is looked for again that was gone when it should be moved.
const TRIES_MAX: usize = 3;

/// `remove` of the contract.
pub(super) async fn remove(store: &Sidekiq, id: JobId) -> Result<Moved> {
    edit(store, "remove", id, |_, _| None).await
}

/// `reschedule` of the contract.
pub(super) async fn reschedule(store: &Sidekiq, id: JobId, due: Due) -> Result<Moved> {
    let now = store.now();
    edit(store, "reschedule", id, |found, crash| {
        let due = push::due(due, now);
        let ready = due.is_none().then_some(now);
        let over = matches!(found.at, At::Dead(_) | At::Done(_));
        let read = entry::read(&found.queue, &found.bytes, crash).ok().filter(|_| !over);
        let (retried, crashes) = read.map_or((false, 0), |read| (read.retried, read.crashes));
        let new = match (over, ready) {
            (true, ready) => entry::anew(&found.bytes, ready),
            (false, Some(now)) => entry::at_once(&found.bytes, now, crashes),
            (false, None) => entry::put_off(&found.bytes, crashes),
        };
        let set = if retried { Set::Retry } else { Set::Schedule };
        // Whoever found it has read it, so this does not fail; nothing may be lost if it ever does.
        let new = new.unwrap_or_else(|_| String::from_utf8_lossy(&found.bytes).into_owned());
        Some(Goal { set: due.is_some().then_some(set), due: due.unwrap_or_default(), new })
    })
    .await
}

/// Where an entry goes, and how it is written there.
struct Goal {
    /// `None` is its queue.
    set: Option<Set>,
    due: String,
    new: String,
}

async fn edit(
    store: &Sidekiq,
    op: &'static str,
    id: JobId,
    goal: impl Fn(&Found, Option<&Crash>) -> Option<Goal>,
) -> Result<Moved> {
    for _ in 0..TRIES_MAX {
        let Some(found) = find(store, op, id).await? else {
            return Ok(Moved::NotFound);
        };
        if matches!(found.at, At::Running(..)) {
            return Ok(Moved::Running);
        }
        let crash = crash(store, op, &found).await?;
        let goal = goal(&found, crash.as_ref());
        let to = goal.as_ref().map(|goal| (goal.set, goal.due.as_str()));
        let mut cmd = begin(store, &found.queue, found.at, None, to);
        cmd.arg(id.as_bytes()).arg(&found.bytes[..]).arg(goal.map(|goal| goal.new).unwrap_or_default());
        let mut reply = store.run(op, Way::Door, &MOVE_ENTRIES, &cmd).await?;
        match (reply.text()?.as_str(), reply.int()?) {
            ("moving", _) => return Ok(Moved::Moving),
            (_, 1..) => return Ok(Moved::Yes),
            // It has gone elsewhere meanwhile.
            ("open", _) => {}
            (why, _) => return Err(mixed(&found.queue, why)),
        }
    }
    Ok(Moved::NotFound)
}

/// The script that moves entries of one place, up to the entries.
pub(super) fn begin(
    store: &Sidekiq,
    queue: &str,
    from: At,
    mover: Option<NodeId>,
    to: Option<(Option<Set>, &str)>,
) -> Cmd {
    let (keys, list) = (store.redis.keys(queue), store.keys.queue(queue));
    let (source, kind) = match from {
        At::Ready | At::Running(..) => (&list, "list"),
        At::Schedule(_) => (&store.keys.schedule, "set"),
        At::Retry(_) => (&store.keys.retry, "set"),
        At::Dead(_) => (&store.keys.dead, "set"),
        At::Done(_) => (&keys.done, "done"),
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
