//! Held locks.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{rfc3339, unix_ms};
use crate::identity::Identity;
use duly::admin::Role;
use duly::lock::{LockPage, LockRecord};

/// A held lock.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[non_exhaustive]
#[schema(as = Lock)]
pub struct LockView {
    /// The name of the lock.
    pub name: String,
    /// The slot, from 0.
    pub slot: u32,
    /// The owner id, with which a client can extend and release the lock; only for roles that can break it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The node of the holder.
    pub node: String,
    /// The description of the holder.
    pub note: String,
    /// Grows with every acquisition.
    pub fence: u64,
    /// Since when it is held; missing for a lock of ActionHero, which does not record it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// The same in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<i64>,
    /// When the hold expires unless it is extended.
    pub expires: String,
    /// The same in milliseconds since 1970.
    pub expires_ms: i64,
    /// The number of waiters.
    pub waiters: u64,
}

impl From<&LockRecord> for LockView {
    /// Returns the whole hold, as an operator sees it.
    fn from(lock: &LockRecord) -> Self {
        LockView {
            name: lock.name.clone(),
            slot: lock.slot,
            owner: Some(lock.owner.to_string()),
            node: lock.node.to_string(),
            note: lock.note.clone(),
            fence: lock.fence.0,
            since: lock.since.map(rfc3339),
            since_ms: lock.since.map(unix_ms),
            expires: rfc3339(lock.expires),
            expires_ms: unix_ms(lock.expires),
            waiters: lock.waiters,
        }
    }
}

impl LockView {
    /// Returns the parts of a hold that the client may see.
    pub(crate) fn new(lock: &LockRecord, identity: &Identity) -> Self {
        let view = LockView::from(lock);
        let owner = view.owner.filter(|_| identity.require(Role::Operator).is_ok());
        LockView { owner, ..view }
    }
}

/// A page of held locks.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[non_exhaustive]
pub struct LockList {
    /// The holds, by name and slot.
    pub locks: Vec<LockView>,
    /// The cursor of the next page, if there may be one.
    pub next: Option<String>,
}

impl LockList {
    pub(crate) fn new(locks: &[LockRecord], next: Option<String>, identity: &Identity) -> Self {
        LockList { locks: locks.iter().map(|lock| LockView::new(lock, identity)).collect(), next }
    }
}

impl From<LockPage> for LockList {
    /// Returns the whole holds, as an operator sees them.
    fn from(page: LockPage) -> Self {
        LockList { locks: page.locks.iter().map(LockView::from).collect(), next: page.next_cursor }
    }
}

impl From<&[LockRecord]> for LockList {
    fn from(locks: &[LockRecord]) -> Self {
        LockList { locks: locks.iter().map(LockView::from).collect(), next: None }
    }
}
