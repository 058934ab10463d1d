//! Every key of the Redis store. No other file spells a key.
//!
//! All keys of a queue have its name as their hash tag. So a Cluster keeps them on one server, and one script reaches all of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64};

use super::script::key_set;
use crate::node::NodeId;

/// How many slots a Cluster has.
pub(crate) const CLUSTER_SLOTS: u16 = 16_384;

/// The keys of one queue. `docs/internals/redis-keys.md` describes what is in them.
#[derive(Debug)]
pub(crate) struct QueueKeys {
    pub(crate) queue: Arc<str>,
    /// The hash slot of a Cluster that has them.
    pub(crate) slot: u16,
    /// Hash: settings and counters of the queue, and how many jobs each node holds.
    pub(crate) conf: String,
    /// Hash: id to record. Only an edit writes a record again.
    pub(crate) job: String,
    /// Hash: id to changed state, for jobs that failed, crashed or were moved.
    pub(crate) meta: String,
    /// Hash: id and number to one run; the id alone to the ack of a done job.
    pub(crate) runs: String,
    /// Sorted set: tickets of scheduled jobs by due time.
    pub(crate) scheduled: String,
    /// Lists: tickets of ready jobs, most urgent priority first.
    pub(crate) ready: [String; 4],
    /// Set: tickets in the ready lists whose job is elsewhere now.
    pub(crate) stale: String,
    /// Hash: id to node and fence, for running jobs.
    pub(crate) running: String,
    /// Sorted sets: ids of done, dead and cancelled jobs by the time until which they are kept.
    pub(crate) done: String,
    pub(crate) dead: String,
    pub(crate) cancelled: String,
    /// Hash: unique key to the id of the unfinished job that has it.
    pub(crate) unique: String,
    /// Sets: ids of removed jobs. One set is filled while the other expires.
    pub(crate) removed: [String; 2],
    /// Hash: name of a cron rule to the rule, with its ticks.
    pub(crate) cron: String,
    /// Sorted set: names of cron rules by the time at which to check them. The first of these is also in `conf`.
    pub(crate) ticks: String,
    /// Sorted set: nodes by the time at which their lease ends.
    pub(crate) lease: String,
    /// Sorted set: nodes by the time since which they have been in unbroken contact.
    pub(crate) since: String,
    /// Hash: node to its info.
    pub(crate) nodes: String,
    /// Sorted set: idle nodes by their last claim.
    pub(crate) idle: String,
    /// Hash: minute, or `total`, and counter to how often.
    pub(crate) history: String,
    /// Hash: hour to its counters.
    pub(crate) history_hours: String,
    /// The key in which this process counts events: `history`, or a key that ends in `-`, at which scripts write nothing.
    pub(crate) counted_history: String,
    /// Hash: id and a letter to progress, log lines and result of a job.
    pub(crate) progress: String,
    /// Hash: group to the number of its dead jobs, when the first and the last died, kind and error.
    pub(crate) groups: String,
    /// Sorted set, all scores 0: terms by which scheduled and dead jobs are found, each with a time and an id.
    pub(crate) job_index: String,
    /// Sorted set, all scores 0: hints at scheduled jobs that a node deferred because it has no handler for their kind.
    pub(crate) deferred: String,
    /// Channels: wakes, one per node, and `completed`.
    pub(crate) channel: String,
    /// Channels, one per node and kind that it accepts: jobs that a push delivers.
    pub(crate) delivery: String,
    /// When a script last replied that the queue is unlimited, on the monotonic clock. Not a key.
    pub(crate) unlimited_at: AtomicI64,
    /// `deferred_mark` of `conf`, as a script last replied. Not a key.
    pub(crate) deferred_mark: AtomicI64,
    /// Whether the last push of this process found an idle node. Not a key.
    pub(crate) has_idle: AtomicBool,
}

