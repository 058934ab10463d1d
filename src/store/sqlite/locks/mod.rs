//! Locks: the holders of each name, with slot, fence and expiry.
//!
//! Expiry uses a clock that never steps: setting the wall clock neither ends a hold nor extends it.

pub(crate) mod waiters;

use std::time::Duration;

use rusqlite::{Connection, params};

use crate::clock::{Micros, from_micros, micros};
use crate::error::{Error, Result};
use crate::job::Fence;
use crate::node::NodeId;
use crate::store::sqlite::nodes::liveness::Lives;
use crate::store::sqlite::nodes::wake::Called;
use crate::store::sqlite::tx::Tx;
use crate::store::{LOCK_SLOTS_MAX, LOCKS_PAGE, LockAsk, LockPage, LockRecord, LockTaken, Owner};

/// Expired holds of other names that each acquisition deletes: more than it adds.
const SWEEP_MAX: usize = 2;

/// A hold of a lock that has not ended.
pub(super) struct Hold {
    slot: u32,
    owner: Owner,
    fence: i64,
    ends: Micros,
}

/// The holds of a lock.
pub(super) struct Living {
    pub(super) holds: Vec<Hold>,
    /// Slots of holds that have ended.
    ended: Vec<u32>,
}

/// Returns whether a hold has ended. A hold that starts in the future is from before the last start of the machine.
fn has_ended(now: Micros, from: Micros, ends: Micros, node_gone: bool) -> bool {
    node_gone || ends <= now || from > now
}

/// Returns the holds of a lock, and apart from them the slots of ended ones.
pub(super) fn living(conn: &Connection, lives: &Lives<'_>, name: &str) -> rusqlite::Result<Living> {
    let mut living = Living { holds: Vec::new(), ended: Vec::new() };
    let mut select = conn.prepare_cached(
        "SELECT slot, owner_id, fence, extended_uptime, expires_uptime, node_id, ends_with_node
           FROM duly_lock WHERE name = ?1 ORDER BY slot LIMIT ?2",
    )?;
    let mut rows = select.query(params![name, LOCK_SLOTS_MAX])?;
    while let Some(row) = rows.next()? {
        let hold =
            Hold { slot: row.get(0)?, owner: Owner::from_bytes(row.get(1)?), fence: row.get(2)?, ends: row.get(4)? };
        let gone = row.get::<_, bool>(6)? && !lives.is_there(NodeId::from_bytes(row.get(5)?));
        match has_ended(lives.now, row.get(3)?, hold.ends, gone) {
            true => living.ended.push(hold.slot),
            false => living.holds.push(hold),
        }
    }
    Ok(living)
}

/// Returns the time until the first of these holds ends.
pub(super) fn first_end(holds: &[Hold], now: Micros) -> Option<Duration> {
    holds.iter().map(|hold| hold.ends - now).min().map(|left| Duration::from_micros(left.unsigned_abs()))
}

/// Returns the holds of a lock and deletes the ended ones. Also returns whether there were any.
fn clear(tx: &Tx<'_>, lives: &Lives<'_>, name: &str) -> rusqlite::Result<(Vec<Hold>, bool)> {
    let living = living(tx.conn, lives, name)?;
    for slot in &living.ended {
        tx.statement("DELETE FROM duly_lock WHERE name = ?1 AND slot = ?2")?.execute(params![name, slot])?;
    }
    Ok((living.holds, !living.ended.is_empty()))
}

/// Implements `lock` of the store contract.
pub(super) fn lock(tx: &Tx<'_>, lives: &Lives<'_>, ask: &LockAsk) -> rusqlite::Result<LockTaken> {
    let (holds, ended) = clear(tx, lives, &ask.name)?;
    if let Some(own) = holds.iter().find(|hold| hold.owner == ask.owner) {
        extend(tx, lives, ask)?;
        return Ok(taken(own.fence, own.slot));
    }
    let standing = waiters::standing(tx, lives, &ask.name, ask.owner)?;
    if waiters::may_take(ask.slots, holds.len(), standing.ahead) {
        if standing.stands {
            waiters::quit(tx, &ask.name, ask.owner)?;
        }
        let (fence, slot) = take(tx, lives, ask, &holds)?;
        // If several slots are free, more waiters may have their turn.
        waiters::tell(tx, lives, &ask.name, holds.len() + 1)?;
        return Ok(taken(fence, slot));
    }
    if ask.wait && !standing.stands {
        waiters::stand(tx, ask)?;
    }
    let is_free = holds.len() < ask.slots as usize;
    if ended || standing.shortened || (is_free && !ask.wait) {
        // This request is the first to see that it is a waiter's turn. Or the first waiter missed its turn, or gave up.
        waiters::tell(tx, lives, &ask.name, holds.len())?;
    }
    let ahead = u32::try_from(standing.ahead).unwrap_or(u32::MAX);
    Ok(LockTaken { hold: None, ahead, ends: first_end(&holds, lives.now).filter(|_| !is_free) })
}

