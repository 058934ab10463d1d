//! The hall: who is there, what they can be asked to do, which connections they hold.

pub(crate) mod completions;
pub(crate) mod messages;

use std::collections::BTreeMap;

use redis::Cmd;
use serde::{Deserialize, Serialize};

use crate::clock::{Micros, from_micros, micros};
use crate::error::Result;
use crate::node::{NodeId, NodeRecord};
use crate::store::redis::conn::Way;
use crate::store::redis::script;
use crate::store::redis::script::Script;
use crate::store::redis::{Redis, locks};
use crate::store::{Attended, CONNECTIONS_MAX, Guest, Turn, WAITS_MAX};

/// How often a process lets go of what the dead have left.
const CLEAR_EVERY: Micros = 5_000_000;
/// The same for one that asks nothing of the hall.
const CLEAR_SELDOM: Micros = 60_000_000;
/// Most steps in which a node takes its places and connections along; what is left is cleared by others.
const DEPART_STEPS_MAX: usize = 100;

/// What a node says about itself; the methods follow, a line each.
#[derive(Default, Serialize, Deserialize)]
struct About {
    host: String,
    pid: u32,
}

/// How far this process has come with letting go of what the dead have left.
pub(super) struct Clearing {
    at: Micros,
    cursors: [String; 3],
}

impl Default for Clearing {
    fn default() -> Self {
        Clearing { at: 0, cursors: ["0", "0", "0"].map(str::to_owned) }
    }
}

/// `attend` of the contract.
pub(super) async fn attend(store: &Redis, guest: &Guest) -> Result<Attended> {
    if guest.quiet {
        // One that was not quiet before is not to be found any more. It may stand in a line by the time this arrives, or hold
        // a connection: so its presence is left to end by itself.
        if store.known().guests.remove(&guest.node) {
            let mut cmd = redis::cmd("HDEL");
            cmd.arg(&store.hall.peers).arg(guest.node.to_string());
            store.link.ask("attend", Way::Beat, store.hall.slot, &cmd).await?;
        }
        messages::listen_closely(store, guest.node).await?;
        clear_seldom(store).await;
        return Ok(Attended::default());
    }
    // Before the look, so that what happens after it is heard.
    messages::listen(store, guest.node).await?;
    store.known().guests.insert(guest.node);
    let hall = &store.hall;
    let mut cmd = script::ANNOUNCE.call(&store.hall);
    cmd.arg(store.manual_now()).arg(guest.node.to_string()).arg(micros(guest.lease));
    cmd.arg(about(guest));
    let waits = &guest.waits[..guest.waits.len().min(WAITS_MAX)];
    let places = &guest.places[..guest.places.len().min(WAITS_MAX)];
    cmd.arg(waits.len()).arg(waits);
    for (name, owner) in places {
        cmd.arg(format!("{owner}{name}"));
    }
    let value = store.link.repeat("attend", Way::Beat, hall.slot, &script::ANNOUNCE, &cmd).await?;
    let mut reply = store.reply("attend", value)?;
    let mut turns = Vec::new();
    for mut row in reply.rows()? {
        let (name, first, ends) = (row.text()?, row.text()?, row.maybe_int()?);
        let ends = locks::until(ends.unwrap_or(0), reply.now);
        turns.push(Turn { name, first: locks::owner(&first), ends });
    }
    let there = reply.list()?;
    let lost = places.iter().zip(there).filter(|(_, place)| place.is_none()).map(|((_, owner), _)| *owner).collect();
    clear(store, reply.now, CLEAR_EVERY).await;
    Ok(Attended { turns, lost })
}

fn about(guest: &Guest) -> String {
    let about = About { host: crate::node::host(), pid: std::process::id() };
    let mut text = serde_json::to_string(&about).unwrap_or_default();
    text.push('\n');
    for method in &guest.methods {
        text.push_str(method);
        text.push('\n');
    }
    text
}

/// A step of letting go of what the dead have left, if it is time.
async fn clear(store: &Redis, now: Micros, every: Micros) {
    let cursors = {
        let mut known = store.known();
        // A clock that went back is no reason to wait.
        if (now - known.clearing.at).abs() < every {
            return;
        }
        known.clearing.at = now;
        known.clearing.cursors.clone()
    };
    if let Err(error) = clear_step(store, &cursors).await {
        tracing::debug!(%error, "what the dead have left in the hall stays a while");
    }
}

/// The same where there may be nobody but those who only hold locks, or only work. Who has just come leaves it to others, and
/// those who have come together do not do it together.
async fn clear_seldom(store: &Redis) {
    let now = store.now();
    {
        let mut known = store.known();
        if known.clearing.at == 0 {
            known.clearing.at = now - fastrand::i64(0..CLEAR_SELDOM / 2);
            return;
        }
    }
    clear(store, now, CLEAR_SELDOM).await;
}

async fn clear_step(store: &Redis, cursors: &[String; 3]) -> Result<()> {
    let mut cmd = of_everything(store, &script::CLEAR_DEAD);
    cmd.arg(cursors);
    let value = store.link.repeat("attend", Way::Beat, store.hall.slot, &script::CLEAR_DEAD, &cmd).await?;
    let mut reply = store.reply("attend", value)?;
    store.known().clearing.cursors = [reply.text()?, reply.text()?, reply.text()?];
    Ok(())
}

