//! From its keys into duly's: what is due goes into the lists, and what is at the head of a list becomes a job.

use std::time::Duration;

use crate::clock::{Micros, from_micros};
use crate::compat::redis_in_action::item::Item;
use crate::compat::redis_in_action::{DELAYED, DelayedKeys, ItemKeys, LOCK, RedisInAction, list_of, mixed};
use crate::compat::script;
use crate::error::Result;
use crate::job::push::{MAX_ATTEMPTS, TIMEOUT};
use crate::job::{Job, JobId, Priority};
use crate::node::NodeId;
use crate::store::redis::{QueueKeys, Way, group_of, span, write_failure, write_record};

/// Most delayed items moved in one step.
const MOVE_MAX: usize = 200;
/// Most steps that pass over items which are left to others: behind some 2,000 of them the others wait.
const STEPS_MAX: usize = 10;
/// The kind of what nobody can read: it is dead from the start.
const MALFORMED: &str = "redis-in-action:malformed";
/// What a poller of others has locked is looked after so often.
const LOCKED_LOOK: Duration = Duration::from_millis(100);

/// What was found in one look.
struct Found {
    now: Micros,
    due: Vec<Vec<u8>>,
    items: Vec<Vec<u8>>,
    /// How long until the next delayed item is due.
    next: Option<Duration>,
    /// That is all that is in the list.
    all: bool,
}

/// What there is to know after a look.
pub(super) struct Brought {
    /// How long until another look is worth it.
    pub(super) look_after: Option<Duration>,
    /// Nothing is left in the list: whoever puts something there should be noticed.
    pub(super) empty: bool,
}

/// Brings up to so many jobs of a queue into duly's keys, less those that are ready there.
pub(super) async fn bring(store: &RedisInAction, queue: &str, most: usize) -> Result<Brought> {
    let keys = store.own.keys(queue);
    let (mut found, mut left) = (look(store, &keys, most, 0).await?, 0);
    for _ in 0..STEPS_MAX {
        if found.due.is_empty() {
            break;
        }
        let before = left;
        left += move_due(store, &keys, &found).await?;
        found = look(store, &keys, most, left).await?;
        // Only those that are left to others are passed over.
        if left == before {
            break;
        }
    }
    take(store, &keys, &found).await?;
    // More may be due than one step moves; and what is locked says nothing when it is not any more.
    let again = if left > 0 { Some(LOCKED_LOOK) } else { (!found.due.is_empty()).then_some(Duration::ZERO) };
    Ok(Brought { look_after: found.next.into_iter().chain(again).min(), empty: found.all })
}

async fn look(store: &RedisInAction, keys: &QueueKeys, most: usize, behind: i64) -> Result<Found> {
    let mut cmd = script::RIA_PEEK_ITEMS.call(&ItemKeys::new(keys));
    cmd.arg(store.own.manual_now()).arg(&*keys.queue).arg(MOVE_MAX).arg(most).arg(behind);
    let mut reply = store.own.repeat("claim", Way::Door, keys.slot, &script::RIA_PEEK_ITEMS, &cmd).await?;
    let why = reply.text()?;
    if !why.is_empty() {
        return Err(mixed(&keys.queue, &why));
    }
    let (due, items) = (reply.list()?, reply.list()?);
    let next = reply.maybe_int()?.map(|next| Duration::from_micros(u64::try_from(next - reply.now).unwrap_or(0)));
    let bytes = |list: Vec<Option<Vec<u8>>>| list.into_iter().flatten().collect();
    Ok(Found { now: reply.now, due: bytes(due), items: bytes(items), next, all: reply.int()? == 1 })
}

/// Moves delayed items into their lists. Answers how many were left to others.
async fn move_due(store: &RedisInAction, keys: &QueueKeys, found: &Found) -> Result<i64> {
    let mut good = Vec::new();
    let mut bad = Vec::new();
    for bytes in &found.due {
        match Item::read(bytes) {
            Ok(item) => good.push((bytes, item)),
            Err(why) => bad.push((bytes, why)),
        }
    }
    bury(store, keys, "delayed", DELAYED, found.now, &bad).await?;
    if good.is_empty() {
        return Ok(0);
    }
    let mut others = Vec::with_capacity(2 * good.len());
    for (_, item) in &good {
        others.extend([format!("{LOCK}{}", item.identifier), list_of(&item.queue)]);
    }
    let mut cmd = script::RIA_MOVE_DUE.call_with(&DelayedKeys { seen_locks: &store.seen }, &others);
    cmd.arg(store.own.manual_now()).arg(span(store.lock_limit));
    for (bytes, item) in &good {
        cmd.arg(bytes).arg(&item.queue);
    }
    let mut reply = store.own.repeat("claim", Way::Door, keys.slot, &script::RIA_MOVE_DUE, &cmd).await?;
    let (_moved, left) = (reply.int()?, reply.int()?);
    Ok(left)
}

