//! From its keys into duly's: what is due goes into the lists, and what is at the head of a list becomes a job.

use std::time::Duration;

use crate::clock::{Micros, from_micros};
use crate::compat::redis_in_action::item::Item;
use crate::compat::redis_in_action::{
    DELAYED_KEY, DelayedKeys, ItemKeys, LOCK_PREFIX, RedisInAction, list_key, mixed_list_error,
};
use crate::compat::script;
use crate::error::Result;
use crate::job::push::{DEFAULT_MAX_ATTEMPTS, DEFAULT_TIMEOUT};
use crate::job::{Job, JobId, Priority};
use crate::node::NodeId;
use crate::store::redis::{ConnectionRole, QueueKeys, dead_group, encode_first_failure, encode_record, span_micros};

/// Most delayed items moved in one step.
const DELAYED_MOVED_MAX: usize = 200;
/// Most steps that pass over items which are left to others: behind some 2,000 of them the others wait.
const MOVE_STEPS_MAX: usize = 10;
/// The kind of what nobody can read: it is dead from the start.
const MALFORMED_KIND: &str = "redis-in-action:malformed";
/// What a poller of others has locked is looked after so often.
const LOCKED_RECHECK_INTERVAL: Duration = Duration::from_millis(100);

/// What was found in one look.
struct PendingItems {
    now: Micros,
    due: Vec<Vec<u8>>,
    items: Vec<Vec<u8>>,
    /// How long until the next delayed item is due.
    next_due_in: Option<Duration>,
    /// That is all that is in the list.
    is_whole_list: bool,
}

/// What there is to know after a look.
pub(super) struct ImportResult {
    /// How long until another look is worth it.
    pub(super) recheck_after: Option<Duration>,
    /// Nothing is left in the list: whoever puts something there should be noticed.
    pub(super) is_list_empty: bool,
}

/// Brings up to so many jobs of a queue into duly's keys, less those that are ready there.
pub(super) async fn import_jobs(store: &RedisInAction, queue: &str, most: usize) -> Result<ImportResult> {
    let keys = store.redis.keys(queue);
    let (mut found, mut left) = (read_pending(store, &keys, most, 0).await?, 0);
    for _ in 0..MOVE_STEPS_MAX {
        if found.due.is_empty() {
            break;
        }
        let before = left;
        left += move_due_items(store, &keys, &found).await?;
        found = read_pending(store, &keys, most, left).await?;
        // Only those that are left to others are passed over.
        if left == before {
            break;
        }
    }
    take_items(store, &keys, &found).await?;
    // More may be due than one step moves; and what is locked says nothing when it is not any more.
    let again =
        if left > 0 { Some(LOCKED_RECHECK_INTERVAL) } else { (!found.due.is_empty()).then_some(Duration::ZERO) };
    Ok(ImportResult {
        recheck_after: found.next_due_in.into_iter().chain(again).min(),
        is_list_empty: found.is_whole_list,
    })
}

async fn read_pending(store: &RedisInAction, keys: &QueueKeys, most: usize, behind: i64) -> Result<PendingItems> {
    let mut cmd = script::RIA_PEEK_ITEMS.call(&ItemKeys::new(keys));
    cmd.arg(store.redis.manual_now()).arg(&*keys.queue).arg(DELAYED_MOVED_MAX).arg(most).arg(behind);
    let mut reply = store
        .redis
        .run_script_idempotent("claim", ConnectionRole::Client, keys.slot, &script::RIA_PEEK_ITEMS, &cmd)
        .await?;
    let why = reply.text()?;
    if !why.is_empty() {
        return Err(mixed_list_error(&keys.queue, &why));
    }
    let (due, items) = (reply.list()?, reply.list()?);
    let next = reply.optional_int()?.map(|next| Duration::from_micros(u64::try_from(next - reply.now).unwrap_or(0)));
    let bytes = |list: Vec<Option<Vec<u8>>>| list.into_iter().flatten().collect();
    Ok(PendingItems {
        now: reply.now,
        due: bytes(due),
        items: bytes(items),
        next_due_in: next,
        is_whole_list: reply.int()? == 1,
    })
}

/// Moves delayed items into their lists. Answers how many were left to others.
async fn move_due_items(store: &RedisInAction, keys: &QueueKeys, found: &PendingItems) -> Result<i64> {
    let mut good = Vec::new();
    let mut bad = Vec::new();
    for bytes in &found.due {
        match Item::parse(bytes) {
            Ok(item) => good.push((bytes, item)),
            Err(why) => bad.push((bytes, why)),
        }
    }
    bury_malformed(store, keys, "delayed", DELAYED_KEY, found.now, &bad).await?;
    if good.is_empty() {
        return Ok(0);
    }
    let mut others = Vec::with_capacity(2 * good.len());
    for (_, item) in &good {
        others.extend([format!("{LOCK_PREFIX}{}", item.identifier), list_key(&item.queue)]);
    }
    let mut cmd = script::RIA_MOVE_DUE.call_with(&DelayedKeys { seen_locks: &store.locks_seen_key }, &others);
    cmd.arg(store.redis.manual_now()).arg(span_micros(store.lock_limit));
    for (bytes, item) in &good {
        cmd.arg(bytes).arg(&item.queue);
    }
    let mut reply = store
        .redis
        .run_script_idempotent("claim", ConnectionRole::Client, keys.slot, &script::RIA_MOVE_DUE, &cmd)
        .await?;
    let (_moved, left) = (reply.int()?, reply.int()?);
    Ok(left)
}

