//! Waiters for a lock: first come, first served, if their node has a current lease.

use std::collections::BTreeSet;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};

use crate::node::NodeId;
use crate::store::sqlite::locks;
use crate::store::sqlite::nodes::liveness::LivenessSnapshot;
use crate::store::sqlite::nodes::wakes::LockTurnNotice;
use crate::store::sqlite::tx::Tx;
use crate::store::{LOCK_WAITERS_CHECKED_MAX, LOCK_WAITS_MAX, LockOwner, LockRequest, LockTurn, PeerInfo};

/// Most reads of the waiters in one operation: it repeats while it finds waiters of dead nodes.
const SCAN_BATCHES_MAX: usize = 10;
/// Most waiters of one dead node deleted in one operation.
const DEAD_WAITERS_DELETE_MAX: usize = 1_000;

/// A waiter.
struct LockWaiter {
    seq: i64,
    owner: LockOwner,
    node: NodeId,
    slots: u32,
}

/// The result of one read.
struct WaiterScan {
    /// Nodes that are dead, and their waiters with them.
    dead_nodes: BTreeSet<NodeId>,
    /// The last waiter that was read.
    last_seq: i64,
    /// There are more waiters that were not read.
    more: bool,
}

/// The position of an owner among the waiters.
pub(crate) struct WaiterStatus {
    /// The owner is waiting.
    pub(crate) is_waiting: bool,
    /// The number of waiters before it.
    pub(crate) ahead: usize,
    /// Waiters of dead nodes were deleted.
    pub(crate) removed_dead: bool,
}

/// Returns whether a request with `ahead` waiters before it may take one of `slots`.
pub(crate) fn can_take_slot(slots: u32, held: usize, ahead: usize) -> bool {
    held + ahead < slots as usize
}

/// Visits the waiters after `after` that have a current lease, until `visit` returns false. The asker counts as alive,
/// whatever the registry says.
fn scan_waiters(
    conn: &Connection,
    liveness: &LivenessSnapshot<'_>,
    name: &str,
    after: i64,
    asker: Option<LockOwner>,
    mut visit: impl FnMut(LockWaiter) -> bool,
) -> rusqlite::Result<WaiterScan> {
    let mut scan = WaiterScan { dead_nodes: BTreeSet::new(), last_seq: after, more: false };
    let mut select = conn.prepare_cached(
        "SELECT seq, owner_id, node_id, slots
           FROM duly_lock_waiter WHERE lock_name = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3",
    )?;
    let mut rows = select.query(params![name, after, LOCK_WAITERS_CHECKED_MAX])?;
    let mut count = 0;
    while let Some(row) = rows.next()? {
        let waiter = LockWaiter {
            seq: row.get(0)?,
            owner: LockOwner::from_bytes(row.get(1)?),
            node: NodeId::from_bytes(row.get(2)?),
            slots: row.get(3)?,
        };
        count += 1;
        scan.last_seq = waiter.seq;
        if Some(waiter.owner) != asker && !liveness.is_peer_alive(waiter.node) {
            scan.dead_nodes.insert(waiter.node);
        } else if !visit(waiter) {
            return Ok(scan);
        }
    }
    scan.more = count == LOCK_WAITERS_CHECKED_MAX;
    Ok(scan)
}

/// Visits as [`scan_waiters`] does, and deletes waiters of dead nodes. Returns the last read, and whether it deleted any.
fn scan_and_delete_dead(
    tx: &Tx<'_>,
    liveness: &LivenessSnapshot<'_>,
    name: &str,
    asker: Option<LockOwner>,
    mut visit: impl FnMut(LockWaiter) -> bool,
) -> rusqlite::Result<(WaiterScan, bool)> {
    let mut shortened = false;
    let mut scan = scan_waiters(tx.conn, liveness, name, 0, asker, &mut visit)?;
    for _ in 1..SCAN_BATCHES_MAX {
        let again = scan.more && !scan.dead_nodes.is_empty();
        shortened |= !scan.dead_nodes.is_empty();
        for node in std::mem::take(&mut scan.dead_nodes) {
            delete_waiters_of_node(tx, name, node, asker)?;
        }
        if !again {
            break;
        }
        scan = scan_waiters(tx.conn, liveness, name, scan.last_seq, asker, &mut visit)?;
    }
    Ok((scan, shortened))
}

