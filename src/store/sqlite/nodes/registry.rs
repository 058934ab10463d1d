//! The node registry: the nodes that use the file, as workers, as peers, or as both.
//!
//! Heartbeats do not go through the database: each would cost a sync, and would wait for long transactions.
//! A node takes a slot by locking the slot's file. Then it writes its id into the slot and registers in the database.
//! If the lock is free, the node is dead. If it is held but the heartbeat is old, the lease of the process decides.
//!
//! A node that is worker and peer has one slot with two heartbeats: neither role keeps the holds of the other.

use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicI64;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::clock::{Clock, Micros, micros};
use crate::job::JobId;
use crate::node::NodeId;
use crate::store::sqlite::nodes::slot_lock::SlotLock;
use crate::store::sqlite::nodes::slots::{
    FLAG_BROADCASTS, FLAG_QUIET, FLAG_SUBSCRIBED, FLAGS_OFFSET, IDLE_OFFSET, NodeSlot, PEER_HEARTBEAT_OFFSET,
    PID_OFFSET, SLOT_BYTES, SlotHeartbeat, SlotTable, WATCH_BITS_SHIFT, WORKER_HEARTBEAT_OFFSET,
};
use crate::store::sqlite::nodes::subscriptions::NodeSubscriptions;
use crate::store::{Notification, Wake};
use crate::sync::LockExt;

pub(crate) use crate::store::sqlite::nodes::slots::NODES_MAX;

/// The liveness of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Liveness {
    Alive,
    /// Its process exists, but its last heartbeat is older than its lease.
    LeaseExpired,
    /// Its process has ended.
    Dead,
}

/// A node of this process.
pub(super) struct LocalNode {
    pub(super) id: NodeId,
    pub(super) slot: usize,
    /// Its lease as a worker, if it is one.
    worker_lease: Option<Duration>,
    /// The worker claims nothing for now. The slot has the same flag.
    quiet: bool,
    /// The node is a peer.
    is_peer: bool,
    /// Kept open for its lock.
    pub(super) lock: Option<SlotLock>,
    idle_queues: HashSet<String>,
    /// Its subscriptions, as bits of the slot.
    subscription_flags: u32,
    /// Queues whose completions the node subscribes to.
    watched_queues: HashSet<String>,
    subscriptions: Arc<NodeSubscriptions>,
}

impl LocalNode {
    /// Returns the bytes of the node's slot, as of a heartbeat now. A peer renews its own lease with its next one.
    pub(super) fn slot_contents(&self, now: Micros, peer_lease: Duration) -> [u8; SLOT_BYTES] {
        let mut bytes = [0; SLOT_BYTES];
        let mut put = |offset: usize, part: &[u8]| bytes[offset..offset + part.len()].copy_from_slice(part);
        put(0, self.id.as_bytes());
        put(PID_OFFSET, &std::process::id().to_le_bytes());
        put(IDLE_OFFSET, &self.idle_bits().to_le_bytes());
        put(FLAGS_OFFSET, &self.flags().to_le_bytes());
        if let Some(lease) = self.worker_lease {
            put(WORKER_HEARTBEAT_OFFSET, &heartbeat_bytes(now, lease));
        }
        if self.is_peer {
            put(PEER_HEARTBEAT_OFFSET, &heartbeat_bytes(now, peer_lease));
        }
        bytes
    }

    fn idle_bits(&self) -> u64 {
        self.idle_queues.iter().fold(0, |bits, queue| bits | idle_bit(queue))
    }

    fn flags(&self) -> u32 {
        let watches = self.watched_queues.iter().fold(0, |bits, queue| bits | watch_bit(queue));
        let quiet = if self.quiet { FLAG_QUIET } else { 0 };
        self.subscription_flags | quiet | watches << WATCH_BITS_SHIFT
    }
}

/// Returns a heartbeat at this time, and its lease, as in a slot.
fn heartbeat_bytes(now: Micros, lease: Duration) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&now.to_le_bytes());
    bytes[8..].copy_from_slice(&micros(lease).to_le_bytes());
    bytes
}

/// The node registry, and the nodes of this process in it.
pub(crate) struct NodeRegistry {
    pub(super) slots: SlotTable,
    clock: Clock,
    /// The longest lease that nodes of the file had when it was opened.
    pub(super) lease_max: Duration,
    /// When the files of this process were last touched.
    pub(super) touched_at: AtomicI64,
    local_nodes: Mutex<Vec<LocalNode>>,
    /// The last heartbeat of this process, and the start of its heartbeats without a gap.
    heartbeat_streak: Mutex<HeartbeatStreak>,
}

