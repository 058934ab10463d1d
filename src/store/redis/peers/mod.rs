//! The hall: who is there, what they can be asked to do, which connections they hold.

pub(crate) mod completions;
pub(crate) mod messages;

use std::collections::BTreeMap;

use redis::Cmd;
use serde::{Deserialize, Serialize};

use crate::clock::{Micros, from_micros, micros};
use crate::error::Result;
use crate::node::{NodeId, NodeRecord};
use crate::store::redis::conn::ConnectionRole;
use crate::store::redis::script;
use crate::store::redis::script::Script;
use crate::store::redis::{Redis, locks};
use crate::store::{AnnounceReply, CONNECTIONS_BATCH_MAX, LOCK_WAITS_MAX, LockTurn, PeerInfo};

/// How often a process lets go of what the dead have left.
const CLEANUP_INTERVAL: Micros = 5_000_000;
/// The same for one that asks nothing of the hall.
const QUIET_CLEANUP_INTERVAL: Micros = 60_000_000;
/// Most steps in which a node takes its places and connections along; what is left is cleared by others.
const WITHDRAW_STEPS_MAX: usize = 100;

/// What a node says about itself; the methods follow, a line each.
#[derive(Default, Serialize, Deserialize)]
struct PeerDescription {
    host: String,
    pid: u32,
}

/// How far this process has come with letting go of what the dead have left.
pub(super) struct PeerCleanup {
    last_run: Micros,
    cursors: [String; 3],
}

impl Default for PeerCleanup {
    fn default() -> Self {
        PeerCleanup { last_run: 0, cursors: ["0", "0", "0"].map(str::to_owned) }
    }
}

/// `attend` of the contract.
pub(super) async fn announce(store: &Redis, guest: &PeerInfo) -> Result<AnnounceReply> {
    if guest.listen_only {
        // One that was not quiet before is not to be found any more. It may stand in a line by the time this arrives, or hold
        // a connection: so its presence is left to end by itself.
        if store.state().announced_peers.remove(&guest.node) {
            let mut cmd = redis::cmd("HDEL");
            cmd.arg(&store.peer_keys.peers).arg(guest.node.to_string());
            store.servers.send_idempotent("attend", ConnectionRole::Heartbeat, store.peer_keys.slot, &cmd).await?;
        }
        messages::ping_and_ensure_subscribed(store, guest.node).await?;
        clean_up_rarely(store).await;
        return Ok(AnnounceReply::default());
    }
    // Before the look, so that what happens after it is heard.
    messages::ensure_subscribed(store, guest.node).await?;
    store.state().announced_peers.insert(guest.node);
    let hall = &store.peer_keys;
    let mut cmd = script::ANNOUNCE.call(&store.peer_keys);
    cmd.arg(store.manual_now()).arg(guest.node.to_string()).arg(micros(guest.lease));
    cmd.arg(encode_description(guest));
    let waits = &guest.waited_locks[..guest.waited_locks.len().min(LOCK_WAITS_MAX)];
    let places = &guest.waiters[..guest.waiters.len().min(LOCK_WAITS_MAX)];
    cmd.arg(waits.len()).arg(waits);
    for (name, owner) in places {
        cmd.arg(format!("{owner}{name}"));
    }
    let value = store
        .servers
        .run_script_idempotent("attend", ConnectionRole::Heartbeat, hall.slot, &script::ANNOUNCE, &cmd)
        .await?;
    let mut reply = store.parse_reply("attend", value)?;
    let mut turns = Vec::new();
    for mut row in reply.rows()? {
        let (name, first, ends) = (row.text()?, row.text()?, row.optional_int()?);
        let ends = locks::duration_until(ends.unwrap_or(0), reply.now);
        turns.push(LockTurn { name, first_waiter: locks::parse_owner(&first), expires_in: ends });
    }
    let there = reply.list()?;
    let lost = places.iter().zip(there).filter(|(_, place)| place.is_none()).map(|((_, owner), _)| *owner).collect();
    clean_up_if_due(store, reply.now, CLEANUP_INTERVAL).await;
    Ok(AnnounceReply { turns, lost_waits: lost })
}

