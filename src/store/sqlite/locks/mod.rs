//! Locks: the holders of each name, with slot, fence and expiry.
//!
//! Expiry uses a clock that never steps: setting the wall clock neither ends a hold nor extends it.

pub(crate) mod waiters;

use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, params};

use crate::clock::{Micros, from_micros, micros};
use crate::error::{Error, Result};
use crate::job::Fence;
use crate::node::NodeId;
use crate::store::sqlite::nodes::liveness::LivenessSnapshot;
use crate::store::sqlite::nodes::wakes::LockTurnNotice;
use crate::store::sqlite::tx::Tx;
use crate::store::sqlite::{Sqlite, errors};
use crate::store::{
    LOCK_EXTENDS_MAX, LOCK_PAGE_SIZE, LOCK_SLOTS_MAX, LockOwner, LockPage, LockRecord, LockReply, LockRequest,
    LockStore,
};

/// Expired holds of other names that each acquisition deletes: more than it adds.
const EXPIRED_DELETE_MAX: usize = 2;

/// A hold of a lock that has not ended.
pub(super) struct HoldRow {
    slot: u32,
    owner: LockOwner,
    fence: i64,
    expires_uptime: Micros,
}

/// The holds of a lock.
pub(super) struct LockHolds {
    pub(super) active: Vec<HoldRow>,
    /// Slots of holds that have ended.
    expired_slots: Vec<u32>,
}

#[async_trait]
impl LockStore for Sqlite {
    async fn lock(&self, request: &LockRequest) -> Result<LockReply> {
        let to_error = |e| errors::from_registry("lock", "cannot take a slot in the node registry", e);
        self.registry.ensure_announced(request.node, request.lease).map_err(to_error)?;
        let (registry, request) = (self.registry.clone(), request.clone());
        self.writer.write("lock", move |tx| lock(tx, &LivenessSnapshot::new(&registry), &request)).await
    }

    async fn extend_locks(&self, requests: &[LockRequest]) -> Result<Vec<bool>> {
        if requests.len() > LOCK_EXTENDS_MAX {
            return Err(Error::invalid("locks", format!("must not be more than {LOCK_EXTENDS_MAX} at a time")));
        }
        let (registry, requests) = (self.registry.clone(), requests.to_vec());
        let extend = move |tx: &Tx<'_>| {
            let liveness = LivenessSnapshot::new(&registry);
            requests.iter().map(|request| extend_lock(tx, &liveness, request)).collect()
        };
        self.writer.write("extend_locks", extend).await
    }

    async fn unlock(&self, request: &LockRequest) -> Result<bool> {
        let (registry, name, owner) = (self.registry.clone(), request.name.clone(), request.owner);
        self.writer.write("unlock", move |tx| unlock(tx, &LivenessSnapshot::new(&registry), &name, owner)).await
    }

    async fn cancel_wait(&self, request: &LockRequest) -> Result<()> {
        let (registry, name, owner) = (self.registry.clone(), request.name.clone(), request.owner);
        self.writer
            .write("cancel_wait", move |tx| cancel_wait(tx, &LivenessSnapshot::new(&registry), &name, owner))
            .await
    }

    async fn locks(&self, name: Option<&str>, cursor: Option<&str>) -> Result<LockPage> {
        let (registry, clock) = (self.registry.clone(), self.clock.clone());
        let (name, cursor) = (name.map(str::to_owned), cursor.map(str::to_owned));
        let read = move |conn: &Connection| {
            locks(conn, &LivenessSnapshot::new(&registry), clock.now_micros(), name.as_deref(), cursor.as_deref())
        };
        self.read("locks", read).await
    }

    async fn break_lock(&self, name: &str, owner: Option<LockOwner>) -> Result<u64> {
        let (registry, name) = (self.registry.clone(), name.to_owned());
        self.writer.write("break_lock", move |tx| break_lock(tx, &LivenessSnapshot::new(&registry), &name, owner)).await
    }
}

/// Returns whether a hold has ended. A hold that starts in the future is from before the last start of the machine.
fn has_ended(now: Micros, from: Micros, expires: Micros, node_gone: bool) -> bool {
    node_gone || expires <= now || from > now
}