#[derive(Clone, Copy)]
struct HeartbeatStreak {
    last: Micros,
    since: Micros,
}

impl NodeRegistry {
    /// Opens the registry of a file. If its directory `was_deleted`, unknown nodes may be alive for a lease.
    pub(crate) fn open(file: &Path, clock: Clock, lease_max: Duration, was_deleted: bool) -> io::Result<Self> {
        let grace = if was_deleted { micros(lease_max) } else { 0 };
        let slots = SlotTable::open(file, clock.since_boot(), grace)?;
        Ok(NodeRegistry::new(slots, clock, lease_max))
    }

    /// Opens the registry of a file for a process without nodes; `None` if no process uses it.
    pub(crate) fn open_existing(file: &Path, clock: Clock) -> io::Result<Option<Self>> {
        let slots = SlotTable::open_existing(file, clock.since_boot())?;
        Ok(slots.map(|slots| NodeRegistry::new(slots, clock, Duration::ZERO)))
    }

    /// Creates a registry for this process only.
    pub(crate) fn in_memory(clock: Clock) -> Self {
        NodeRegistry::new(SlotTable::in_memory(), clock, Duration::ZERO)
    }

    fn new(slots: SlotTable, clock: Clock, lease_max: Duration) -> Self {
        NodeRegistry {
            slots,
            touched_at: AtomicI64::new(clock.since_boot()),
            lease_max,
            clock,
            local_nodes: Mutex::default(),
            heartbeat_streak: Mutex::new(HeartbeatStreak { last: Micros::MIN / 2, since: Micros::MAX / 2 }),
        }
    }

    /// Returns the time for heartbeats and lock expiry. The clock never steps, and continues while the machine sleeps.
    pub(crate) fn uptime(&self) -> Micros {
        self.clock.since_boot()
    }

    /// Takes a slot for a worker of this process, unless it has one. Returns the slot.
    pub(crate) fn join(&self, id: NodeId, lease: Duration) -> io::Result<usize> {
        let mut locals = self.local_nodes();
        let local = self.ensure_slot(&mut locals, id)?;
        if local.worker_lease.is_none() {
            self.write_heartbeat(local.slot, WORKER_HEARTBEAT_OFFSET, lease)?;
            local.worker_lease = Some(lease);
        }
        Ok(local.slot)
    }

    /// Removes a worker. Its slot is released, unless it is also a peer.
    pub(crate) fn leave(&self, id: NodeId) -> io::Result<()> {
        self.end_role(id, |local| {
            local.worker_lease = None;
            local.idle_queues.clear();
            local.subscriptions.unsubscribe_wakes();
            (WORKER_HEARTBEAT_OFFSET, PID_OFFSET)
        })
    }

    /// Records a worker's heartbeat, and whether it claims nothing for now. Returns false if it has not joined here.
    pub(crate) fn heartbeat(&self, id: NodeId, quiet: bool) -> io::Result<bool> {
        self.rejoin_if_deleted()?;
        let mut locals = self.local_nodes();
        let Some(local) = locals.iter_mut().find(|l| l.id == id) else {
            return Ok(false);
        };
        let Some(lease) = local.worker_lease else {
            return Ok(false);
        };
        self.slots.write(local.slot, WORKER_HEARTBEAT_OFFSET, &self.uptime().to_le_bytes())?;
        if local.quiet != quiet {
            local.quiet = quiet;
            self.write_flags(local)?;
        }
        drop(locals);
        self.record_heartbeat(lease);
        Ok(true)
    }

    /// Records a peer's heartbeat. The first one takes a slot, unless the node has one. Returns whether it was the
    /// first.
    pub(crate) fn announce(&self, id: NodeId, lease: Duration) -> io::Result<bool> {
        self.rejoin_if_deleted()?;
        let mut locals = self.local_nodes();
        let local = self.ensure_slot(&mut locals, id)?;
        self.write_heartbeat(local.slot, PEER_HEARTBEAT_OFFSET, lease)?;
        let first = !std::mem::replace(&mut local.is_peer, true);
        drop(locals);
        self.record_heartbeat(lease);
        Ok(first)
    }

