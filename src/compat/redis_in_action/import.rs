//! Import from the keys of Redis in Action: due delayed items go into their lists, and items at the head of a list
//! become jobs in duly's keys.

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

/// Most delayed items moved in one operation.
const DELAYED_MOVED_MAX: usize = 200;
/// Most batches per import. Items that cannot be moved are skipped; behind some 2,000 of them, further items wait.
const MOVE_BATCHES_MAX: usize = 10;
/// The kind of the dead jobs that malformed items become.
const MALFORMED_KIND: &str = "redis-in-action:malformed";
/// Delay after which items locked by another poller are checked again.
const LOCKED_RECHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The items found by one read.
struct PendingItems {
    now: Micros,
    due: Vec<Vec<u8>>,
    items: Vec<Vec<u8>>,
    /// Time until the next delayed item is due.
    next_due_in: Option<Duration>,
    /// Whether `items` is the whole list.
    is_whole_list: bool,
}

/// The result of [`import_jobs`].
pub(super) struct ImportResult {
    /// Time after which the next import may find something.
    pub(super) recheck_after: Option<Duration>,
    /// The list is now empty, so the caller should watch it.
    pub(super) is_list_empty: bool,
}

/// Imports jobs of a queue into duly's keys, until up to `max` are ready there.
pub(super) async fn import_jobs(store: &RedisInAction, queue: &str, max: usize) -> Result<ImportResult> {
    let keys = store.redis.keys(queue);
    let (mut pending, mut skipped) = (read_pending(store, &keys, max, 0).await?, 0);
    for _ in 0..MOVE_BATCHES_MAX {
        if pending.due.is_empty() {
            break;
        }
        let skipped_before = skipped;
        skipped += move_due_items(store, &keys, &pending).await?;
        pending = read_pending(store, &keys, max, skipped).await?;
        // Another batch is needed only if skipped items may hide others.
        if skipped == skipped_before {
            break;
        }
    }
    take_items(store, &keys, &pending).await?;
    // More may be due than one batch moves, and the release of a lock sends no wake.
    let recheck =
        if skipped > 0 { Some(LOCKED_RECHECK_INTERVAL) } else { (!pending.due.is_empty()).then_some(Duration::ZERO) };
    Ok(ImportResult {
        recheck_after: pending.next_due_in.into_iter().chain(recheck).min(),
        is_list_empty: pending.is_whole_list,
    })
}

async fn read_pending(store: &RedisInAction, keys: &QueueKeys, max: usize, skipped: i64) -> Result<PendingItems> {
    let mut cmd = script::RIA_PEEK_ITEMS.call(&ItemKeys::new(keys));
    cmd.arg(store.redis.manual_now()).arg(&*keys.queue).arg(DELAYED_MOVED_MAX).arg(max).arg(skipped);
    let mut reply = store
        .redis
        .run_script_idempotent("claim", ConnectionRole::Client, keys.slot, &script::RIA_PEEK_ITEMS, &cmd)
        .await?;
    let reason = reply.text()?;
    if !reason.is_empty() {
        return Err(mixed_list_error(&keys.queue, &reason));
    }
    let (due, items) = (reply.list()?, reply.list()?);
    let next_due_in =
        reply.optional_int()?.map(|next| Duration::from_micros(u64::try_from(next - reply.now).unwrap_or(0)));
    let bytes = |list: Vec<Option<Vec<u8>>>| list.into_iter().flatten().collect();
    Ok(PendingItems {
        now: reply.now,
        due: bytes(due),
        items: bytes(items),
        next_due_in,
        is_whole_list: reply.int()? == 1,
    })
}

/// Moves due delayed items into their lists. Returns the number of skipped items: another poller has locked them, or
/// their list has another format.
async fn move_due_items(store: &RedisInAction, keys: &QueueKeys, pending: &PendingItems) -> Result<i64> {
    let mut items = Vec::new();
    let mut malformed = Vec::new();
    for bytes in &pending.due {
        match Item::parse(bytes) {
            Ok(item) => items.push((bytes, item)),
            Err(error) => malformed.push((bytes, error)),
        }
    }
    bury_malformed(store, keys, "delayed", DELAYED_KEY, pending.now, &malformed).await?;
    if items.is_empty() {
        return Ok(0);
    }
    let mut item_keys = Vec::with_capacity(2 * items.len());
    for (_, item) in &items {
        item_keys.extend([format!("{LOCK_PREFIX}{}", item.identifier), list_key(&item.queue)]);
    }
    let mut cmd = script::RIA_MOVE_DUE.call_with(&DelayedKeys { seen_locks: &store.locks_seen_key }, &item_keys);
    cmd.arg(store.redis.manual_now()).arg(span_micros(store.lock_limit));
    for (bytes, item) in &items {
        cmd.arg(bytes).arg(&item.queue);
    }
    let mut reply = store
        .redis
        .run_script_idempotent("claim", ConnectionRole::Client, keys.slot, &script::RIA_MOVE_DUE, &cmd)
        .await?;
    let (_moved, skipped) = (reply.int()?, reply.int()?);
    Ok(skipped)
}

