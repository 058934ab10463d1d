//! Waiters for a lock: first come, first served, if their node has a current lease.

use std::collections::BTreeSet;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};

use crate::node::NodeId;
use crate::store::sqlite::locks;
use crate::store::sqlite::nodes::liveness::Lives;
use crate::store::sqlite::nodes::wake::Called;
use crate::store::sqlite::tx::Tx;
use crate::store::{Guest, LINE_LOOK_MAX, LockAsk, Owner, Turn, WAITS_MAX};

/// Most reads of the waiters in one operation: it repeats while it finds waiters of dead nodes.
const LOOKS_MAX: usize = 10;
/// Most waiters of one dead node deleted in one operation.
const GONE_MAX: usize = 1_000;

/// A waiter.
struct Place {
    seq: i64,
    owner: Owner,
    node: NodeId,
    slots: u32,
}

/// The result of one read.
struct Looked {
    /// Nodes that are dead, and their waiters with them.
    gone: BTreeSet<NodeId>,
    /// The last waiter that was read.
    last: i64,
    /// There are more waiters that were not read.
    more: bool,
}

/// The position of an owner among the waiters.
pub(crate) struct Standing {
    /// The owner is waiting.
    pub(crate) stands: bool,
    /// The number of waiters before it.
    pub(crate) ahead: usize,
    /// Waiters of dead nodes were deleted.
    pub(crate) shortened: bool,
}

/// Returns whether a request with `ahead` waiters before it may take one of `slots`.
pub(crate) fn may_take(slots: u32, held: usize, ahead: usize) -> bool {
    held + ahead < slots as usize
}

/// Visits the waiters after `after` that have a current lease, until `visit` returns false. The asker counts as alive,
/// whatever the registry says.
fn look(
    conn: &Connection,
    lives: &Lives<'_>,
    name: &str,
    after: i64,
    asker: Option<Owner>,
    mut visit: impl FnMut(Place) -> bool,
) -> rusqlite::Result<Looked> {
    let mut looked = Looked { gone: BTreeSet::new(), last: after, more: false };
    let mut select = conn.prepare_cached(
        "SELECT seq, owner_id, node_id, slots
           FROM duly_lock_waiter WHERE lock_name = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3",
    )?;
    let mut rows = select.query(params![name, after, LINE_LOOK_MAX])?;
    let mut count = 0;
    while let Some(row) = rows.next()? {
        let place = Place {
            seq: row.get(0)?,
            owner: Owner::from_bytes(row.get(1)?),
            node: NodeId::from_bytes(row.get(2)?),
            slots: row.get(3)?,
        };
        count += 1;
        looked.last = place.seq;
        if Some(place.owner) != asker && !lives.attends(place.node) {
            looked.gone.insert(place.node);
        } else if !visit(place) {
            return Ok(looked);
        }
    }
    looked.more = count == LINE_LOOK_MAX;
    Ok(looked)
}

/// Visits as [`look`] does, and deletes waiters of dead nodes. Returns the last read, and whether it deleted any.
fn walk(
    tx: &Tx<'_>,
    lives: &Lives<'_>,
    name: &str,
    asker: Option<Owner>,
    mut visit: impl FnMut(Place) -> bool,
) -> rusqlite::Result<(Looked, bool)> {
    let mut shortened = false;
    let mut looked = look(tx.conn, lives, name, 0, asker, &mut visit)?;
    for _ in 1..LOOKS_MAX {
        let again = looked.more && !looked.gone.is_empty();
        shortened |= !looked.gone.is_empty();
        for node in std::mem::take(&mut looked.gone) {
            forget(tx, name, node, asker)?;
        }
        if !again {
            break;
        }
        looked = look(tx.conn, lives, name, looked.last, asker, &mut visit)?;
    }
    Ok((looked, shortened))
}

/// Deletes the waiters of a dead node.
fn forget(tx: &Tx<'_>, name: &str, node: NodeId, except: Option<Owner>) -> rusqlite::Result<()> {
    tx.statement(
        "DELETE FROM duly_lock_waiter WHERE lock_name = ?1 AND seq IN
           (SELECT seq FROM duly_lock_waiter WHERE lock_name = ?1 AND node_id = ?2 AND owner_id IS NOT ?3 LIMIT ?4)",
    )?
    .execute(params![name, node.as_bytes(), except.as_ref().map(Owner::as_bytes), GONE_MAX])?;
    Ok(())
}

/// Returns the position of an owner among the waiters of a lock.
pub(crate) fn standing(tx: &Tx<'_>, lives: &Lives<'_>, name: &str, owner: Owner) -> rusqlite::Result<Standing> {
    let (mut stands, mut ahead) = (false, 0);
    let (looked, shortened) = walk(tx, lives, name, Some(owner), |place| {
        stands = place.owner == owner;
        ahead += usize::from(!stands);
        !stands
    })?;
    if looked.more {
        // Far behind: the waiters in between are counted without checking their nodes.
        let own: Option<i64> = tx
            .statement("SELECT seq FROM duly_lock_waiter WHERE lock_name = ?1 AND owner_id = ?2")?
            .query_row(params![name, owner.as_bytes()], |row| row.get(0))
            .optional()?;
        let between: usize = tx
            .statement("SELECT count(*) FROM duly_lock_waiter WHERE lock_name = ?1 AND seq > ?2 AND seq < ?3")?
            .query_row(params![name, looked.last, own.unwrap_or(i64::MAX)], |row| row.get(0))?;
        (stands, ahead) = (own.is_some(), ahead + between);
    }
    Ok(Standing { stands, ahead, shortened })
}