key_set! { QueueKeys, keys:
    "conf" => &keys.conf,
    "job" => &keys.job,
    "meta" => &keys.meta,
    "runs" => &keys.runs,
    "scheduled" => &keys.scheduled,
    "ready[1]" => &keys.ready[0],
    "ready[2]" => &keys.ready[1],
    "ready[3]" => &keys.ready[2],
    "ready[4]" => &keys.ready[3],
    "stale" => &keys.stale,
    "running" => &keys.running,
    "done" => &keys.done,
    "dead" => &keys.dead,
    "cancelled" => &keys.cancelled,
    "unique" => &keys.unique,
    "removed[1]" => &keys.removed[0],
    "removed[2]" => &keys.removed[1],
    "cron" => &keys.cron,
    "ticks" => &keys.ticks,
    "lease" => &keys.lease,
    "since" => &keys.since,
    "nodes" => &keys.nodes,
    "idle" => &keys.idle,
    "history" => &keys.history,
    "history_hours" => &keys.history_hours,
    "counted_history" => &keys.counted_history,
    "progress" => &keys.progress,
    "groups" => &keys.groups,
    "job_index" => &keys.job_index,
    "deferred" => &keys.deferred,
}

impl QueueKeys {
    pub(crate) fn new(prefix: &str, queue: &str, history: bool) -> Self {
        let key = |what: &str| format!("{prefix}:queue:{{{queue}}}:{what}");
        QueueKeys {
            queue: queue.into(),
            slot: slot_of_tag(queue.as_bytes()),
            conf: key("conf"),
            job: key("job"),
            meta: key("meta"),
            runs: key("runs"),
            scheduled: key("scheduled"),
            ready: ["critical", "high", "normal", "low"].map(|priority| key(&format!("ready:{priority}"))),
            stale: key("stale"),
            running: key("running"),
            done: key("done"),
            dead: key("dead"),
            cancelled: key("cancelled"),
            unique: key("unique"),
            removed: [key("removed:1"), key("removed:2")],
            cron: key("cron"),
            ticks: key("ticks"),
            lease: key("lease"),
            since: key("since"),
            nodes: key("nodes"),
            idle: key("idle"),
            history: key("history"),
            history_hours: key("history_hours"),
            counted_history: key(if history { "history" } else { "history-" }),
            progress: key("progress"),
            groups: key("groups"),
            job_index: key("job_index"),
            deferred: key("deferred"),
            channel: key("wake:"),
            delivery: key("delivery:"),
            unlimited_at: AtomicI64::new(i64::MIN),
            deferred_mark: AtomicI64::new(0),
            has_idle: AtomicBool::new(false),
        }
    }

    /// The channel on which completed jobs are published while a caller waits for any.
    pub(crate) fn completions_channel(&self) -> String {
        format!("{}completed", self.channel)
    }

    /// The channel on which a node is woken.
    pub(crate) fn wake_channel(&self, node: NodeId) -> String {
        format!("{}{node}", self.channel)
    }

    /// The channel on which jobs of any kind are delivered to a node; with a kind behind it, jobs of this kind alone.
    pub(crate) fn delivery_channel(&self, node: NodeId) -> String {
        format!("{}{node}:", self.delivery)
    }
}