/// Deletes the waiters of a dead node.
fn delete_waiters_of_node(tx: &Tx<'_>, name: &str, node: NodeId, except: Option<LockOwner>) -> rusqlite::Result<()> {
    tx.statement(
        "DELETE FROM duly_lock_waiter WHERE lock_name = ?1 AND seq IN
           (SELECT seq FROM duly_lock_waiter WHERE lock_name = ?1 AND node_id = ?2 AND owner_id IS NOT ?3 LIMIT ?4)",
    )?
    .execute(params![name, node.as_bytes(), except.as_ref().map(LockOwner::as_bytes), DEAD_WAITERS_DELETE_MAX])?;
    Ok(())
}

/// Returns the position of an owner among the waiters of a lock.
pub(crate) fn waiter_status(
    tx: &Tx<'_>,
    liveness: &LivenessSnapshot<'_>,
    name: &str,
    owner: LockOwner,
) -> rusqlite::Result<WaiterStatus> {
    let (mut is_waiting, mut ahead) = (false, 0);
    let (scan, shortened) = scan_and_delete_dead(tx, liveness, name, Some(owner), |waiter| {
        is_waiting = waiter.owner == owner;
        ahead += usize::from(!is_waiting);
        !is_waiting
    })?;
    if scan.more {
        // Far behind: the waiters in between are counted without checking their nodes.
        let own_seq: Option<i64> = tx
            .statement("SELECT seq FROM duly_lock_waiter WHERE lock_name = ?1 AND owner_id = ?2")?
            .query_row(params![name, owner.as_bytes()], |row| row.get(0))
            .optional()?;
        let between: usize = tx
            .statement("SELECT count(*) FROM duly_lock_waiter WHERE lock_name = ?1 AND seq > ?2 AND seq < ?3")?
            .query_row(params![name, scan.last_seq, own_seq.unwrap_or(i64::MAX)], |row| row.get(0))?;
        (is_waiting, ahead) = (own_seq.is_some(), ahead + between);
    }
    Ok(WaiterStatus { is_waiting, ahead, removed_dead: shortened })
}

/// Adds a waiter at the end.
pub(crate) fn add_waiter(tx: &Tx<'_>, request: &LockRequest) -> rusqlite::Result<()> {
    tx.statement(
        "INSERT INTO duly_lock_waiter (lock_name, seq, owner_id, node_id, slots) VALUES (?1, ?2, ?3, ?4, ?5)",
    )?
    .execute(params![
        request.name,
        tx.next_number()?,
        request.owner.as_bytes(),
        request.node.as_bytes(),
        request.slots
    ])?;
    Ok(())
}

/// Removes a waiter.
pub(crate) fn remove_waiter(tx: &Tx<'_>, name: &str, owner: LockOwner) -> rusqlite::Result<()> {
    tx.statement("DELETE FROM duly_lock_waiter WHERE lock_name = ?1 AND owner_id = ?2")?
        .execute(params![name, owner.as_bytes()])?;
    Ok(())
}

/// Notifies, after the commit, the waiters that may take the free slots while `held` slots are taken.
pub(crate) fn notify_next(
    tx: &Tx<'_>,
    liveness: &LivenessSnapshot<'_>,
    name: &str,
    held: usize,
) -> rusqlite::Result<()> {
    let mut ahead = 0;
    let call = |waiter: LockWaiter| {
        if !can_take_slot(waiter.slots, held, ahead) {
            return false;
        }
        ahead += 1;
        tx.notify_lock_turn(LockTurnNotice { node: waiter.node, lock_name: name.to_owned(), owner: waiter.owner });
        true
    };
    scan_and_delete_dead(tx, liveness, name, None, call).map(drop)
}

