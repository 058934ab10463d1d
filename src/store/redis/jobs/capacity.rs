//! Capacity of queues: how much a queue may hold.

use std::sync::atomic::Ordering;

use crate::error::Result;
use crate::store::Capacity;
use crate::store::redis::{Redis, script};

/// The largest integer that scripts represent exactly.
const EXACT_INTEGER_MAX: u64 = 1 << 53;

/// Implements `AdminStore::set_capacity`.
pub(crate) async fn set_capacity(store: &Redis, queue: &str, capacity: Capacity) -> Result<Capacity> {
    let keys = store.register_queue("set_capacity", queue).await?;
    let mut cmd = script::SET_CAPACITY.call(&*keys);
    let text =
        |maximum: Option<u64>| maximum.map(|maximum| maximum.min(EXACT_INTEGER_MAX).to_string()).unwrap_or_default();
    cmd.arg(store.manual_now()).arg(text(capacity.jobs)).arg(text(capacity.bytes));
    let value = store.send_replicated("set_capacity", &keys, Some(&script::SET_CAPACITY), &[cmd]).await?;
    keys.unlimited_at.store(i64::MIN, Ordering::Relaxed);
    store.parse_reply("set_capacity", value)?.capacity()
}