/// A script on all keys of the hall; its own arguments follow.
fn of_everything(store: &Redis, script: &Script) -> Cmd {
    let mut cmd = script.call(&store.hall);
    cmd.arg(store.manual_now());
    cmd
}

/// `depart` of the contract.
pub(super) async fn depart(store: &Redis, node: NodeId) -> Result<()> {
    store.known().guests.remove(&node);
    let mut cursors = ["0".to_owned(), "0".to_owned()];
    for _ in 0..DEPART_STEPS_MAX {
        cursors = depart_step(store, node, &cursors).await?;
        if cursors.iter().all(String::is_empty) {
            break;
        }
    }
    messages::close(store, node).await
}

/// A step through the places and the connections of all nodes; answers where to go on.
async fn depart_step(store: &Redis, node: NodeId, cursors: &[String; 2]) -> Result<[String; 2]> {
    let mut cmd = of_everything(store, &script::WITHDRAW);
    cmd.arg(node.to_string()).arg(cursors);
    let value = store.link.repeat("depart", Way::Beat, store.hall.slot, &script::WITHDRAW, &cmd).await?;
    let mut reply = store.reply("depart", value)?;
    Ok([reply.text()?, reply.text()?])
}

/// Everybody in the hall.
pub(super) async fn guests(store: &Redis) -> Result<Vec<NodeRecord>> {
    let (found, now) = find(store, "nodes", "").await?;
    let mut guests = Vec::with_capacity(found.len());
    for (id, ends, about) in found {
        let Some((joined, about)) = about.split_at_checked(16) else {
            continue;
        };
        let (about, methods) = about.split_once('\n').unwrap_or((about, ""));
        let About { host, pid } = serde_json::from_str(about).unwrap_or_default();
        guests.push(NodeRecord {
            id,
            host,
            pid,
            queues: Vec::new(),
            joined: from_micros(joined.parse().unwrap_or(0)),
            alive: ends >= now,
            held: 0,
            holds: BTreeMap::new(),
            takes: crate::node::Takes::default(),
            methods: methods.lines().map(str::to_owned).collect(),
        });
    }
    Ok(guests)
}

/// `answering` of the contract.
pub(super) async fn answering(store: &Redis, method: &str) -> Result<Vec<NodeId>> {
    if method.is_empty() {
        return Ok(Vec::new());
    }
    Ok(find(store, "answering", method).await?.0.into_iter().map(|(id, ..)| id).collect())
}

/// Node, end of its lease, and what it says about itself; and the store's time.
async fn find(store: &Redis, op: &'static str, method: &str) -> Result<(Vec<(NodeId, Micros, String)>, Micros)> {
    let mut cmd = script::PEERS.call(&store.hall);
    cmd.arg(store.manual_now()).arg(method);
    let mut reply = store.reply(op, store.link.run(op, Way::Door, store.hall.slot, &script::PEERS, &cmd).await?)?;
    let mut found = Vec::new();
    for mut row in reply.rows()? {
        let (id, ends, about) = (row.text()?, row.int()?, row.text()?);
        found.extend(id.parse().ok().map(|id| (id, ends, about)));
    }
    Ok((found, reply.now))
}

/// `set_connections` of the contract.
pub(super) async fn set_connections(store: &Redis, node: NodeId, held: &[String], gone: &[String]) -> Result<()> {
    for some in held.chunks(CONNECTIONS_MAX) {
        note(store, node, some, &[]).await?;
    }
    for some in gone.chunks(CONNECTIONS_MAX) {
        note(store, node, &[], some).await?;
    }
    Ok(())
}

async fn note(store: &Redis, node: NodeId, held: &[String], gone: &[String]) -> Result<()> {
    let mut cmd = script::SET_CONNECTIONS.call(&store.hall);
    cmd.arg(store.manual_now()).arg(node.to_string()).arg(micros(store.options.lease)).arg(held.len());
    cmd.arg(held).arg(gone);
    let (script, slot): (&Script, u16) = (&script::SET_CONNECTIONS, store.hall.slot);
    store.reply("set_connections", store.link.repeat("set_connections", Way::Beat, slot, script, &cmd).await?)?;
    Ok(())
}

/// `keep_connections` of the contract.
pub(super) async fn keep_connections(store: &Redis, node: NodeId, held: &[String]) -> Result<()> {
    let (script, slot): (&Script, u16) = (&script::KEEP_CONNECTIONS, store.hall.slot);
    for some in held.chunks(CONNECTIONS_MAX) {
        let mut cmd = script.call(&store.hall);
        cmd.arg(store.manual_now()).arg(node.to_string()).arg(micros(store.options.lease)).arg(some);
        store.reply("keep_connections", store.link.repeat("keep_connections", Way::Beat, slot, script, &cmd).await?)?;
    }
    Ok(())
}

/// `connection` of the contract.
pub(super) async fn connection(store: &Redis, connection: &str) -> Result<Option<NodeId>> {
    let mut cmd = script::CONNECTION.call(&store.hall);
    cmd.arg(store.manual_now()).arg(connection);
    let (script, slot): (&Script, u16) = (&script::CONNECTION, store.hall.slot);
    let value = store.link.run("connection", Way::Door, slot, script, &cmd).await?;
    Ok(store.reply("connection", value)?.text()?.parse().ok())
}