    /// Makes a node a peer if it is none: a lock holder must be in the registry.
    pub(crate) fn ensure_announced(&self, id: NodeId, lease: Duration) -> io::Result<()> {
        let is_peer = self.local_nodes().iter().any(|l| l.id == id && l.is_peer);
        if is_peer { Ok(()) } else { self.announce(id, lease).map(drop) }
    }

    /// Removes a peer. Its slot is released, unless it is also a worker.
    pub(crate) fn withdraw(&self, id: NodeId) -> io::Result<()> {
        self.end_role(id, |local| {
            local.is_peer = false;
            local.subscription_flags = 0;
            // The next heartbeat of the worker sets it again.
            local.quiet = false;
            local.watched_queues.clear();
            local.subscriptions.unsubscribe_messages();
            (FLAGS_OFFSET, SLOT_BYTES)
        })
    }

    /// Ends one role of a node and clears its bytes in the slot. Releases the slot once no role is left.
    fn end_role(&self, id: NodeId, end: impl FnOnce(&mut LocalNode) -> (usize, usize)) -> io::Result<()> {
        let mut locals = self.local_nodes();
        let Some(at) = locals.iter().position(|l| l.id == id) else {
            return Ok(());
        };
        let (from, to) = end(&mut locals[at]);
        if locals[at].worker_lease.is_some() || locals[at].is_peer {
            return self.slots.write(locals[at].slot, from, &[0; SLOT_BYTES][from..to]);
        }
        let local = locals.swap_remove(at);
        self.slots.remove_socket(local.slot);
        // Cleared while the lock is held: the next owner starts with an empty slot.
        self.slots.write(local.slot, 0, &[0; SLOT_BYTES])
    }