/// Returns the holds of a lock, and apart from them the slots of ended ones.
pub(super) fn read_holds(
    conn: &Connection,
    liveness: &LivenessSnapshot<'_>,
    name: &str,
) -> rusqlite::Result<LockHolds> {
    let mut living = LockHolds { active: Vec::new(), expired_slots: Vec::new() };
    let mut select = conn.prepare_cached(
        "SELECT slot, owner_id, fence, extended_uptime, expires_uptime, node_id, ends_with_node
           FROM duly_lock WHERE name = ?1 ORDER BY slot LIMIT ?2",
    )?;
    let mut rows = select.query(params![name, LOCK_SLOTS_MAX])?;
    while let Some(row) = rows.next()? {
        let hold = HoldRow {
            slot: row.get(0)?,
            owner: LockOwner::from_bytes(row.get(1)?),
            fence: row.get(2)?,
            expires_uptime: row.get(4)?,
        };
        let is_gone = row.get::<_, bool>(6)? && !liveness.is_process_alive(NodeId::from_bytes(row.get(5)?));
        match has_ended(liveness.uptime, row.get(3)?, hold.expires_uptime, is_gone) {
            true => living.expired_slots.push(hold.slot),
            false => living.active.push(hold),
        }
    }
    Ok(living)
}

/// Returns the time until the first of these holds ends.
pub(super) fn time_until_first_expiry(holds: &[HoldRow], now: Micros) -> Option<Duration> {
    holds.iter().map(|hold| hold.expires_uptime - now).min().map(|left| Duration::from_micros(left.unsigned_abs()))
}

/// Returns the holds of a lock and deletes the ended ones. Also returns whether there were any.
fn delete_expired(tx: &Tx<'_>, liveness: &LivenessSnapshot<'_>, name: &str) -> rusqlite::Result<(Vec<HoldRow>, bool)> {
    let living = read_holds(tx.conn, liveness, name)?;
    for slot in &living.expired_slots {
        tx.statement("DELETE FROM duly_lock WHERE name = ?1 AND slot = ?2")?.execute(params![name, slot])?;
    }
    Ok((living.active, !living.expired_slots.is_empty()))
}

/// Implements `LockStore::lock`.
pub(super) fn lock(tx: &Tx<'_>, liveness: &LivenessSnapshot<'_>, request: &LockRequest) -> rusqlite::Result<LockReply> {
    let (holds, ended) = delete_expired(tx, liveness, &request.name)?;
    if let Some(own) = holds.iter().find(|hold| hold.owner == request.owner) {
        extend_lock(tx, liveness, request)?;
        return Ok(acquired_reply(own.fence, own.slot));
    }
    let status = waiters::waiter_status(tx, liveness, &request.name, request.owner)?;
    if waiters::can_take_slot(request.slots, holds.len(), status.ahead) {
        if status.is_waiting {
            waiters::remove_waiter(tx, &request.name, request.owner)?;
        }
        let (fence, slot) = acquire_slot(tx, liveness, request, &holds)?;
        // If several slots are free, more waiters may have their turn.
        waiters::notify_next(tx, liveness, &request.name, holds.len() + 1)?;
        return Ok(acquired_reply(fence, slot));
    }
    if request.wait && !status.is_waiting {
        waiters::add_waiter(tx, request)?;
    }
    let is_free = holds.len() < request.slots as usize;
    if ended || status.removed_dead || (is_free && !request.wait) {
        // This request is the first to see that it is a waiter's turn. Or the first waiter missed its turn, or gave up.
        waiters::notify_next(tx, liveness, &request.name, holds.len())?;
    }
    let ahead = u32::try_from(status.ahead).unwrap_or(u32::MAX);
    Ok(LockReply {
        hold: None,
        waiters_ahead: ahead,
        expires_in: time_until_first_expiry(&holds, liveness.uptime).filter(|_| !is_free),
    })
}

fn acquired_reply(fence: i64, slot: u32) -> LockReply {
    LockReply { hold: Some((Fence(fence.unsigned_abs()), slot)), waiters_ahead: 0, expires_in: None }
}

