//! Registers a node as a Sidekiq process, which Sidekiq Web shows, and receives the signals sent from there.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::entry::{self, ProcessInfo};
use super::keys::ProcessKeys;
use super::scripts::ANNOUNCE_PROCESS;
use super::{Sidekiq, convert_reply};
use crate::clock::{self, Micros};
use crate::error::Result;
use crate::node::{self, Node, NodeId, NodeRecord};
use crate::store::redis::{ConnectionRole, has_append_only_file, is_forbidden};
use crate::store::{ForeignProcess, HeartbeatReply, JobStore};

/// Time between two writes of a node's running entries, if it has many; up to the maximum, every heartbeat writes them.
const WORK_INTERVAL: Micros = 5_000_000;
const WORK_EVERY_HEARTBEAT_MAX: usize = 100;
/// Most running entries shown for a node.
const WORK_MAX: usize = 1_000;

/// Most processes that are checked for life; Sidekiq installations have fewer.
const PROCESSES_MAX: usize = 1_000;
/// How the version in the record of a duly process starts.
const VERSION_PREFIX: &str = "duly ";

/// The state of a node that is registered as a Sidekiq process.
#[derive(Clone, Debug, Default)]
pub(super) struct ProcessStatus {
    started_at: Micros,
    work_written_at: Option<Micros>,
    rtt_us: u128,
    /// Whether the node received the signal to claim no more jobs, and the signal to stop.
    quiet: bool,
    stop: bool,
}

/// Implements `JobStore::heartbeat`. A failure to write Sidekiq's record is only logged: duly's own heartbeat has
/// succeeded.
pub(super) async fn heartbeat(store: &Sidekiq, node: &Node) -> Result<HeartbeatReply> {
    let mut reply = store.redis.heartbeat(node).await?;
    // A node without slots runs no jobs, so it is not a Sidekiq process.
    let Some(slots) = node.profile.slots.filter(|slots| *slots > 0) else {
        return Ok(reply);
    };
    if let Err(error) = write_process(store, node, slots).await {
        tracing::warn!(node = %node.id, %error, "cannot update the Sidekiq process record; retrying");
    }
    // Repeated in every reply, since a reply may be lost.
    if let Some(status) = store.state().processes.get(&node.id) {
        (reply.quiet, reply.stop) = (status.quiet, status.stop);
    }
    Ok(reply)
}

/// Returns Sidekiq's name for a process.
fn identity(node: NodeId) -> String {
    let tail: String = node.as_bytes()[10..].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}:{}:{tail}", node::host_name(), std::process::id())
}

/// Warns if the server keeps nothing on its disk: a job that a worker holds then ends with the server, as in Ruby.
async fn warn_about_data_loss(store: &Sidekiq) {
    match has_append_only_file(&store.redis).await {
        Ok(false) => tracing::warn!(
            "JOBS MAY BE LOST: this server has no append-only file (appendonly no), so everything since its last snapshot is gone when it stops; set appendonly yes, or accept it with allow_data_loss=true in the URL"
        ),
        Ok(true) => {}
        Err(error) => tracing::warn!(%error, "cannot check how durable the server is"),
    }
}

async fn write_process(store: &Sidekiq, node: &Node, slots: u64) -> Result<()> {
    let (identity, now) = (identity(node.id), store.now());
    let (status, is_first) = {
        let mut state = store.state();
        let status = state.processes.entry(node.id).or_default();
        let is_first = status.started_at == 0;
        if is_first {
            status.started_at = now;
        }
        (status.clone(), is_first)
    };
    if is_first && store.warns_about_data_loss {
        warn_about_data_loss(store).await;
    }
    let keys = ProcessKeys { processes: &store.keys.processes, process: store.keys.process_keys(&identity) };
    let mut cmd = ANNOUNCE_PROCESS.call(&keys);
    let info = ProcessInfo {
        identity: &identity,
        host: &node::host_name(),
        started_at: status.started_at,
        concurrency: slots,
        queues: &node.queues,
    };
    let work = running_work(store, node.id);
    let writes_work = work.len() <= WORK_EVERY_HEARTBEAT_MAX
        || status.work_written_at.is_none_or(|written| now - written >= WORK_INTERVAL);
    cmd.arg(store.manual_now()).arg(&identity).arg(info.encode()).arg(work.len());
    cmd.arg(status.quiet.to_string()).arg(memory_kib()).arg(slots);
    cmd.arg(status.rtt_us.to_string()).arg(u8::from(writes_work));
    for (thread, text) in work.iter().enumerate().take(if writes_work { WORK_MAX } else { 0 }) {
        cmd.arg(format!("{thread:x}")).arg(text);
    }
    let sent_at = clock::monotonic_now();
    let mut reply = store.run_script("heartbeat", ConnectionRole::Heartbeat, &ANNOUNCE_PROCESS, &cmd).await?;
    let mut state = store.state();
    let status = state.processes.entry(node.id).or_default();
    status.rtt_us = sent_at.elapsed().as_micros();
    if writes_work {
        status.work_written_at = Some(now);
    }
    for signal in reply.list()?.into_iter().flatten() {
        match &signal[..] {
            b"TSTP" => status.quiet = true,
            b"TERM" => status.stop = true,
            b"TTIN" => tracing::info!(node = %node.id, ?work, "running jobs, requested by the signal TTIN"),
            other => tracing::warn!(signal = %String::from_utf8_lossy(other), "unknown signal from Sidekiq"),
        }
    }
    Ok(())
}