    fn ensure_slot<'l>(&self, locals: &'l mut Vec<LocalNode>, id: NodeId) -> io::Result<&'l mut LocalNode> {
        let index = match locals.iter().position(|l| l.id == id) {
            Some(index) => index,
            None => {
                let (slot, lock) = self.slots.lock_free_slot(self.uptime())?;
                let (idle, watches, subscriptions) = (HashSet::new(), HashSet::new(), Arc::default());
                let local = LocalNode {
                    id,
                    slot,
                    worker_lease: None,
                    quiet: false,
                    is_peer: false,
                    lock,
                    idle_queues: idle,
                    subscription_flags: 0,
                    watched_queues: watches,
                    subscriptions,
                };
                self.slots.write(slot, 0, &local.slot_contents(self.uptime(), self.lease_max))?;
                locals.push(local);
                locals.len() - 1
            }
        };
        Ok(&mut locals[index])
    }

    fn write_heartbeat(&self, slot: usize, offset: usize, lease: Duration) -> io::Result<()> {
        self.slots.write(slot, offset, &heartbeat_bytes(self.uptime(), lease))
    }

    fn record_heartbeat(&self, lease: Duration) {
        let now = self.uptime();
        let mut contact = self.heartbeat_streak.lock_unpoisoned();
        if now - contact.last > micros(lease) {
            contact.since = now;
        }
        contact.last = now;
        drop(contact);
        self.clear_slots_without_lock();
    }

    /// Returns the slot of a local node.
    pub(crate) fn slot_of(&self, id: NodeId) -> Option<usize> {
        self.local_nodes().iter().find(|l| l.id == id).map(|l| l.slot)
    }

    /// Returns the subscriptions of a local node.
    pub(crate) fn subscriptions(&self, id: NodeId) -> Option<Arc<NodeSubscriptions>> {
        self.local_nodes().iter().find(|l| l.id == id).map(|l| l.subscriptions.clone())
    }

    /// Returns the liveness of a worker. If the registry cannot be read, the worker counts as alive, so that it loses no
    /// jobs.
    pub(crate) fn worker_liveness(&self, id: NodeId) -> Liveness {
        let Ok(slots) = self.slots.read_occupied() else {
            return Liveness::Alive;
        };
        match slots.into_iter().find(|s| s.id == id) {
            Some(read) if !self.slots.is_unlocked(read.index) => self.liveness_from(read.worker_heartbeat),
            None if self.slots.may_be_alive_without_slot(self.uptime()) => Liveness::Alive,
            _ => Liveness::Dead,
        }
    }

    /// Returns whether a worker claims nothing for now.
    pub(crate) fn is_quiet(&self, id: NodeId) -> bool {
        self.occupied_slots().into_iter().any(|s| s.id == id && s.quiet)
    }

    /// Returns the liveness of a node that holds its lock, by one of its heartbeats.
    pub(crate) fn liveness_from(&self, heartbeat: SlotHeartbeat) -> Liveness {
        match !heartbeat.has_lease(self.uptime()) {
            // The node has left this role, or never had it.
            _ if heartbeat.lease == 0 => Liveness::Dead,
            true => Liveness::LeaseExpired,
            false => Liveness::Alive,
        }
    }

    /// Returns whether the jobs of a worker may be taken back now.
    ///
    /// A silent worker loses its jobs only to a process that was itself awake for a whole lease. After a sleep of the
    /// machine all heartbeats are old, and the first process to wake up must not take the jobs of the others.
    pub(crate) fn can_take_back(&self, id: NodeId) -> bool {
        match self.worker_liveness(id) {
            Liveness::Alive => false,
            Liveness::Dead => true,
            Liveness::LeaseExpired => {
                let Some(silent) = self.occupied_slots().into_iter().find(|s| s.id == id) else {
                    return true;
                };
                self.was_awake_for(silent.worker_heartbeat.lease)
            }
        }
    }

    /// Returns whether this process has sent heartbeats for at least this long, without a gap.
    pub(super) fn was_awake_for(&self, lease: Micros) -> bool {
        let (contact, now) = (*self.heartbeat_streak.lock_unpoisoned(), self.uptime());
        now - contact.last <= lease && now - contact.since >= lease
    }

    /// Records whether a local node is idle on a queue. Returns how many idle nodes come before it.
    pub(crate) fn set_idle(&self, id: NodeId, queue: &str, idle: bool) -> u32 {
        let mut locals = self.local_nodes();
        let Some(local) = locals.iter_mut().find(|l| l.id == id) else {
            return 0;
        };
        let changed = match idle {
            true => local.idle_queues.insert(queue.to_owned()),
            false => local.idle_queues.remove(queue),
        };
        let slot = local.slot;
        if changed {
            let bits = local.idle_bits();
            // If the slot cannot be written, a wake is lost; the check once a second finds the job.
            let _ = self.slots.write(slot, IDLE_OFFSET, &bits.to_le_bytes());
        }
        drop(locals);
        if !idle {
            return 0;
        }
        let before = self.occupied_slots().into_iter().filter(|s| s.index < slot && s.idle_bits & idle_bit(queue) != 0);
        u32::try_from(before.count()).unwrap_or(u32::MAX)
    }

    /// Wakes one local node that is idle on this queue. Returns whether there was one.
    pub(crate) fn wake_one_local(&self, queue: &str) -> bool {
        let locals = self.local_nodes();
        let mut waiting = locals.iter().filter(|l| l.idle_queues.contains(queue));
        waiting.any(|local| local.subscriptions.wake(Wake::Queue(queue.to_owned())))
    }

    /// Wakes all local nodes that are idle on this queue.
    pub(crate) fn wake_all_local(&self, queue: &str) {
        let locals = self.local_nodes();
        let waiting = locals.iter().filter(|l| l.idle_queues.contains(queue));
        waiting.for_each(|local| _ = local.subscriptions.wake(Wake::Queue(queue.to_owned())));
    }

    /// Makes a local node send a heartbeat. Returns the slot of a node in another process, which needs a datagram.
    pub(crate) fn request_heartbeat(&self, id: NodeId) -> Option<usize> {
        if let Some(local) = self.local_nodes().iter().find(|local| local.id == id) {
            local.subscriptions.wake(Wake::Heartbeat);
            return None;
        }
        let slots = if self.is_shared() { self.occupied_slots() } else { Vec::new() };
        slots.into_iter().find(|slot| slot.id == id).map(|slot| slot.index)
    }

    /// Returns slots of other processes' nodes that are probably idle on this queue.
    pub(crate) fn external_idle_slots(&self, queue: &str) -> Vec<usize> {
        let own: Vec<usize> = self.local_nodes().iter().map(|l| l.slot).collect();
        let slots = self.occupied_slots().into_iter();
        slots.filter(|s| s.idle_bits & idle_bit(queue) != 0 && !own.contains(&s.index)).map(|s| s.index).collect()
    }

    /// Subscribes a local node to messages and, if `all`, to broadcasts.
    pub(crate) fn set_subscribed(&self, slot: usize, all: bool) -> io::Result<()> {
        let mut locals = self.local_nodes();
        let Some(local) = locals.iter_mut().find(|l| l.slot == slot) else {
            return Ok(());
        };
        local.subscription_flags = if all { FLAG_SUBSCRIBED | FLAG_BROADCASTS } else { FLAG_SUBSCRIBED };
        self.write_flags(local)
    }

    /// Subscribes a local node to completions in these queues, and in no others.
    pub(crate) fn watch_completions(&self, id: NodeId, queues: &[String]) -> io::Result<()> {
        let mut locals = self.local_nodes();
        let Some(local) = locals.iter_mut().find(|l| l.id == id) else {
            return Err(io::Error::other("the node has not announced itself"));
        };
        local.watched_queues = queues.iter().cloned().collect();
        self.write_flags(local)
    }

    fn write_flags(&self, local: &LocalNode) -> io::Result<()> {
        self.slots.write(local.slot, FLAGS_OFFSET, &local.flags().to_le_bytes())
    }

    /// Notifies the subscribed local nodes of completions in this queue.
    pub(crate) fn notify_completed(&self, queue: &str, ids: &[JobId]) {
        for local in self.local_nodes().iter().filter(|l| l.watched_queues.contains(queue)) {
            local.subscriptions.notify(Notification::Completed(ids.to_vec()));
        }
    }

    /// Returns slots of other processes' nodes that are probably subscribed to completions in this queue.
    pub(crate) fn external_watcher_slots(&self, queue: &str) -> Vec<usize> {
        if !self.is_shared() {
            return Vec::new();
        }
        let own: Vec<usize> = self.local_nodes().iter().map(|l| l.slot).collect();
        let slots = self
            .occupied_slots()
            .into_iter()
            .filter(|s| s.watch_bits & watch_bit(queue) != 0 && !own.contains(&s.index));
        slots.map(|s| s.index).collect()
    }

    /// Notifies a local node. Returns whether it is subscribed; `None` if it is not local.
    pub(crate) fn notify(&self, id: NodeId, notification: Notification) -> Option<bool> {
        self.local_nodes().iter().find(|l| l.id == id).map(|local| local.subscriptions.notify(notification))
    }

    /// Broadcasts to the subscribed local nodes. Returns how many there are.
    pub(crate) fn notify_broadcast(&self, notification: &Notification) -> u64 {
        let locals = self.local_nodes();
        locals
            .iter()
            .filter(|local| {
                local.subscriptions.is_subscribed_to_broadcasts() && local.subscriptions.notify(notification.clone())
            })
            .count() as u64
    }

    /// Returns slots of living nodes of other processes: of this node if it is subscribed, or of all that receive
    /// broadcasts.
    pub(crate) fn external_subscriber_slots(&self, only: Option<NodeId>) -> Vec<usize> {
        let own: Vec<usize> = self.local_nodes().iter().map(|l| l.slot).collect();
        let slots = self.occupied_slots().into_iter().filter(|s| match only {
            Some(id) => s.subscribed && s.id == id,
            None => s.broadcasts,
        });
        slots.map(|s| s.index).filter(|slot| !own.contains(slot) && !self.slots.is_unlocked(*slot)).collect()
    }

    /// Returns whether other processes share this registry.
    pub(crate) fn is_shared(&self) -> bool {
        self.slots.current().is_some()
    }

    /// Returns all slots that have an owner, dead or alive. Returns none if they cannot be read.
    pub(crate) fn occupied_slots(&self) -> Vec<NodeSlot> {
        self.slots.read_occupied().unwrap_or_default()
    }

    pub(crate) fn slots(&self) -> &SlotTable {
        &self.slots
    }

    pub(super) fn local_nodes(&self) -> MutexGuard<'_, Vec<LocalNode>> {
        self.local_nodes.lock_unpoisoned()
    }
}

/// Returns one of 64 bits for a queue. Two queues may share a bit, which costs a needless claim.
fn idle_bit(queue: &str) -> u64 {
    1 << (hash_queue_name(queue) % 64)
}

/// Returns one of 24 bits for a queue. Two queues may share a bit, which costs a needless datagram.
fn watch_bit(queue: &str) -> u32 {
    1 << (hash_queue_name(queue) % u64::from(u32::BITS - WATCH_BITS_SHIFT))
}

fn hash_queue_name(queue: &str) -> u64 {
    // FNV-1a: processes of different builds must compute the same bit.
    queue.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}