fn taken(fence: i64, slot: u32) -> LockTaken {
    LockTaken { hold: Some((Fence(fence.unsigned_abs()), slot)), ahead: 0, ends: None }
}

/// Takes the first free slot.
fn take(tx: &Tx<'_>, lives: &Lives<'_>, ask: &LockAsk, holds: &[Hold]) -> rusqlite::Result<(i64, u32)> {
    let slot = (1..).find(|slot| holds.iter().all(|hold| hold.slot != *slot)).unwrap_or(u32::MAX);
    let fence = tx.fence()?;
    tx.statement(
        "INSERT INTO duly_lock (name, slot, owner_id, node_id, ends_with_node, note, fence, acquired_at,
           extended_uptime, expires_uptime)
         VALUES (?1, ?2, ?3, ?4, 1, ?5, ?6, ?7, ?8, ?9)",
    )?
    .execute(params![
        ask.name,
        slot,
        ask.owner.as_bytes(),
        ask.node.as_bytes(),
        ask.note,
        fence,
        tx.now,
        lives.now,
        lives.now + micros(ask.ttl)
    ])?;
    // Expired holds that no request may ever visit again.
    tx.statement(
        "DELETE FROM duly_lock WHERE (name, slot) IN
           (SELECT name, slot FROM duly_lock WHERE expires_uptime <= ?1 LIMIT ?2)",
    )?
    .execute(params![lives.now, SWEEP_MAX])?;
    Ok((fence, slot))
}

/// Extends a hold by its `ttl` from now, if the owner has it. It ends with its node only while that node itself extends
/// it.
pub(super) fn extend(tx: &Tx<'_>, lives: &Lives<'_>, ask: &LockAsk) -> rusqlite::Result<bool> {
    let extended = tx
        .statement(
            "UPDATE duly_lock SET extended_uptime = ?3, expires_uptime = ?4, ends_with_node = ?5 AND node_id = ?6
              WHERE name = ?1 AND owner_id = ?2 AND expires_uptime > ?3 AND extended_uptime <= ?3",
        )?
        .execute(params![
            ask.name,
            ask.owner.as_bytes(),
            lives.now,
            lives.now + micros(ask.ttl),
            lives.is_there(ask.node),
            ask.node.as_bytes()
        ])?;
    Ok(extended > 0)
}

/// Implements `unlock` of the store contract.
pub(super) fn unlock(tx: &Tx<'_>, lives: &Lives<'_>, name: &str, owner: Owner) -> rusqlite::Result<bool> {
    let (holds, _) = clear(tx, lives, name)?;
    let held = tx
        .statement("DELETE FROM duly_lock WHERE name = ?1 AND owner_id = ?2")?
        .execute(params![name, owner.as_bytes()])?;
    waiters::quit(tx, name, owner)?;
    waiters::tell(tx, lives, name, holds.len() - held)?;
    Ok(held > 0)
}

/// Implements `cancel_wait` of the store contract.
pub(super) fn leave_line(tx: &Tx<'_>, lives: &Lives<'_>, name: &str, owner: Owner) -> rusqlite::Result<()> {
    waiters::quit(tx, name, owner)?;
    pass_on(tx, lives, name)
}