/// Removes all waiters of a node, and notifies the next ones.
pub(crate) fn withdraw(tx: &Tx<'_>, liveness: &LivenessSnapshot<'_>, node: NodeId) -> rusqlite::Result<()> {
    let names: Vec<String> = tx
        .statement("DELETE FROM duly_lock_waiter WHERE node_id = ?1 RETURNING lock_name")?
        .query_map([node.as_bytes()], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    for name in names.into_iter().collect::<BTreeSet<_>>() {
        locks::notify_next_waiters(tx, liveness, &name)?;
    }
    Ok(())
}

/// Deletes waiters of dead nodes that no other operation visited.
pub(crate) fn delete_dead_waiters(tx: &Tx<'_>, liveness: &LivenessSnapshot<'_>) -> rusqlite::Result<()> {
    let nodes: Vec<[u8; 16]> = tx
        .statement("SELECT DISTINCT node_id FROM duly_lock_waiter")?
        .query_map([], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    for node in nodes.into_iter().filter(|node| !liveness.is_process_alive(NodeId::from_bytes(*node))) {
        tx.statement(
            "DELETE FROM duly_lock_waiter WHERE (lock_name, seq) IN
               (SELECT lock_name, seq FROM duly_lock_waiter WHERE node_id = ?1 LIMIT ?2)",
        )?
        .execute(params![node, DEAD_WAITERS_DELETE_MAX])?;
    }
    Ok(())
}

/// Returns the state of the locks that a peer waits for, and the locks with waiters of dead nodes.
pub(crate) fn lock_turns(
    conn: &Connection,
    liveness: &LivenessSnapshot<'_>,
    peer: &PeerInfo,
) -> rusqlite::Result<(Vec<LockTurn>, Vec<String>)> {
    let (mut turns, mut stale) = (Vec::new(), Vec::new());
    for name in peer.waited_locks.iter().take(LOCK_WAITS_MAX) {
        let mut first = None;
        let scan = scan_waiters(conn, liveness, name, 0, None, |waiter| {
            first = Some(waiter);
            false
        })?;
        if !scan.dead_nodes.is_empty() {
            stale.push(name.clone());
        }
        let Some(first) = first else {
            continue;
        };
        let held = locks::read_holds(conn, liveness, name)?.active;
        let expires_in = match can_take_slot(first.slots, held.len(), 0) {
            true => Duration::ZERO,
            false => locks::time_until_first_expiry(&held, liveness.uptime).unwrap_or_default(),
        };
        let owner = (first.node == peer.node).then_some(first.owner);
        turns.push(LockTurn { name: name.clone(), first_waiter: owner, expires_in });
    }
    Ok((turns, stale))
}

/// Returns the owners that should be waiting and are not.
pub(crate) fn find_lost_waiters(conn: &Connection, peer: &PeerInfo) -> rusqlite::Result<Vec<LockOwner>> {
    let mut find =
        conn.prepare_cached("SELECT EXISTS (SELECT 1 FROM duly_lock_waiter WHERE lock_name = ?1 AND owner_id = ?2)")?;
    let mut lost = Vec::new();
    for (name, owner) in peer.waiters.iter().take(LOCK_WAITS_MAX) {
        if !find.query_row(params![name, owner.as_bytes()], |row| row.get(0))? {
            lost.push(*owner);
        }
    }
    Ok(lost)
}

/// Returns the number of waiters that have a current lease.
pub(crate) fn count_waiting(conn: &Connection, liveness: &LivenessSnapshot<'_>, name: &str) -> rusqlite::Result<u64> {
    let mut select =
        conn.prepare_cached("SELECT node_id, count(*) FROM duly_lock_waiter WHERE lock_name = ?1 GROUP BY node_id")?;
    let mut rows = select.query([name])?;
    let mut waiting = 0;
    while let Some(row) = rows.next()? {
        if liveness.is_peer_alive(NodeId::from_bytes(row.get(0)?)) {
            waiting += row.get::<_, u64>(1)?;
        }
    }
    Ok(waiting)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_slots_go_to_the_first_waiters() {
        assert!(can_take_slot(1, 0, 0) && !can_take_slot(1, 1, 0) && !can_take_slot(1, 0, 1));
        assert!(can_take_slot(3, 1, 1) && !can_take_slot(3, 1, 2));
        assert!(!can_take_slot(1, 2, 0), "more holders than this request allows");
    }
}
