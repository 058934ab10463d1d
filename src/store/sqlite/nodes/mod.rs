//! Nodes in the database: a number for each that works, what it held taken back, its row forgotten.

pub(crate) mod datagram;
pub(crate) mod listener;
pub(crate) mod liveness;
pub(crate) mod process_watch;
pub(crate) mod registry;
pub(crate) mod slots;
pub(crate) mod subscriptions;
pub(crate) mod wake;

use rusqlite::{OptionalExtension, params};

use crate::node::{NodeId, NodeRecord};
use crate::store::sqlite::jobs::claim;
use crate::store::sqlite::nodes::registry::{Board, Life};
use crate::store::sqlite::tx::Tx;

/// Takes back what the suspect holds here, if it has lost its hold, and forgets it once it holds nothing.
pub(super) fn take_back(tx: &Tx<'_>, board: &Board, suspect: NodeId, queue: i64) -> rusqlite::Result<usize> {
    let known = tx
        .statement("SELECT node_no, slot FROM duly_node WHERE id = ?1")?
        .query_row([suspect.as_bytes()], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    match known {
        Some((no, slot)) if board.may_take_back(suspect, slot) => claim::take_back(tx, no, suspect, queue),
        _ => Ok(0),
    }
}

/// The number of a node; one whose row is gone is registered again, in the slot that it has.
pub(super) fn number_of(tx: &Tx<'_>, board: &Board, id: NodeId) -> rusqlite::Result<i64> {
    let known = tx
        .statement("SELECT node_no FROM duly_node WHERE id = ?1")?
        .query_row([id.as_bytes()], |row| row.get(0))
        .optional()?;
    match known {
        Some(no) => Ok(no),
        None => register(tx, id, board.slot_of(id).unwrap_or(registry::NODES_MAX), "", None),
    }
}

pub(super) fn register(
    tx: &Tx<'_>,
    id: NodeId,
    slot: usize,
    queues: &str,
    takes: Option<&str>,
) -> rusqlite::Result<i64> {
    let (host, pid) = (crate::node::host(), std::process::id());
    tx.statement(
        "INSERT INTO duly_node (id, slot, host, pid, queues, joined_at, profile) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
         ON CONFLICT (id) DO UPDATE SET slot = excluded.slot, queues = excluded.queues, profile = excluded.profile
         RETURNING node_no",
    )?
    .query_row(params![id.as_bytes(), slot, host, pid, queues, tx.now, takes], |row| row.get(0))
}

/// Rows of nodes that are gone and hold nothing have nothing more to say.
pub(super) fn forget_dead(tx: &Tx<'_>, board: &Board) -> rusqlite::Result<()> {
    let idle: Vec<(i64, [u8; 16], usize)> = tx
        .statement(
            "SELECT node_no, id, slot FROM duly_node WHERE NOT EXISTS
               (SELECT 1 FROM duly_running WHERE node_no = duly_node.node_no)",
        )?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
        .collect::<rusqlite::Result<_>>()?;
    for (no, id, slot) in idle {
        if board.life(NodeId::from_bytes(id), slot) == Life::Dead {
            tx.statement("DELETE FROM duly_node WHERE node_no = ?1")?.execute([no])?;
        }
    }
    Ok(())
}

/// Workers and guests as one list: a node that is both is one row.
pub(super) fn merge(mut workers: Vec<NodeRecord>, guests: Vec<NodeRecord>) -> Vec<NodeRecord> {
    for guest in guests {
        match workers.iter_mut().find(|worker| worker.id == guest.id) {
            Some(both) => {
                both.alive |= guest.alive;
                both.methods = guest.methods;
            }
            None => workers.push(guest),
        }
    }
    workers.sort_by_key(|node| node.joined);
    workers
}