/// Takes the first free slot.
fn acquire_slot(
    tx: &Tx<'_>,
    liveness: &LivenessSnapshot<'_>,
    request: &LockRequest,
    holds: &[HoldRow],
) -> rusqlite::Result<(i64, u32)> {
    let slot = (1..).find(|slot| holds.iter().all(|hold| hold.slot != *slot)).unwrap_or(u32::MAX);
    let fence = tx.next_fence()?;
    tx.statement(
        "INSERT INTO duly_lock (name, slot, owner_id, node_id, ends_with_node, note, fence, acquired_at,
           extended_uptime, expires_uptime)
         VALUES (?1, ?2, ?3, ?4, 1, ?5, ?6, ?7, ?8, ?9)",
    )?
    .execute(params![
        request.name,
        slot,
        request.owner.as_bytes(),
        request.node.as_bytes(),
        request.note,
        fence,
        tx.now,
        liveness.uptime,
        liveness.uptime + micros(request.ttl)
    ])?;
    // Expired holds that no request may ever visit again.
    tx.statement(
        "DELETE FROM duly_lock WHERE (name, slot) IN
           (SELECT name, slot FROM duly_lock WHERE expires_uptime <= ?1 LIMIT ?2)",
    )?
    .execute(params![liveness.uptime, EXPIRED_DELETE_MAX])?;
    Ok((fence, slot))
}

/// Extends a hold by its `ttl` from now, if the owner has it. It ends with its node only while that node itself extends
/// it.
pub(super) fn extend_lock(
    tx: &Tx<'_>,
    liveness: &LivenessSnapshot<'_>,
    request: &LockRequest,
) -> rusqlite::Result<bool> {
    let extended = tx
        .statement(
            "UPDATE duly_lock SET extended_uptime = ?3, expires_uptime = ?4, ends_with_node = ?5 AND node_id = ?6
              WHERE name = ?1 AND owner_id = ?2 AND expires_uptime > ?3 AND extended_uptime <= ?3",
        )?
        .execute(params![
            request.name,
            request.owner.as_bytes(),
            liveness.uptime,
            liveness.uptime + micros(request.ttl),
            liveness.is_process_alive(request.node),
            request.node.as_bytes()
        ])?;
    Ok(extended > 0)
}

/// Implements `LockStore::unlock`.
pub(super) fn unlock(
    tx: &Tx<'_>,
    liveness: &LivenessSnapshot<'_>,
    name: &str,
    owner: LockOwner,
) -> rusqlite::Result<bool> {
    let (holds, _) = delete_expired(tx, liveness, name)?;
    let held = tx
        .statement("DELETE FROM duly_lock WHERE name = ?1 AND owner_id = ?2")?
        .execute(params![name, owner.as_bytes()])?;
    waiters::remove_waiter(tx, name, owner)?;
    waiters::notify_next(tx, liveness, name, holds.len() - held)?;
    Ok(held > 0)
}

/// Implements `LockStore::cancel_wait`.
pub(super) fn cancel_wait(
    tx: &Tx<'_>,
    liveness: &LivenessSnapshot<'_>,
    name: &str,
    owner: LockOwner,
) -> rusqlite::Result<()> {
    waiters::remove_waiter(tx, name, owner)?;
    notify_next_waiters(tx, liveness, name)
}