/// The keys that belong to no queue.
#[derive(Clone, Debug)]
pub(crate) struct PeerKeys {
    pub(crate) slot: u16,
    /// Set: the names of all queues.
    pub(crate) queues: String,
    /// String: the format of everything under this prefix.
    pub(crate) format: String,
    /// Hash: the last fence; how many slots a lock has; each hold.
    pub(crate) locks: String,
    /// Sorted set, all scores 0: waiters for locks, in the order of their turns.
    pub(crate) lock_waiters: String,
    /// Hash: owner and lock to its member of `lock_waiters`.
    pub(crate) waiter_index: String,
    /// Sorted set: nodes by the time at which their lease as a peer ends.
    pub(crate) presence: String,
    /// Hash: node to its info and its methods.
    pub(crate) peers: String,
    /// Hash: connection to the node that holds it.
    pub(crate) connections: String,
    /// Channels, one per node, named after the key of presences: turns of locks and messages.
    pub(crate) channel: String,
    /// The channel of all nodes.
    pub(crate) all: String,
    /// String: the secret from which ids of jobs are derived.
    pub(crate) secret: String,
    /// Hash: name of a token to the token.
    pub(crate) tokens: String,
    /// Sorted set: entries of the audit log by their numbers.
    pub(crate) audit: String,
    /// Sorted set, all scores 0: actor and number of each entry of the audit log.
    pub(crate) audit_actors: String,
    /// Sorted set: actors by the number of their entries in the audit log.
    pub(crate) audit_counts: String,
    /// Hashes: hour or minute, and kind, to outcomes of attempts; hour or minute to its kinds.
    pub(crate) kinds: String,
    pub(crate) kind_minutes: String,
}

key_set! { PeerKeys, keys:
    "queues" => &keys.queues,
    "locks" => &keys.locks,
    "lock_waiters" => &keys.lock_waiters,
    "waiter_index" => &keys.waiter_index,
    "presence" => &keys.presence,
    "peers" => &keys.peers,
    "connections" => &keys.connections,
    "tokens" => &keys.tokens,
    "audit" => &keys.audit,
    "audit_actors" => &keys.audit_actors,
    "audit_counts" => &keys.audit_counts,
    "kinds" => &keys.kinds,
    "kind_minutes" => &keys.kind_minutes,
}

impl PeerKeys {
    pub(crate) fn new(prefix: &str) -> Self {
        const TAG: &str = "duly";
        let key = |what: &str| format!("{prefix}:peers:{{{TAG}}}:{what}");
        PeerKeys {
            slot: slot_of_tag(TAG.as_bytes()),
            queues: key("queues"),
            format: key("format"),
            locks: key("locks"),
            lock_waiters: key("lock_waiters"),
            waiter_index: key("waiter_index"),
            presence: key("presence"),
            peers: key("peers"),
            connections: key("connections"),
            channel: key("presence:"),
            all: key("all"),
            secret: key("secret"),
            tokens: key("tokens"),
            audit: key("audit"),
            audit_actors: key("audit_actors"),
            audit_counts: key("audit_counts"),
            kinds: key("kinds"),
            kind_minutes: key("kind_minutes"),
        }
    }

    /// The channel of messages to one node.
    pub(crate) fn node_channel(&self, node: NodeId) -> String {
        format!("{}{node}", self.channel)
    }
}

/// The slot of a key: that of its hash tag, if it has one.
pub(crate) fn slot_of_key(key: &str) -> u16 {
    slot_of_tag(hash_tag(key).as_bytes())
}

/// The hash tag of a key: the text between its first brace and the next. Without one, the whole key.
pub(crate) fn hash_tag(key: &str) -> &str {
    let inner = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    inner.filter(|tag| !tag.is_empty()).unwrap_or(key)
}

/// The slot of a hash tag: CRC16 (XMODEM) of it.
fn slot_of_tag(tag: &[u8]) -> u16 {
    const POLYNOMIAL: u16 = 0x1021;
    let crc = tag.iter().fold(0u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| match crc & 0x8000 {
            0 => crc << 1,
            _ => (crc << 1) ^ POLYNOMIAL,
        })
    });
    crc % CLUSTER_SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_matches_cluster_specification() {
        assert_eq!(slot_of_tag(b"123456789"), 0x31C3);
        assert_eq!(slot_of_tag(b"foo"), 12182);
    }

    #[test]
    fn queue_keys_share_one_hash_tag() {
        let keys = QueueKeys::new("app", "mail", true);
        assert_eq!(keys.job, "app:queue:{mail}:job");
        assert!(keys.wake_channel(NodeId::from_bytes([0; 16])).starts_with("app:queue:{mail}:wake:0000"));
    }
}
