//! Process: how a node shows itself to Sidekiq Web, and what it is told from there.

use super::Sidekiq;
use super::entry::{self, Process};
use super::keys::ProcessKeys;
use super::scripts::ANNOUNCE_PROCESS;
use crate::clock::{self, Micros};
use crate::error::Result;
use crate::node::{self, Node, NodeId};
use crate::store::redis::Way;
use crate::store::{Beaten, Store};

/// How often it is written what a node runs, if that is more than a few; else with every beat.
const WORK_EVERY: Micros = 5_000_000;
const FEW: usize = 100;
/// Most entries shown of what a node runs.
const WORK_MAX: usize = 1_000;

/// What is known of a node that Sidekiq can see.
#[derive(Clone, Debug, Default)]
pub(super) struct Shown {
    since: Micros,
    written: Option<Micros>,
    rtt: u128,
    /// Told to take no more jobs, for good; and to stop.
    quiet: bool,
    stop: bool,
}

/// `beat` of the contract. The sign of life is what counts; if Sidekiq's own record cannot be written, that is logged.
pub(super) async fn beat(store: &Sidekiq, node: &Node) -> Result<Beaten> {
    let mut beaten = store.redis.beat(node).await?;
    // Whoever takes nothing on is no process to Sidekiq.
    let Some(slots) = node.takes.slots.filter(|slots| *slots > 0) else {
        return Ok(beaten);
    };
    if let Err(error) = show(store, node, slots).await {
        tracing::warn!(node = %node.id, %error, "Sidekiq does not see this node for now");
    }
    // Said again with every beat, since an answer may be dropped.
    if let Some(shown) = store.known().shown.get(&node.id) {
        (beaten.quiet, beaten.stop) = (shown.quiet, shown.stop);
    }
    Ok(beaten)
}

/// The name under which Sidekiq knows a process.
fn identity(node: NodeId) -> String {
    let tail: String = node.as_bytes()[10..].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}:{}:{tail}", node::host(), std::process::id())
}

async fn show(store: &Sidekiq, node: &Node, slots: u64) -> Result<()> {
    let (identity, now) = (identity(node.id), store.now());
    let shown = {
        let mut known = store.known();
        let shown = known.shown.entry(node.id).or_default();
        if shown.since == 0 {
            shown.since = now;
        }
        shown.clone()
    };
    let keys = ProcessKeys { processes: &store.keys.processes, process: store.keys.process(&identity) };
    let mut cmd = ANNOUNCE_PROCESS.call(&keys);
    let about = Process {
        identity: &identity,
        host: &node::host(),
        since: shown.since,
        concurrency: slots,
        queues: &node.queues,
    };
    let runs = runs(store, node.id);
    let with_work = runs.len() <= FEW || shown.written.is_none_or(|written| now - written >= WORK_EVERY);
    cmd.arg(store.manual_now()).arg(&identity).arg(about.text()).arg(runs.len());
    cmd.arg(shown.quiet.to_string()).arg(memory_kib()).arg(slots);
    cmd.arg(shown.rtt.to_string()).arg(u8::from(with_work));
    for (no, text) in runs.iter().enumerate().take(if with_work { WORK_MAX } else { 0 }) {
        cmd.arg(format!("{no:x}")).arg(text);
    }
    let asked = clock::tick();
    let mut reply = store.run("beat", Way::Beat, &ANNOUNCE_PROCESS, &cmd).await?;
    let mut known = store.known();
    let shown = known.shown.entry(node.id).or_default();
    shown.rtt = asked.elapsed().as_micros();
    if with_work {
        shown.written = Some(now);
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
fn runs(store: &Sidekiq, node: NodeId) -> Vec<String> {
    let known = store.known();
    let Some(held) = known.held.get(&node) else {
        return Vec::new();
    };
    let mut all = Vec::new();
    for (queue, held) in held {
        all.extend(held.iter().map(|(hold, kept)| (hold, queue, kept)));
    }
    all.sort_by_key(|(hold, ..)| **hold);
    let text = |(_, queue, kept): (_, &String, &super::Kept)| {
        entry::work(queue, &String::from_utf8_lossy(&kept.entry), kept.since)
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
        let mut known = store.known();
        known.held.remove(&node);
        known.waits.retain(|(other, _), _| *other != node);
        known.shown.remove(&node)
    };
    store.redis.leave(node).await?;
    if shown.is_none() {
        return Ok(());
    }
    let identity = identity(node);
    let [record, work, workers, signals] = store.keys.process(&identity);
    let mut cmd = redis::cmd("SREM");
    cmd.arg(&store.keys.processes).arg(identity);
    store.redis.ask("leave", Way::Beat, 0, &cmd).await?;
    let mut cmd = redis::cmd("UNLINK");
    cmd.arg(record).arg(work).arg(workers).arg(signals);
    store.redis.ask("leave", Way::Beat, 0, &cmd).await.map(drop)
}