/// Moves items from the head of a list into duly's keys.
async fn take_items(store: &RedisInAction, keys: &QueueKeys, pending: &PendingItems) -> Result<()> {
    let mut cmd = script::RIA_TAKE_ITEMS.call(&ItemKeys::new(keys));
    cmd.arg(store.redis.manual_now());
    let (mut malformed, mut has_items, now) = (Vec::new(), false, pending.now);
    for bytes in &pending.items {
        match Item::parse(bytes) {
            Ok(item) => {
                has_items = true;
                let job = build_job(store, &keys.queue, item.job_id(), item.name.clone(), item.args.clone(), now);
                // The id may be taken. The checksum of a record covers its id, so the fallback needs its own record.
                let fallback = Job { id: JobId::fresh(), ..job.clone() };
                cmd.arg(bytes);
                for job in [&job, &fallback] {
                    cmd.arg(job.id.as_bytes()).arg(encode_record(job, now));
                }
            }
            Err(error) => malformed.push((bytes, error)),
        }
    }
    bury_malformed(store, keys, "list", &list_key(&keys.queue), now, &malformed).await?;
    if has_items {
        store.redis.register_queue("claim", &keys.queue).await?;
        // Safe to repeat after a lost reply: items that were already taken are gone from the list.
        store
            .redis
            .run_script_idempotent("claim", ConnectionRole::Client, keys.slot, &script::RIA_TAKE_ITEMS, &cmd)
            .await?;
    }
    Ok(())
}

/// Turns malformed items into dead jobs that carry the parse error, so that they do not block the others.
async fn bury_malformed(
    store: &RedisInAction,
    keys: &QueueKeys,
    from: &'static str,
    key: &str,
    now: Micros,
    malformed: &[(&Vec<u8>, String)],
) -> Result<()> {
    if malformed.is_empty() {
        return Ok(());
    }
    store.redis.register_queue("claim", &keys.queue).await?;
    let node = NodeId::from_bytes([0; 16]);
    let mut cmd = script::RIA_BURY_MALFORMED.call(&ItemKeys { source: key, ..ItemKeys::new(keys) });
    cmd.arg(store.redis.manual_now())
        .arg(from)
        .arg(span_micros(store.options.keep_dead))
        .arg(encode_first_failure(node, "").0);
    for (bytes, reason) in malformed {
        tracing::warn!(queue = %keys.queue, key, reason, "malformed Redis in Action item; kept as a dead job");
        let args = serde_json::Value::from(String::from_utf8_lossy(bytes)).to_string();
        let job = build_job(store, &keys.queue, JobId::fresh(), MALFORMED_KIND.to_owned(), args, now);
        let error = format!("from {key}: {reason}");
        cmd.arg(bytes).arg(job.id.as_bytes()).arg(encode_record(&job, now)).arg(encode_first_failure(node, &error).1);
        let (group, description) = dead_group(MALFORMED_KIND, &error);
        cmd.arg(group).arg(description);
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

/// Returns those of these queues in which an import may find something.
pub(super) async fn queues_with_items(store: &RedisInAction, queues: &[String]) -> Result<Vec<String>> {
    let lists: Vec<String> = queues.iter().map(|queue| list_key(queue)).collect();
    let mut cmd = script::RIA_HAS_WORK.call_with(&DelayedKeys { seen_locks: &store.locks_seen_key }, &lists);
    cmd.arg(store.redis.manual_now());
    let (role, script) = (ConnectionRole::Heartbeat, &script::RIA_HAS_WORK);
    let mut reply = store.redis.run_script_idempotent("heartbeat", role, 0, script, &cmd).await?;
    let any_delayed_due = reply.int()? == 1;
    let flags = reply.list()?;
    let may_have = |flag: &Option<Vec<u8>>| any_delayed_due || flag.as_deref() == Some(b"1");
    Ok(queues.iter().zip(&flags).filter(|(_, flag)| may_have(flag)).map(|(queue, _)| queue.clone()).collect())
}
