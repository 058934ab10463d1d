//! Process: how a node shows itself to Sidekiq Web, and what it is told from there.

use super::Sidekiq;
use super::entry::{self, ProcessInfo};
use super::keys::ProcessKeys;
use super::scripts::ANNOUNCE_PROCESS;
use crate::clock::{self, Micros};
use crate::error::Result;
use crate::node::{self, Node, NodeId};
use crate::store::redis::ConnectionRole;
use crate::store::{HeartbeatReply, Store};

/// How often it is written what a node runs, if that is more than a few; else with every beat.
const WORK_INTERVAL: Micros = 5_000_000;
const WORK_EVERY_HEARTBEAT_MAX: usize = 100;
/// Most entries shown of what a node runs.
const WORK_MAX: usize = 1_000;

/// What is known of a node that Sidekiq can see.
#[derive(Clone, Debug, Default)]
pub(super) struct ProcessStatus {
    started_at: Micros,
    work_written_at: Option<Micros>,
    rtt_us: u128,
    /// Told to take no more jobs, for good; and to stop.
    quiet: bool,
    stop: bool,
}

/// `beat` of the contract. The sign of life is what counts; if Sidekiq's own record cannot be written, that is logged.
pub(super) async fn heartbeat(store: &Sidekiq, node: &Node) -> Result<HeartbeatReply> {
    let mut beaten = store.redis.heartbeat(node).await?;
    // Whoever takes nothing on is no process to Sidekiq.
    let Some(slots) = node.profile.slots.filter(|slots| *slots > 0) else {
        return Ok(beaten);
    };
    if let Err(error) = write_process(store, node, slots).await {
        tracing::warn!(node = %node.id, %error, "Sidekiq does not see this node for now");
    }
    // Said again with every beat, since an answer may be dropped.
    if let Some(shown) = store.state().processes.get(&node.id) {
        (beaten.quiet, beaten.stop) = (shown.quiet, shown.stop);
    }
    Ok(beaten)
}

/// The name under which Sidekiq knows a process.
fn identity(node: NodeId) -> String {
    let tail: String = node.as_bytes()[10..].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}:{}:{tail}", node::host_name(), std::process::id())
}

async fn write_process(store: &Sidekiq, node: &Node, slots: u64) -> Result<()> {
    let (identity, now) = (identity(node.id), store.now());
    let shown = {
        let mut known = store.state();
        let shown = known.processes.entry(node.id).or_default();
        if shown.started_at == 0 {
            shown.started_at = now;
        }
        shown.clone()
    };
    let keys = ProcessKeys { processes: &store.keys.processes, process: store.keys.process_keys(&identity) };
    let mut cmd = ANNOUNCE_PROCESS.call(&keys);
    let about = ProcessInfo {
        identity: &identity,
        host: &node::host_name(),
        started_at: shown.started_at,
        concurrency: slots,
        queues: &node.queues,
    };
    let runs = running_work(store, node.id);
    let with_work = runs.len() <= WORK_EVERY_HEARTBEAT_MAX
        || shown.work_written_at.is_none_or(|written| now - written >= WORK_INTERVAL);
    cmd.arg(store.manual_now()).arg(&identity).arg(about.encode()).arg(runs.len());
    cmd.arg(shown.quiet.to_string()).arg(memory_kib()).arg(slots);
    cmd.arg(shown.rtt_us.to_string()).arg(u8::from(with_work));
    for (no, text) in runs.iter().enumerate().take(if with_work { WORK_MAX } else { 0 }) {
        cmd.arg(format!("{no:x}")).arg(text);
    }
    let asked = clock::monotonic_now();
    let mut reply = store.run_script("beat", ConnectionRole::Heartbeat, &ANNOUNCE_PROCESS, &cmd).await?;
    let mut known = store.state();
    let shown = known.processes.entry(node.id).or_default();
    shown.rtt_us = asked.elapsed().as_micros();
    if with_work {
        shown.work_written_at = Some(now);
    }
    for signal in reply.list()?.into_iter().flatten() {
        match &signal[..] {
            b"TSTP" => shown.quiet = true,
            b"TERM" => shown.stop = true,
            b"TTIN" => tracing::info!(node = %node.id, ?runs, "asked what it runs"),
            other => {
                tracing::warn!(signal = %String::from_utf8_lossy(other), "Sidekiq has said what duly does not know")
            }
        }
    }
    Ok(())
}

/// What a node of ours runs, as its record shows it.
fn running_work(store: &Sidekiq, node: NodeId) -> Vec<String> {
    let known = store.state();
    let Some(held) = known.held.get(&node) else {
        return Vec::new();
    };
    let mut all = Vec::new();
    for (queue, held) in held {
        all.extend(held.iter().map(|(hold, kept)| (hold, queue, kept)));
    }
    all.sort_by_key(|(hold, ..)| **hold);
    let text = |(_, queue, kept): (_, &String, &super::HeldEntry)| {
        entry::encode_work(queue, &String::from_utf8_lossy(&kept.entry), kept.claimed_at)
    };
    all.into_iter().map(text).collect()
}

/// How much memory this process has, in KiB; 0 where the system does not say.
fn memory_kib() -> u64 {
    const PAGE_KIB: u64 = 4;
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).map_or(0, |pages| pages * PAGE_KIB)
}

/// `leave` of the contract.
pub(super) async fn leave(store: &Sidekiq, node: NodeId) -> Result<()> {
    let shown = {
        let mut known = store.state();
        known.held.remove(&node);
        known.poll_waits.retain(|(other, _), _| *other != node);
        known.processes.remove(&node)
    };
    store.redis.leave(node).await?;
    if shown.is_none() {
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
