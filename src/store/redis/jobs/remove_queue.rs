//! Removes queues: their keys, then their names in the queue registry.

use crate::error::{Error, Result};
use crate::store::redis::conn::ConnectionRole;
use crate::store::redis::{Redis, script};
use crate::store::{QueueUse, RemoveQueueResult};

/// Implements `AdminStore::remove_queue`.
pub(crate) async fn remove_queue(store: &Redis, queue: &str, only_unused: bool) -> Result<RemoveQueueResult> {
    let deleted = match delete_keys(store, queue, only_unused).await? {
        RemoveQueueResult::InUse(reason) => return Ok(RemoveQueueResult::InUse(reason)),
        RemoveQueueResult::Removed => true,
        RemoveQueueResult::NotFound => false,
    };
    let mut cmd = redis::cmd("SREM");
    cmd.arg(&store.peer_keys.queues).arg(queue);
    let slot = store.peer_keys.slot;
    let unregistered = store.servers.send_idempotent("remove_queue", ConnectionRole::Client, slot, &cmd).await?;
    store.queue_registry.forget(queue);
    // A push may have registered the name before it was removed here, and pushed since: its queue needs the name.
    if let RemoveQueueResult::InUse(reason) = delete_keys(store, queue, true).await? {
        store.register_queue("remove_queue", queue).await?;
        return Ok(RemoveQueueResult::InUse(reason));
    }
    match deleted || unregistered != redis::Value::Int(0) {
        true => Ok(RemoveQueueResult::Removed),
        false => Ok(RemoveQueueResult::NotFound),
    }
}

async fn delete_keys(store: &Redis, queue: &str, only_unused: bool) -> Result<RemoveQueueResult> {
    let keys = store.keys(queue);
    let mut cmd = script::REMOVE_QUEUE.call(&*keys);
    cmd.arg(store.manual_now()).arg(u8::from(only_unused));
    let (role, script) = (ConnectionRole::Client, &script::REMOVE_QUEUE);
    match store.run_script_idempotent("remove_queue", role, keys.slot, script, &cmd).await?.int()? {
        0 => Ok(RemoveQueueResult::Removed),
        1 => Ok(RemoveQueueResult::NotFound),
        2 => Ok(RemoveQueueResult::InUse(QueueUse::Jobs)),
        3 => Ok(RemoveQueueResult::InUse(QueueUse::CronRules)),
        4 => Ok(RemoveQueueResult::InUse(QueueUse::Transfer)),
        5 => Ok(RemoveQueueResult::InUse(QueueUse::Settings)),
        6 => Ok(RemoveQueueResult::InUse(QueueUse::Activity)),
        other => {
            let reason = format!("the script returned {other}, which this version does not know; use a newer duly");
            Err(Error::store("remove_queue", reason))
        }
    }
}