/// Implements `break_lock` of the store contract.
pub(super) fn break_all(tx: &Tx<'_>, lives: &Lives<'_>, name: &str) -> rusqlite::Result<u64> {
    let (holds, _) = clear(tx, lives, name)?;
    let broken = tx
        .statement("DELETE FROM duly_lock WHERE name = ?1 RETURNING node_id, owner_id")?
        .query_map([name], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<Vec<([u8; 16], [u8; 16])>>>()?;
    for (node, owner) in broken {
        let (node, owner) = (NodeId::from_bytes(node), Owner::from_bytes(owner));
        tx.call(Called { node, name: name.to_owned(), owner });
    }
    waiters::tell(tx, lives, name, 0)?;
    Ok(holds.len() as u64)
}

/// Notifies the waiters that have their turn, after the waiters changed.
pub(super) fn pass_on(tx: &Tx<'_>, lives: &Lives<'_>, name: &str) -> rusqlite::Result<()> {
    let (holds, _) = clear(tx, lives, name)?;
    waiters::tell(tx, lives, name, holds.len())
}

/// Marks the holds of a node that leaves: from now on only their time ends them.
pub(super) fn unbind(tx: &Tx<'_>, node: NodeId) -> rusqlite::Result<()> {
    tx.statement("UPDATE duly_lock SET ends_with_node = 0 WHERE node_id = ?1 AND ends_with_node <> 0")?
        .execute([node.as_bytes()])?;
    Ok(())
}

/// Deletes holds from before the last start of the machine: their expiry has no meaning now.
pub(super) fn sweep(tx: &Tx<'_>, lives: &Lives<'_>) -> rusqlite::Result<()> {
    tx.statement("DELETE FROM duly_lock WHERE extended_uptime > ?1")?.execute([lives.now])?;
    Ok(())
}

/// Implements `locks` of the store contract. The cursor is slot and name of the last hold that was read.
pub(super) fn list(
    conn: &Connection,
    lives: &Lives<'_>,
    wall: Micros,
    name: Option<&str>,
    cursor: Option<&str>,
) -> Result<LockPage> {
    let wrong = || Error::invalid("cursor", "not a cursor of a lock list");
    let (after_name, after_slot) = match cursor {
        None => (name.unwrap_or_default(), 0),
        Some(text) => {
            let (slot, name) = text.split_once('.').ok_or_else(wrong)?;
            (name, slot.parse::<u32>().map_err(|_| wrong())?)
        }
    };
    page(conn, lives, wall, name, (after_name, after_slot))
        .map_err(|e| crate::store::sqlite::errors::refused("locks", e))
}

fn page(
    conn: &Connection,
    lives: &Lives<'_>,
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
    let mut rows = select.query(params![after.0, after.1, only, LOCKS_PAGE])?;
    let (mut looked, mut last) = (0, (String::new(), 0));
    let mut waiting = (String::new(), 0);
    while let Some(row) = rows.next()? {
        looked += 1;
        last = (row.get(0)?, row.get(1)?);
        let (node, ends) = (NodeId::from_bytes(row.get(3)?), row.get(8)?);
        let gone = row.get::<_, bool>(9)? && !lives.is_there(node);
        if has_ended(lives.now, row.get(7)?, ends, gone) {
            continue;
        }
        if waiting.0 != last.0 || page.locks.is_empty() {
            waiting = (last.0.clone(), waiters::waiting(conn, lives, &last.0)?);
        }
        page.locks.push(LockRecord {
            name: last.0.clone(),
            slot: last.1,
            owner: Owner::from_bytes(row.get(2)?),
            node,
            note: row.get(4)?,
            fence: Fence(row.get::<_, i64>(5)?.unsigned_abs()),
            since: from_micros(row.get(6)?),
            ends: from_micros(wall + (ends - lives.now)),
            waiting: waiting.1,
        });
    }
    page.next = (looked == LOCKS_PAGE).then(|| format!("{}.{}", last.1, last.0));
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_ends_by_its_time_its_node_or_a_start_of_the_machine() {
        assert!(!has_ended(5, 1, 9, false));
        assert!(has_ended(9, 1, 9, false), "it ends at its expiry");
        assert!(has_ended(5, 1, 9, true));
        assert!(has_ended(5, 6, 9, false), "taken in the future: from before the last start of the machine");
    }

    #[test]
    fn the_first_end_counts() {
        let hold = |ends| Hold { slot: 1, owner: Owner::fresh(), fence: 1, ends };
        assert_eq!(first_end(&[hold(9), hold(7), hold(8)], 5), Some(Duration::from_micros(2)));
        assert_eq!(first_end(&[], 5), None);
    }
}
