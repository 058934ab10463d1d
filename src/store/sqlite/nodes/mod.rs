//! Nodes in the database: heartbeats, their numbers, and deleting their rows.

pub(crate) mod datagram;
pub(crate) mod directory;
pub(crate) mod identity;
pub(crate) mod listener;
pub(crate) mod liveness;
pub(crate) mod process_watch;
pub(crate) mod registry;
pub(crate) mod rejoin;
pub(crate) mod slot_lock;
pub(crate) mod slots;
pub(crate) mod subscriptions;
pub(crate) mod wakes;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use rusqlite::{Connection, OptionalExtension, params};

use crate::clock::from_micros;
use crate::error::Result;
use crate::job::JobId;
use crate::node::{Node, NodeId, NodeProfile, NodeRecord};
use crate::store::sqlite::maintenance::upkeep;
use crate::store::sqlite::nodes::registry::{Liveness, NodeRegistry};
use crate::store::sqlite::rows::{read_text, read_u32};
use crate::store::sqlite::tx::Tx;
use crate::store::sqlite::{Sqlite, errors};
use crate::store::{CANCELLED_JOBS_MAX, HeartbeatReply};

/// Implements `JobStore::heartbeat`.
pub(super) async fn heartbeat(store: &Sqlite, node: &Node) -> Result<HeartbeatReply> {
    let to_error = |e| errors::from_registry("heartbeat", "cannot use the node registry", e);
    store.check_files_now("heartbeat")?;
    if !store.registry.heartbeat(node.id, node.profile.quiet).map_err(to_error)? {
        join_worker(store, node).await?;
        store.registry.heartbeat(node.id, node.profile.quiet).map_err(to_error)?;
    }
    let (id, registry) = (node.id, store.registry.clone());
    let reply = store.query("heartbeat", move |conn| heartbeat_reply(conn, &registry, id)).await?;
    // A claim costs little here, so all queues are listed without checking for jobs.
    Ok(HeartbeatReply { queues_to_check: node.queues.clone(), ..reply })
}

/// Builds the reply to a heartbeat: the jobs that the node holds, and the other nodes that hold jobs without being
/// alive.
fn heartbeat_reply(conn: &Connection, registry: &NodeRegistry, node: NodeId) -> rusqlite::Result<HeartbeatReply> {
    let mut reply = HeartbeatReply::default();
    let mut statement = conn.prepare_cached(
        "SELECT n.id, q.name, count(*), count(h.cancel_keep_ms) FROM duly_running h JOIN duly_node n ON n.node_no = h.node_no
           JOIN duly_queue q ON q.queue_no = h.queue_no GROUP BY h.node_no, h.queue_no",
    )?;
    let mut rows = statement.query([])?;
    let mut has_cancelled = false;
    while let Some(row) = rows.next()? {
        let id = NodeId::from_bytes(row.get(0)?);
        if id == node {
            reply.held.push((read_text(row, 1)?, row.get(2)?));
            has_cancelled |= row.get::<_, i64>(3)? > 0;
        } else if registry.worker_liveness(id) != Liveness::Alive {
            reply.suspects.push((id, read_text(row, 1)?));
        }
    }
    if has_cancelled {
        reply.cancelled = cancelled_jobs(conn, node)?;
    }
    Ok(reply)
}

/// Returns the jobs that a node holds and that were cancelled.
fn cancelled_jobs(conn: &Connection, node: NodeId) -> rusqlite::Result<Vec<JobId>> {
    conn.prepare_cached(
        "SELECT j.id FROM duly_running h JOIN duly_node n ON n.node_no = h.node_no
           JOIN duly_job j ON j.job_no = h.job_no
          WHERE n.id = ?1 AND h.cancel_keep_ms IS NOT NULL LIMIT ?2",
    )?
    .query_map(params![node.as_bytes(), CANCELLED_JOBS_MAX], |row| row.get(0).map(JobId::from_bytes))?
    .collect()
}

/// Takes a slot in the registry for a new node, and registers the node in the database.
async fn join_worker(store: &Sqlite, node: &Node) -> Result<()> {
    let slot = store
        .registry
        .join(node.id, node.lease)
        .map_err(|e| errors::from_registry("heartbeat", "cannot take a slot in the node registry", e))?;
    let (id, queues) = (node.id, node.queues.join(" "));
    let profile = serde_json::to_string(&node.profile).ok();
    let registry = store.registry.clone();
    let registered = store.writer.write("heartbeat", move |tx| {
        delete_dead_nodes(tx, &registry)?;
        register_node(tx, id, slot, &queues, profile.as_deref()).map(drop)
    });
    if let Err(error) = registered.await {
        // The database does not know the node, so its slot is released. The next heartbeat joins again.
        let _ = store.registry.leave(id);
        return Err(error);
    }
    let roomy = store.path.as_deref().is_some_and(upkeep::has_disk_room);
    if roomy && !store.wal_grown.swap(true, Ordering::Relaxed) {
        // Only makes commits cheaper, so a failure is not an error.
        if let Err(error) = store.writer.run_outside_transaction("heartbeat", upkeep::grow_wal).await {
            tracing::warn!(%error, "the WAL could not be grown");
        }
    }
    Ok(())
}

