//! Connections that nodes hold for their clients, and the node that holds one.

use crate::clock::micros;
use crate::error::Result;
use crate::node::NodeId;
use crate::store::CONNECTIONS_BATCH_MAX;
use crate::store::redis::conn::ConnectionRole;
use crate::store::redis::script::Script;
use crate::store::redis::{Redis, script};

/// Implements `PeerStore::set_connections`.
pub(crate) async fn set_connections(store: &Redis, node: NodeId, held: &[String], closed: &[String]) -> Result<()> {
    for batch in held.chunks(CONNECTIONS_BATCH_MAX) {
        set_connections_batch(store, node, batch, &[]).await?;
    }
    for batch in closed.chunks(CONNECTIONS_BATCH_MAX) {
        set_connections_batch(store, node, &[], batch).await?;
    }
    Ok(())
}

async fn set_connections_batch(store: &Redis, node: NodeId, held: &[String], closed: &[String]) -> Result<()> {
    let mut cmd = script::SET_CONNECTIONS.call(&store.peer_keys);
    cmd.arg(store.manual_now()).arg(node.to_string()).arg(micros(store.options.lease)).arg(held.len());
    cmd.arg(held).arg(closed);
    let (script, slot): (&Script, u16) = (&script::SET_CONNECTIONS, store.peer_keys.slot);
    store.run_script_idempotent("set_connections", ConnectionRole::Heartbeat, slot, script, &cmd).await?;
    Ok(())
}

/// Implements `PeerStore::refresh_connections`.
pub(crate) async fn refresh_connections(store: &Redis, node: NodeId, held: &[String]) -> Result<()> {
    let (script, slot): (&Script, u16) = (&script::REFRESH_CONNECTIONS, store.peer_keys.slot);
    for batch in held.chunks(CONNECTIONS_BATCH_MAX) {
        let mut cmd = script.call(&store.peer_keys);
        cmd.arg(store.manual_now()).arg(node.to_string()).arg(micros(store.options.lease)).arg(batch);
        store.run_script_idempotent("refresh_connections", ConnectionRole::Heartbeat, slot, script, &cmd).await?;
    }
    Ok(())
}

/// Implements `PeerStore::connection_holder`.
pub(crate) async fn connection_holder(store: &Redis, connection_id: &str) -> Result<Option<NodeId>> {
    let mut cmd = script::CONNECTION_HOLDER.call(&store.peer_keys);
    cmd.arg(store.manual_now()).arg(connection_id);
    let (script, slot): (&Script, u16) = (&script::CONNECTION_HOLDER, store.peer_keys.slot);
    Ok(store.run_script("connection_holder", ConnectionRole::Client, slot, script, &cmd).await?.text()?.parse().ok())
}