/// Takes items from the head of a list.
async fn take_items(store: &RedisInAction, keys: &QueueKeys, found: &PendingItems) -> Result<()> {
    let list = list_key(&keys.queue);
    let mut cmd = script::RIA_TAKE_ITEMS.call(&ItemKeys::new(keys));
    cmd.arg(store.redis.manual_now());
    let (mut bad, mut any) = (Vec::new(), false);
    for bytes in &found.items {
        match Item::parse(bytes) {
            Ok(item) => {
                any = true;
                let job = build_job(store, &keys.queue, item.job_id(), item.name.clone(), item.args.clone(), found.now);
                // A record is of one id: it carries a checksum over it.
                let other = Job { id: JobId::fresh(), ..job.clone() };
                cmd.arg(bytes);
                for job in [&job, &other] {
                    cmd.arg(job.id.as_bytes()).arg(encode_record(job, found.now));
                }
            }
            Err(why) => bad.push((bytes, why)),
        }
    }
    bury_malformed(store, keys, "list", &list, found.now, &bad).await?;
    if any {
        store.redis.register_queue("claim", &keys.queue).await?;
        // Sent again after a lost answer it finds the items gone: those it took are ready.
        store
            .redis
            .run_script_idempotent("claim", ConnectionRole::Client, keys.slot, &script::RIA_TAKE_ITEMS, &cmd)
            .await?;
    }
    Ok(())
}

/// What nobody can read stops nobody: it is kept as a dead job, with what is wrong with it.
async fn bury_malformed(
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
    store.redis.register_queue("claim", &keys.queue).await?;
    let node = NodeId::from_bytes([0; 16]);
    let mut cmd = script::RIA_BURY_MALFORMED.call(&ItemKeys { source: key, ..ItemKeys::new(keys) });
    cmd.arg(store.redis.manual_now())
        .arg(from)
        .arg(span_micros(store.options.keep_dead))
        .arg(encode_first_failure(node, "").0);
    for (bytes, why) in bad {
        tracing::warn!(queue = %keys.queue, why, "what is in {key} is no item of Redis in Action; it is kept as a dead job");
        let args = serde_json::Value::from(String::from_utf8_lossy(bytes)).to_string();
        let job = build_job(store, &keys.queue, JobId::fresh(), MALFORMED_KIND.to_owned(), args, now);
        let error = format!("from {key}: {why}");
        cmd.arg(bytes).arg(job.id.as_bytes()).arg(encode_record(&job, now)).arg(encode_first_failure(node, &error).1);
        let (group, what) = dead_group(MALFORMED_KIND, &error);
        cmd.arg(group).arg(what);
    }
    store
        .redis
        .run_script_idempotent("claim", ConnectionRole::Client, keys.slot, &script::RIA_BURY_MALFORMED, &cmd)
        .await
        .map(drop)
}

pub(super) fn build_job(
    store: &RedisInAction,
    queue: &str,
    id: JobId,
    kind: String,
    args: String,
    pushed: Micros,
) -> Job {
    Job {
        id,
        queue: queue.to_owned(),
        kind,
        args,
        priority: Priority::Normal,
        pushed: from_micros(pushed),
        max_attempts: DEFAULT_MAX_ATTEMPTS,
        timeout: DEFAULT_TIMEOUT,
        keep: store.options.keep,
        unique: None,
        tags: Vec::new(),
        traceparent: None,
    }
}

/// Of these queues, those in which a look may find something.
pub(super) async fn queues_with_items(store: &RedisInAction, queues: &[String]) -> Result<Vec<String>> {
    let lists: Vec<String> = queues.iter().map(|queue| list_key(queue)).collect();
    let mut cmd = script::RIA_HAS_WORK.call_with(&DelayedKeys { seen_locks: &store.locks_seen_key }, &lists);
    cmd.arg(store.redis.manual_now());
    let mut reply =
        store.redis.run_script_idempotent("beat", ConnectionRole::Heartbeat, 0, &script::RIA_HAS_WORK, &cmd).await?;
    let due = reply.int()? == 1;
    let has = reply.list()?;
    let look = |has: &Option<Vec<u8>>| due || has.as_deref() == Some(b"1");
    Ok(queues.iter().zip(&has).filter(|(_, has)| look(has)).map(|(queue, _)| queue.clone()).collect())
}