/// Implements `JobStore::leave`.
pub(super) async fn leave(store: &Sqlite, node: NodeId) -> Result<()> {
    store.registry.leave(node).map_err(|e| errors::from_registry("leave", "cannot use the node registry", e))?;
    let leave = move |tx: &Tx<'_>| {
        tx.statement(
            "DELETE FROM duly_node WHERE id = ?1 AND NOT EXISTS
               (SELECT 1 FROM duly_running WHERE node_no = duly_node.node_no)",
        )?
        .execute([node.as_bytes()])
    };
    store.writer.write("leave", leave).await.map(drop)
}

/// Returns the number of a node. A node without a row is registered again with its slot.
pub(super) fn ensure_node(tx: &Tx<'_>, registry: &NodeRegistry, id: NodeId) -> rusqlite::Result<i64> {
    let found = tx
        .statement("SELECT node_no FROM duly_node WHERE id = ?1")?
        .query_row([id.as_bytes()], |row| row.get(0))
        .optional()?;
    match found {
        Some(node_no) => Ok(node_no),
        None => register_node(tx, id, registry.slot_of(id).unwrap_or(registry::NODES_MAX), "", None),
    }
}

pub(super) fn register_node(
    tx: &Tx<'_>,
    id: NodeId,
    slot: usize,
    queues: &str,
    profile: Option<&str>,
) -> rusqlite::Result<i64> {
    let (host, pid) = (crate::node::host_name(), std::process::id());
    tx.statement(
        "INSERT INTO duly_node (id, slot, host, pid, queues, joined_at, profile) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
         ON CONFLICT (id) DO UPDATE SET slot = excluded.slot, queues = excluded.queues, profile = excluded.profile
         RETURNING node_no",
    )?
    .query_row(params![id.as_bytes(), slot, host, pid, queues, tx.now, profile], |row| row.get(0))
}

/// Deletes the rows of dead nodes that hold no job.
pub(super) fn delete_dead_nodes(tx: &Tx<'_>, registry: &NodeRegistry) -> rusqlite::Result<()> {
    let idle: Vec<(i64, [u8; 16])> = tx
        .statement(
            "SELECT node_no, id FROM duly_node WHERE NOT EXISTS
               (SELECT 1 FROM duly_running WHERE node_no = duly_node.node_no)",
        )?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    for (node_no, id) in idle {
        if registry.worker_liveness(NodeId::from_bytes(id)) == Liveness::Dead {
            tx.statement("DELETE FROM duly_node WHERE node_no = ?1")?.execute([node_no])?;
        }
    }
    Ok(())
}

/// Merges workers and peers into one list: a node that is both has one entry.
pub(super) fn merge_peers(mut workers: Vec<NodeRecord>, peers: Vec<NodeRecord>) -> Vec<NodeRecord> {
    for peer in peers {
        match workers.iter_mut().find(|worker| worker.id == peer.id) {
            Some(both) => {
                both.alive |= peer.alive;
                both.methods = peer.methods;
            }
            None => workers.push(peer),
        }
    }
    workers.sort_by_key(|node| node.joined);
    workers
}

/// Implements `PeerStore::nodes`.
pub(super) fn nodes(conn: &Connection, registry: &NodeRegistry) -> rusqlite::Result<Vec<NodeRecord>> {
    conn.prepare_cached(
        "SELECT n.id, n.host, n.pid, n.queues, n.joined_at, n.profile, n.node_no
           FROM duly_node n ORDER BY n.joined_at, n.node_no",
    )?
    .query_map([], |row| {
        let id = NodeId::from_bytes(row.get(0)?);
        let queues = read_text(row, 3)?;
        let profile: NodeProfile = serde_json::from_str(&read_text(row, 5)?).unwrap_or_default();
        let holds = count_held_by_queue(conn, row.get(6)?)?;
        Ok(NodeRecord {
            id,
            host: profile.host.clone().map_or_else(|| read_text(row, 1), Ok)?,
            pid: profile.pid.unwrap_or_else(|| read_u32(row, 2)),
            queues: queues.split(' ').filter(|q| !q.is_empty()).map(str::to_owned).collect(),
            joined: from_micros(row.get(4)?),
            alive: registry.worker_liveness(id) == Liveness::Alive,
            held: holds.values().sum(),
            held_by_queue: holds,
            profile: NodeProfile { quiet: registry.is_quiet(id), ..profile },
            methods: Vec::new(),
        })
    })?
    .collect()
}

/// Returns how many jobs of each queue a node holds.
fn count_held_by_queue(conn: &Connection, node: i64) -> rusqlite::Result<BTreeMap<String, u64>> {
    conn.prepare_cached(
        "SELECT q.name, count(*) FROM duly_running h
           JOIN duly_queue q ON q.queue_no = h.queue_no WHERE h.node_no = ?1 GROUP BY h.queue_no",
    )?
    .query_map([node], |row| Ok((read_text(row, 0)?, row.get(1)?)))?
    .collect()
}