/// Takes items from the head of a list.
async fn take(store: &RedisInAction, keys: &QueueKeys, found: &Found) -> Result<()> {
    let list = list_of(&keys.queue);
    let mut cmd = script::RIA_TAKE_ITEMS.call(&ItemKeys::new(keys));
    cmd.arg(store.own.manual_now());
    let (mut bad, mut any) = (Vec::new(), false);
    for bytes in &found.items {
        match Item::read(bytes) {
            Ok(item) => {
                any = true;
                let job = job(store, &keys.queue, item.id(), item.name.clone(), item.args.clone(), found.now);
                // A record is of one id: it carries a checksum over it.
                let other = Job { id: JobId::fresh(), ..job.clone() };
                cmd.arg(bytes);
                for job in [&job, &other] {
                    cmd.arg(job.id.as_bytes()).arg(write_record(job, found.now));
                }
            }
            Err(why) => bad.push((bytes, why)),
        }
    }
    bury(store, keys, "list", &list, found.now, &bad).await?;
    if any {
        store.own.register("claim", &keys.queue).await?;
        // Sent again after a lost answer it finds the items gone: those it took are ready.
        store.own.repeat("claim", Way::Door, keys.slot, &script::RIA_TAKE_ITEMS, &cmd).await?;
    }
    Ok(())
}

/// What nobody can read stops nobody: it is kept as a dead job, with what is wrong with it.
async fn bury(
    store: &RedisInAction,
    keys: &QueueKeys,
    from: &'static str,
    key: &str,
    now: Micros,
    bad: &[(&Vec<u8>, String)],
) -> Result<()> {
    if bad.is_empty() {
        return Ok(());
    }
    store.own.register("claim", &keys.queue).await?;
    let node = NodeId::from_bytes([0; 16]);
    let mut cmd = script::RIA_BURY_MALFORMED.call(&ItemKeys { source: key, ..ItemKeys::new(keys) });
    cmd.arg(store.own.manual_now()).arg(from).arg(span(store.options.keep_dead)).arg(write_failure(node, "").0);
    for (bytes, why) in bad {
        tracing::warn!(queue = %keys.queue, why, "what is in {key} is no item of Redis in Action; it is kept as a dead job");
        let args = serde_json::Value::from(String::from_utf8_lossy(bytes)).to_string();
        let job = job(store, &keys.queue, JobId::fresh(), MALFORMED.to_owned(), args, now);
        let error = format!("from {key}: {why}");
        cmd.arg(bytes).arg(job.id.as_bytes()).arg(write_record(&job, now)).arg(write_failure(node, &error).1);
        let (group, what) = group_of(MALFORMED, &error);
        cmd.arg(group).arg(what);
    }
    store.own.repeat("claim", Way::Door, keys.slot, &script::RIA_BURY_MALFORMED, &cmd).await.map(drop)
}

pub(super) fn job(store: &RedisInAction, queue: &str, id: JobId, kind: String, args: String, pushed: Micros) -> Job {
    Job {
        id,
        queue: queue.to_owned(),
        kind,
        args,
        priority: Priority::Normal,
        pushed: from_micros(pushed),
        max_attempts: MAX_ATTEMPTS,
        timeout: TIMEOUT,
        keep: store.options.keep,
        unique: None,
        tags: Vec::new(),
        traceparent: None,
    }
}

/// Of these queues, those in which a look may find something.
pub(super) async fn any(store: &RedisInAction, queues: &[String]) -> Result<Vec<String>> {
    let lists: Vec<String> = queues.iter().map(|queue| list_of(queue)).collect();
    let mut cmd = script::RIA_HAS_WORK.call_with(&DelayedKeys { seen_locks: &store.seen }, &lists);
    cmd.arg(store.own.manual_now());
    let mut reply = store.own.repeat("beat", Way::Beat, 0, &script::RIA_HAS_WORK, &cmd).await?;
    let due = reply.int()? == 1;
    let has = reply.list()?;
    let look = |has: &Option<Vec<u8>>| due || has.as_deref() == Some(b"1");
    Ok(queues.iter().zip(&has).filter(|(_, has)| look(has)).map(|(queue, _)| queue.clone()).collect())
}