fn encode_description(guest: &PeerInfo) -> String {
    let about = PeerDescription { host: crate::node::host_name(), pid: std::process::id() };
    let mut text = serde_json::to_string(&about).unwrap_or_default();
    text.push('\n');
    for method in &guest.methods {
        text.push_str(method);
        text.push('\n');
    }
    text
}

/// A step of letting go of what the dead have left, if it is time.
async fn clean_up_if_due(store: &Redis, now: Micros, every: Micros) {
    let cursors = {
        let mut known = store.state();
        // A clock that went back is no reason to wait.
        if (now - known.peer_cleanup.last_run).abs() < every {
            return;
        }
        known.peer_cleanup.last_run = now;
        known.peer_cleanup.cursors.clone()
    };
    if let Err(error) = clean_up_step(store, &cursors).await {
        tracing::debug!(%error, "what the dead have left in the hall stays a while");
    }
}

/// The same where there may be nobody but those who only hold locks, or only work. Who has just come leaves it to others, and
/// those who have come together do not do it together.
async fn clean_up_rarely(store: &Redis) {
    let now = store.now();
    {
        let mut known = store.state();
        if known.peer_cleanup.last_run == 0 {
            known.peer_cleanup.last_run = now - fastrand::i64(0..QUIET_CLEANUP_INTERVAL / 2);
            return;
        }
    }
    clean_up_if_due(store, now, QUIET_CLEANUP_INTERVAL).await;
}

async fn clean_up_step(store: &Redis, cursors: &[String; 3]) -> Result<()> {
    let mut cmd = all_peer_keys_command(store, &script::CLEAR_DEAD);
    cmd.arg(cursors);
    let value = store
        .servers
        .run_script_idempotent("attend", ConnectionRole::Heartbeat, store.peer_keys.slot, &script::CLEAR_DEAD, &cmd)
        .await?;
    let mut reply = store.parse_reply("attend", value)?;
    store.state().peer_cleanup.cursors = [reply.text()?, reply.text()?, reply.text()?];
    Ok(())
}

/// A script on all keys of the hall; its own arguments follow.
fn all_peer_keys_command(store: &Redis, script: &Script) -> Cmd {
    let mut cmd = script.call(&store.peer_keys);
    cmd.arg(store.manual_now());
    cmd
}

/// `depart` of the contract.
pub(super) async fn withdraw(store: &Redis, node: NodeId) -> Result<()> {
    store.state().announced_peers.remove(&node);
    let mut cursors = ["0".to_owned(), "0".to_owned()];
    for _ in 0..WITHDRAW_STEPS_MAX {
        cursors = withdraw_step(store, node, &cursors).await?;
        if cursors.iter().all(String::is_empty) {
            break;
        }
    }
    messages::unsubscribe_node(store, node).await
}

/// A step through the places and the connections of all nodes; answers where to go on.
async fn withdraw_step(store: &Redis, node: NodeId, cursors: &[String; 2]) -> Result<[String; 2]> {
    let mut cmd = all_peer_keys_command(store, &script::WITHDRAW);
    cmd.arg(node.to_string()).arg(cursors);
    let value = store
        .servers
        .run_script_idempotent("depart", ConnectionRole::Heartbeat, store.peer_keys.slot, &script::WITHDRAW, &cmd)
        .await?;
    let mut reply = store.parse_reply("depart", value)?;
    Ok([reply.text()?, reply.text()?])
}

/// Everybody in the hall.
pub(super) async fn peer_records(store: &Redis) -> Result<Vec<NodeRecord>> {
    let (found, now) = find_peers(store, "nodes", "").await?;
    let mut guests = Vec::with_capacity(found.len());
    for (id, ends, about) in found {
        let Some((joined, about)) = about.split_at_checked(16) else {
            continue;
        };
        let (about, methods) = about.split_once('\n').unwrap_or((about, ""));
        let PeerDescription { host, pid } = serde_json::from_str(about).unwrap_or_default();
        guests.push(NodeRecord {
            id,
            host,
            pid,
            queues: Vec::new(),
            joined: from_micros(joined.parse().unwrap_or(0)),
            alive: ends >= now,
            held: 0,
            held_by_queue: BTreeMap::new(),
            profile: crate::node::NodeProfile::default(),
            methods: methods.lines().map(str::to_owned).collect(),
        });
    }
    Ok(guests)
}

