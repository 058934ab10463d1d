//! Registers a node as a Sidekiq process, which Sidekiq Web shows, and receives the signals sent from there.

use super::Sidekiq;
use super::entry::{self, ProcessInfo};
use super::keys::ProcessKeys;
use super::scripts::ANNOUNCE_PROCESS;
use crate::clock::{self, Micros};
use crate::error::Result;
use crate::node::{self, Node, NodeId};
use crate::store::redis::ConnectionRole;
use crate::store::{HeartbeatReply, JobStore};

/// Time between two writes of a node's running entries, if it has many; up to the maximum, every heartbeat writes them.
const WORK_INTERVAL: Micros = 5_000_000;
const WORK_EVERY_HEARTBEAT_MAX: usize = 100;
/// Most running entries shown for a node.
const WORK_MAX: usize = 1_000;

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

async fn write_process(store: &Sidekiq, node: &Node, slots: u64) -> Result<()> {
    let (identity, now) = (identity(node.id), store.now());
    let status = {
        let mut state = store.state();
        let status = state.processes.entry(node.id).or_default();
        if status.started_at == 0 {
            status.started_at = now;
        }
        status.clone()
    };
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