/// Implements `LockStore::break_lock`.
pub(super) fn break_lock(
    tx: &Tx<'_>,
    liveness: &LivenessSnapshot<'_>,
    name: &str,
    owner: Option<LockOwner>,
) -> rusqlite::Result<u64> {
    let (holds, _) = delete_expired(tx, liveness, name)?;
    let broken = tx
        .statement(
            "DELETE FROM duly_lock WHERE name = ?1 AND (?2 IS NULL OR owner_id = ?2) RETURNING node_id, owner_id",
        )?
        .query_map(params![name, owner.as_ref().map(LockOwner::as_bytes)], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<Vec<([u8; 16], [u8; 16])>>>()?;
    let ended = broken.len();
    for (node, owner) in broken {
        let (node, owner) = (NodeId::from_bytes(node), LockOwner::from_bytes(owner));
        tx.notify_lock_turn(LockTurnNotice { node, lock_name: name.to_owned(), owner });
    }
    waiters::notify_next(tx, liveness, name, holds.len() - ended)?;
    Ok(ended as u64)
}

/// Notifies the waiters that have their turn, after the waiters changed.
pub(super) fn notify_next_waiters(tx: &Tx<'_>, liveness: &LivenessSnapshot<'_>, name: &str) -> rusqlite::Result<()> {
    let (holds, _) = delete_expired(tx, liveness, name)?;
    waiters::notify_next(tx, liveness, name, holds.len())
}

/// Marks the holds of a node that leaves: from now on only their time ends them.
pub(super) fn detach_from_node(tx: &Tx<'_>, node: NodeId) -> rusqlite::Result<()> {
    tx.statement("UPDATE duly_lock SET ends_with_node = 0 WHERE node_id = ?1 AND ends_with_node <> 0")?
        .execute([node.as_bytes()])?;
    Ok(())
}

/// Deletes holds from before the last start of the machine: their expiry has no meaning now.
pub(super) fn delete_before_boot(tx: &Tx<'_>, liveness: &LivenessSnapshot<'_>) -> rusqlite::Result<()> {
    tx.statement("DELETE FROM duly_lock WHERE extended_uptime > ?1")?.execute([liveness.uptime])?;
    Ok(())
}

/// Implements `LockStore::locks`. The cursor is slot and name of the last hold that was read.
pub(super) fn locks(
    conn: &Connection,
    liveness: &LivenessSnapshot<'_>,
    wall: Micros,
    name: Option<&str>,
    cursor: Option<&str>,
) -> Result<LockPage> {
    let wrong = || Error::invalid("cursor", "is not from a list of locks; use the cursor of the previous page");
    let (after_name, after_slot) = match cursor {
        None => (name.unwrap_or_default(), 0),
        Some(text) => {
            let (slot, name) = text.split_once('.').ok_or_else(wrong)?;
            (name, slot.parse::<u32>().map_err(|_| wrong())?)
        }
    };
    read_page(conn, liveness, wall, name, (after_name, after_slot)).map_err(|e| errors::from_sqlite("locks", e))
}

fn read_page(
    conn: &Connection,
    liveness: &LivenessSnapshot<'_>,
    wall: Micros,
    only: Option<&str>,
    after: (&str, u32),
) -> rusqlite::Result<LockPage> {
    let mut page = LockPage::default();
    let mut select = conn.prepare_cached(
        "SELECT name, slot, owner_id, node_id, note, fence, acquired_at, extended_uptime, expires_uptime,
           ends_with_node FROM duly_lock
          WHERE (name, slot) > (?1, ?2) AND (?3 IS NULL OR name = ?3) ORDER BY name, slot LIMIT ?4",
    )?;
    let mut rows = select.query(params![after.0, after.1, only, LOCK_PAGE_SIZE])?;
    let (mut scanned, mut last) = (0, (String::new(), 0));
    let mut waiting = (String::new(), 0);
    while let Some(row) = rows.next()? {
        scanned += 1;
        last = (row.get(0)?, row.get(1)?);
        let (node, expires) = (NodeId::from_bytes(row.get(3)?), row.get(8)?);
        let is_gone = row.get::<_, bool>(9)? && !liveness.is_process_alive(node);
        if has_ended(liveness.uptime, row.get(7)?, expires, is_gone) {
            continue;
        }
        if waiting.0 != last.0 || page.locks.is_empty() {
            waiting = (last.0.clone(), waiters::count_waiting(conn, liveness, &last.0)?);
        }
        page.locks.push(LockRecord {
            name: last.0.clone(),
            slot: last.1,
            owner: LockOwner::from_bytes(row.get(2)?),
            node,
            note: row.get(4)?,
            fence: Fence(row.get::<_, i64>(5)?.unsigned_abs()),
            since: Some(from_micros(row.get(6)?)),
            expires: from_micros(wall + (expires - liveness.uptime)),
            waiters: waiting.1,
        });
    }
    page.next_cursor = (scanned == LOCK_PAGE_SIZE).then(|| format!("{}.{}", last.1, last.0));
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hold_ends_by_expiry_node_death_or_reboot() {
        assert!(!has_ended(5, 1, 9, false));
        assert!(has_ended(9, 1, 9, false), "it ends at its expiry");
        assert!(has_ended(5, 1, 9, true));
        assert!(has_ended(5, 6, 9, false), "taken in the future: from before the last start of the machine");
    }

    #[test]
    fn first_expiry_is_the_earliest_of_all_holds() {
        let hold = |expires| HoldRow { slot: 1, owner: LockOwner::fresh(), fence: 1, expires_uptime: expires };
        assert_eq!(time_until_first_expiry(&[hold(9), hold(7), hold(8)], 5), Some(Duration::from_micros(2)));
        assert_eq!(time_until_first_expiry(&[], 5), None);
    }
}