/// `answering` of the contract.
pub(super) async fn peers_with_method(store: &Redis, method: &str) -> Result<Vec<NodeId>> {
    if method.is_empty() {
        return Ok(Vec::new());
    }
    Ok(find_peers(store, "answering", method).await?.0.into_iter().map(|(id, ..)| id).collect())
}

/// Node, end of its lease, and what it says about itself; and the store's time.
async fn find_peers(store: &Redis, op: &'static str, method: &str) -> Result<(Vec<(NodeId, Micros, String)>, Micros)> {
    let mut cmd = script::PEERS.call(&store.peer_keys);
    cmd.arg(store.manual_now()).arg(method);
    let mut reply = store.parse_reply(
        op,
        store.servers.run_script(op, ConnectionRole::Client, store.peer_keys.slot, &script::PEERS, &cmd).await?,
    )?;
    let mut found = Vec::new();
    for mut row in reply.rows()? {
        let (id, ends, about) = (row.text()?, row.int()?, row.text()?);
        found.extend(id.parse().ok().map(|id| (id, ends, about)));
    }
    Ok((found, reply.now))
}

/// `set_connections` of the contract.
pub(super) async fn set_connections(store: &Redis, node: NodeId, held: &[String], gone: &[String]) -> Result<()> {
    for some in held.chunks(CONNECTIONS_BATCH_MAX) {
        set_connections_batch(store, node, some, &[]).await?;
    }
    for some in gone.chunks(CONNECTIONS_BATCH_MAX) {
        set_connections_batch(store, node, &[], some).await?;
    }
    Ok(())
}

async fn set_connections_batch(store: &Redis, node: NodeId, held: &[String], gone: &[String]) -> Result<()> {
    let mut cmd = script::SET_CONNECTIONS.call(&store.peer_keys);
    cmd.arg(store.manual_now()).arg(node.to_string()).arg(micros(store.options.lease)).arg(held.len());
    cmd.arg(held).arg(gone);
    let (script, slot): (&Script, u16) = (&script::SET_CONNECTIONS, store.peer_keys.slot);
    store.parse_reply(
        "set_connections",
        store.servers.run_script_idempotent("set_connections", ConnectionRole::Heartbeat, slot, script, &cmd).await?,
    )?;
    Ok(())
}

/// `keep_connections` of the contract.
pub(super) async fn keep_connections(store: &Redis, node: NodeId, held: &[String]) -> Result<()> {
    let (script, slot): (&Script, u16) = (&script::KEEP_CONNECTIONS, store.peer_keys.slot);
    for some in held.chunks(CONNECTIONS_BATCH_MAX) {
        let mut cmd = script.call(&store.peer_keys);
        cmd.arg(store.manual_now()).arg(node.to_string()).arg(micros(store.options.lease)).arg(some);
        store.parse_reply(
            "keep_connections",
            store
                .servers
                .run_script_idempotent("keep_connections", ConnectionRole::Heartbeat, slot, script, &cmd)
                .await?,
        )?;
    }
    Ok(())
}

/// `connection` of the contract.
pub(super) async fn connection(store: &Redis, connection: &str) -> Result<Option<NodeId>> {
    let mut cmd = script::CONNECTION.call(&store.peer_keys);
    cmd.arg(store.manual_now()).arg(connection);
    let (script, slot): (&Script, u16) = (&script::CONNECTION, store.peer_keys.slot);
    let value = store.servers.run_script("connection", ConnectionRole::Client, slot, script, &cmd).await?;
    Ok(store.parse_reply("connection", value)?.text()?.parse().ok())
}
