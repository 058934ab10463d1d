//! Peers on the bus: the methods of each, and the connections that it holds.
//!
//! A row does not say whether its node is alive. The node registry does.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};

use crate::clock::{Micros, from_micros};
use crate::node::{NodeId, NodeRecord};
use crate::store::sqlite::nodes::liveness::LivenessSnapshot;
use crate::store::sqlite::nodes::registry::Liveness;

/// Most connections of one node deleted at a time.
const CONNECTION_DELETE_MAX: usize = 1_000;
/// Most deletions for a node that withdraws.
const CONNECTION_DELETE_BATCHES_MAX: usize = 1_000;

/// Stores the methods of a peer if they changed. A new peer also deletes dead ones.
pub(crate) fn register_peer(
    conn: &Connection,
    liveness: &LivenessSnapshot<'_>,
    now: Micros,
    node: NodeId,
    methods: &str,
) -> rusqlite::Result<()> {
    let registered: Option<String> = conn
        .prepare_cached("SELECT methods FROM duly_peer WHERE node_id = ?1")?
        .query_row([node.as_bytes()], |row| row.get(0))
        .optional()?;
    if registered.as_deref() == Some(methods) {
        return Ok(());
    }
    if registered.is_none() {
        delete_dead_peers(conn, liveness)?;
    }
    conn.prepare_cached(
        "INSERT INTO duly_peer (node_id, host, pid, joined_at, methods) VALUES (?1, ?2, ?3, ?4, ?5)
         ON CONFLICT (node_id) DO UPDATE SET methods = excluded.methods",
    )?
    .execute(params![node.as_bytes(), crate::node::host_name(), std::process::id(), now, methods])?;
    Ok(())
}

/// Hides a peer from others. Its connections stay, because messages for them may still arrive.
pub(crate) fn delete_peer(conn: &Connection, node: NodeId) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM duly_peer WHERE node_id = ?1")?.execute([node.as_bytes()])?;
    Ok(())
}

/// Deletes a peer and its connections.
pub(crate) fn unregister_peer(conn: &Connection, node: NodeId) -> rusqlite::Result<()> {
    for _ in 0..CONNECTION_DELETE_BATCHES_MAX {
        if delete_connections(conn, node)? < CONNECTION_DELETE_MAX {
            break;
        }
    }
    delete_peer(conn, node)
}

/// Deletes dead peers. A peer with many connections takes several calls.
fn delete_dead_peers(conn: &Connection, liveness: &LivenessSnapshot<'_>) -> rusqlite::Result<()> {
    for peer in read_peers(conn)?.into_iter().filter(|peer| liveness.peer_liveness(peer.id) == Liveness::Dead) {
        if delete_connections(conn, peer.id)? < CONNECTION_DELETE_MAX {
            conn.prepare_cached("DELETE FROM duly_peer WHERE node_id = ?1")?.execute([peer.id.as_bytes()])?;
        }
    }
    Ok(())
}

fn delete_connections(conn: &Connection, node: NodeId) -> rusqlite::Result<usize> {
    conn.prepare_cached(
        "DELETE FROM duly_connection WHERE name IN (SELECT name FROM duly_connection WHERE node_id = ?1 LIMIT ?2)",
    )?
    .execute(params![node.as_bytes(), CONNECTION_DELETE_MAX])
}

/// Returns all peers, dead or alive. The caller sets `alive`.
pub(crate) fn read_peers(conn: &Connection) -> rusqlite::Result<Vec<NodeRecord>> {
    conn.prepare_cached("SELECT node_id, host, pid, joined_at, methods FROM duly_peer ORDER BY joined_at, node_id")?
        .query_map([], |row| {
            let methods: String = row.get(4)?;
            Ok(NodeRecord {
                id: NodeId::from_bytes(row.get(0)?),
                host: row.get(1)?,
                pid: row.get(2)?,
                queues: Vec::new(),
                joined: from_micros(row.get(3)?),
                alive: false,
                held: 0,
                held_by_queue: BTreeMap::new(),
                profile: crate::node::NodeProfile::default(),
                methods: methods.lines().map(str::to_owned).collect(),
            })
        })?
        .collect()
}

/// Adds and removes connections of a node, in one transaction.
pub(crate) fn set_connections(
    conn: &Connection,
    node: NodeId,
    held: &[String],
    gone: &[String],
) -> rusqlite::Result<()> {
    let tx = rusqlite::Transaction::new_unchecked(conn, TransactionBehavior::Immediate)?;
    for name in gone {
        tx.prepare_cached("DELETE FROM duly_connection WHERE name = ?1 AND node_id = ?2")?
            .execute(params![name, node.as_bytes()])?;
    }
    for name in held {
        tx.prepare_cached("INSERT OR REPLACE INTO duly_connection (name, node_id) VALUES (?1, ?2)")?
            .execute(params![name, node.as_bytes()])?;
    }
    tx.commit()
}

/// Adds connections of a node, unless another living peer has taken them since.
pub(crate) fn refresh_connections(
    conn: &Connection,
    liveness: &LivenessSnapshot<'_>,
    node: NodeId,
    held: &[String],
) -> rusqlite::Result<()> {
    let tx = rusqlite::Transaction::new_unchecked(conn, TransactionBehavior::Immediate)?;
    for name in held {
        let other =
            connection_holder(&tx, name)?.is_some_and(|holder| holder != node && liveness.is_peer_alive(holder));
        if !other {
            tx.prepare_cached("INSERT OR REPLACE INTO duly_connection (name, node_id) VALUES (?1, ?2)")?
                .execute(params![name, node.as_bytes()])?;
        }
    }
    tx.commit()
}

/// Returns the node that stored a connection last.
pub(crate) fn connection_holder(conn: &Connection, name: &str) -> rusqlite::Result<Option<NodeId>> {
    conn.prepare_cached("SELECT node_id FROM duly_connection WHERE name = ?1")?
        .query_row([name], |row| row.get(0).map(NodeId::from_bytes))
        .optional()
}