/// Adds a waiter at the end.
pub(crate) fn stand(tx: &Tx<'_>, ask: &LockAsk) -> rusqlite::Result<()> {
    tx.statement(
        "INSERT INTO duly_lock_waiter (lock_name, seq, owner_id, node_id, slots) VALUES (?1, ?2, ?3, ?4, ?5)",
    )?
    .execute(params![ask.name, tx.number()?, ask.owner.as_bytes(), ask.node.as_bytes(), ask.slots])?;
    Ok(())
}

/// Removes a waiter.
pub(crate) fn quit(tx: &Tx<'_>, name: &str, owner: Owner) -> rusqlite::Result<()> {
    tx.statement("DELETE FROM duly_lock_waiter WHERE lock_name = ?1 AND owner_id = ?2")?
        .execute(params![name, owner.as_bytes()])?;
    Ok(())
}

/// Notifies, after the commit, the waiters that may take the free slots while `held` slots are taken.
pub(crate) fn tell(tx: &Tx<'_>, lives: &Lives<'_>, name: &str, held: usize) -> rusqlite::Result<()> {
    let mut ahead = 0;
    let call = |place: Place| {
        if !may_take(place.slots, held, ahead) {
            return false;
        }
        ahead += 1;
        tx.call(Called { node: place.node, name: name.to_owned(), owner: place.owner });
        true
    };
    walk(tx, lives, name, None, call).map(drop)
}

/// Removes all waiters of a node, and notifies the next ones.
pub(crate) fn depart(tx: &Tx<'_>, lives: &Lives<'_>, node: NodeId) -> rusqlite::Result<()> {
    let names: Vec<String> = tx
        .statement("DELETE FROM duly_lock_waiter WHERE node_id = ?1 RETURNING lock_name")?
        .query_map([node.as_bytes()], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    for name in names.into_iter().collect::<BTreeSet<_>>() {
        locks::pass_on(tx, lives, &name)?;
    }
    Ok(())
}

/// Deletes waiters of dead nodes that no other operation visited.
pub(crate) fn sweep(tx: &Tx<'_>, lives: &Lives<'_>) -> rusqlite::Result<()> {
    let nodes: Vec<[u8; 16]> = tx
        .statement("SELECT DISTINCT node_id FROM duly_lock_waiter")?
        .query_map([], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    for node in nodes.into_iter().filter(|node| !lives.is_there(NodeId::from_bytes(*node))) {
        tx.statement(
            "DELETE FROM duly_lock_waiter WHERE (lock_name, seq) IN
               (SELECT lock_name, seq FROM duly_lock_waiter WHERE node_id = ?1 LIMIT ?2)",
        )?
        .execute(params![node, GONE_MAX])?;
    }
    Ok(())
}

/// Returns the state of the locks that a peer waits for, and the locks with waiters of dead nodes.
pub(crate) fn turns(conn: &Connection, lives: &Lives<'_>, guest: &Guest) -> rusqlite::Result<(Vec<Turn>, Vec<String>)> {
    let (mut turns, mut stale) = (Vec::new(), Vec::new());
    for name in guest.waits.iter().take(WAITS_MAX) {
        let mut first = None;
        let looked = look(conn, lives, name, 0, None, |place| {
            first = Some(place);
            false
        })?;
        if !looked.gone.is_empty() {
            stale.push(name.clone());
        }
        let Some(first) = first else {
            continue;
        };
        let held = locks::living(conn, lives, name)?.holds;
        let ends = match may_take(first.slots, held.len(), 0) {
            true => Duration::ZERO,
            false => locks::first_end(&held, lives.now).unwrap_or_default(),
        };
        let owner = (first.node == guest.node).then_some(first.owner);
        turns.push(Turn { name: name.clone(), first: owner, ends });
    }
    Ok((turns, stale))
}

/// Returns the owners that should be waiting and are not.
pub(crate) fn lost(conn: &Connection, guest: &Guest) -> rusqlite::Result<Vec<Owner>> {
    let mut find =
        conn.prepare_cached("SELECT EXISTS (SELECT 1 FROM duly_lock_waiter WHERE lock_name = ?1 AND owner_id = ?2)")?;
    let mut lost = Vec::new();
    for (name, owner) in guest.places.iter().take(WAITS_MAX) {
        if !find.query_row(params![name, owner.as_bytes()], |row| row.get(0))? {
            lost.push(*owner);
        }
    }
    Ok(lost)
}

/// Returns the number of waiters that have a current lease.
pub(crate) fn waiting(conn: &Connection, lives: &Lives<'_>, name: &str) -> rusqlite::Result<u64> {
    let mut select =
        conn.prepare_cached("SELECT node_id, count(*) FROM duly_lock_waiter WHERE lock_name = ?1 GROUP BY node_id")?;
    let mut rows = select.query([name])?;
    let mut waiting = 0;
    while let Some(row) = rows.next()? {
        if lives.attends(NodeId::from_bytes(row.get(0)?)) {
            waiting += row.get::<_, u64>(1)?;
        }
    }
    Ok(waiting)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_slots_are_for_the_first_in_line() {
        assert!(may_take(1, 0, 0) && !may_take(1, 1, 0) && !may_take(1, 0, 1));
        assert!(may_take(3, 1, 1) && !may_take(3, 1, 2));
        assert!(!may_take(1, 2, 0), "more holders than this request allows");
    }
}