/// Returns the live processes of Sidekiq itself, without those of duly.
///
/// A process that was killed counts as live until its record expires, a minute after its last heartbeat.
pub(super) async fn ruby_processes(store: &Sidekiq, op: &'static str) -> Result<Vec<ForeignProcess>> {
    let mut cmd = redis::cmd("SMEMBERS");
    cmd.arg(&store.keys.processes);
    let mut identities: Vec<String> = convert_reply(op, store.send_idempotent(op, &cmd).await?)?;
    identities.sort_unstable();
    let mut processes = Vec::new();
    for identity in identities.into_iter().take(PROCESSES_MAX) {
        let [record, ..] = store.keys.process_keys(&identity);
        let mut cmd = redis::cmd("HGET");
        cmd.arg(record).arg("info");
        let info: Option<String> = match store.send_idempotent(op, &cmd).await {
            Ok(value) => convert_reply(op, value)?,
            // The user may read only the records of its own machine: the process may live.
            Err(error) if is_forbidden(&error) => Some(String::new()),
            Err(error) => return Err(error),
        };
        let Some(info) = info else {
            continue;
        };
        let info: RubyProcessInfo = serde_json::from_str(&info).unwrap_or_default();
        if info.version.is_none_or(|version| !version.starts_with(VERSION_PREFIX)) {
            processes.push(ForeignProcess { name: identity, queues: info.queues });
        }
    }
    Ok(processes)
}

/// Returns a warning if dead nodes hold jobs and no live node of their queues can put them back.
pub(super) fn stranded_jobs_warning(nodes: &[NodeRecord]) -> Option<String> {
    let has_live_node = |queue: &String| nodes.iter().any(|node| node.alive && node.queues.contains(queue));
    let mut stranded: BTreeMap<&str, u64> = BTreeMap::new();
    for (queue, held) in nodes.iter().filter(|node| !node.alive).flat_map(|node| &node.held_by_queue) {
        if !has_live_node(queue) {
            *stranded.entry(queue).or_default() += held;
        }
    }
    let jobs: u64 = stranded.values().sum();
    let (first, _) = stranded.first_key_value()?;
    Some(format!(
        "{jobs} jobs of {} are held by dead duly workers, and Ruby does not see them; any duly worker of the queue puts them back, such as: {}",
        stranded.keys().copied().collect::<Vec<_>>().join(", "),
        node::take_back_command(first)
    ))
}

/// The fields that duly reads in the record of a Ruby process.
#[derive(Default, Deserialize)]
struct RubyProcessInfo {
    queues: Option<Vec<String>>,
    version: Option<String>,
}

/// Returns the `work` records of the entries that a node runs.
fn running_work(store: &Sidekiq, node: NodeId) -> Vec<String> {
    let state = store.state();
    let Some(queues) = state.held.get(&node) else {
        return Vec::new();
    };
    let mut running = Vec::new();
    for (queue, held) in queues {
        running.extend(held.iter().map(|(hold, held)| (hold, queue, held)));
    }
    running.sort_by_key(|(hold, ..)| **hold);
    let encode = |(_, queue, held): (_, &String, &super::HeldEntry)| {
        entry::encode_work(queue, &String::from_utf8_lossy(&held.entry), held.claimed_at)
    };
    running.into_iter().map(encode).collect()
}

/// Returns the resident memory of this process in KiB; 0 if the system does not report it.
fn memory_kib() -> u64 {
    const PAGE_KIB: u64 = 4;
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).map_or(0, |pages| pages * PAGE_KIB)
}

/// Implements `JobStore::leave`.
pub(super) async fn leave(store: &Sidekiq, node: NodeId) -> Result<()> {
    let process = {
        let mut state = store.state();
        state.held.remove(&node);
        state.poll_waits.retain(|(other, _), _| *other != node);
        state.processes.remove(&node)
    };
    store.redis.leave(node).await?;
    if process.is_none() {
        return Ok(());
    }
    let identity = identity(node);
    let [record, work, workers, signals] = store.keys.process_keys(&identity);
    let mut cmd = redis::cmd("SREM");
    cmd.arg(&store.keys.processes).arg(identity);
    store.redis.send_idempotent("leave", ConnectionRole::Heartbeat, 0, &cmd).await?;
    let mut cmd = redis::cmd("UNLINK");
    cmd.arg(record).arg(work).arg(workers).arg(signals);
    store.redis.send_idempotent("leave", ConnectionRole::Heartbeat, 0, &cmd).await.map(drop)
}
