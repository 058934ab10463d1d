//! Every key, and who it belongs to.
//!
//! All keys of a queue carry its name as their hash tag: on a Cluster they live together, and a script can reach them all.
//! Nothing but this file spells a key.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::node::NodeId;

/// How many slots a Cluster has.
pub(super) const SLOTS: u16 = 16_384;

/// The keys of one queue.
#[derive(Debug)]
pub(super) struct QueueKeys {
    pub(super) queue: Arc<str>,
    /// Where a Cluster keeps them.
    pub(super) slot: u16,
    /// Hash: `paused`; `moving` (who moves it, who began, where to); the `note:` of each move into it; the last `fence`;
    /// which `half` of the gone ids is younger, and `since` when; whether any ticket is `stale`; `sealed`, which a
    /// push writes that waits for replicas; and how many jobs each node holds.
    pub(super) conf: String,
    /// Hash: id to record, written once.
    pub(super) job: String,
    /// Hash: id to what has changed, for jobs in trouble only.
    pub(super) meta: String,
    /// Hash: id and number to one failure.
    pub(super) errors: String,
    /// Sorted set: tickets of scheduled jobs by due moment.
    pub(super) due: String,
    /// Lists: tickets of ready jobs, most urgent priority first.
    pub(super) ready: [String; 4],
    /// Set: tickets in the ready lists whose job has gone elsewhere.
    pub(super) stale: String,
    /// Hash: id to node and fence, for running jobs.
    pub(super) held: String,
    /// Sorted sets: ids of ended jobs by the moment until which they are kept.
    pub(super) done: String,
    pub(super) dead: String,
    /// Hash: unique key to the id of the unfinished job that has it.
    pub(super) unique: String,
    /// Sets: ids of jobs that are gone; the two take turns.
    pub(super) gone: [String; 2],
    /// Sorted set: nodes by the moment at which their lease ends.
    pub(super) lease: String,
    /// Sorted set: nodes by the moment since which they have been in unbroken contact.
    pub(super) since: String,
    /// Hash: node to what it says about itself.
    pub(super) nodes: String,
    /// Sorted set: nodes with nothing to do, by their last look.
    pub(super) idle: String,
    /// Channels, one per node: wakes.
    pub(super) channel: String,
    /// Channels, one per node that accepts them: jobs that a push puts into its hands.
    pub(super) jobs: String,
    /// Whether the last push of this process has found an idle node. Not a key, but known by queue as they are.
    pub(super) idlers: AtomicBool,
}

impl QueueKeys {
    pub(super) fn new(prefix: &str, queue: &str) -> Self {
        let key = |what: &str| format!("{prefix}:queue:{{{queue}}}:{what}");
        QueueKeys {
            queue: queue.into(),
            slot: slot(queue.as_bytes()),
            conf: key("conf"),
            job: key("job"),
            meta: key("meta"),
            errors: key("errors"),
            due: key("due"),
            ready: ["critical", "high", "normal", "low"].map(|priority| key(&format!("ready:{priority}"))),
            stale: key("stale"),
            held: key("held"),
            done: key("done"),
            dead: key("dead"),
            unique: key("unique"),
            gone: [key("gone:1"), key("gone:2")],
            lease: key("lease"),
            since: key("since"),
            nodes: key("nodes"),
            idle: key("idle"),
            channel: key("wake:"),
            jobs: key("job:"),
            idlers: AtomicBool::new(false),
        }
    }

    /// The channel on which a node is woken.
    pub(super) fn channel_of(&self, node: NodeId) -> String {
        format!("{}{node}", self.channel)
    }

    /// The channel on which a node is given jobs.
    pub(super) fn jobs_of(&self, node: NodeId) -> String {
        format!("{}{node}", self.jobs)
    }
}

/// The keys that belong to no queue.
#[derive(Debug)]
pub(super) struct HallKeys {
    pub(super) slot: u16,
    /// Set: the names of all queues.
    pub(super) queues: String,
    /// String: the format of everything under this prefix.
    pub(super) format: String,
    /// Hash: the last fence; how many slots a lock has; each hold.
    pub(super) locks: String,
    /// Sorted set: the places in the lines before all locks, in their order.
    pub(super) line: String,
    /// Hash: owner and lock to its place in the line.
    pub(super) places: String,
    /// Sorted set: nodes by the moment until which they count as there.
    pub(super) presence: String,
    /// Hash: node to what it says about itself.
    pub(super) guests: String,
    /// Hash: connection to the node that holds it.
    pub(super) connections: String,
    /// Channels, one per node, named after the key of presences: turns and messages.
    pub(super) channel: String,
    /// The channel of all nodes.
    pub(super) all: String,
}

impl HallKeys {
    pub(super) fn new(prefix: &str) -> Self {
        const TAG: &str = "duly";
        let key = |what: &str| format!("{prefix}:hall:{{{TAG}}}:{what}");
        HallKeys {
            slot: slot(TAG.as_bytes()),
            queues: key("queues"),
            format: key("format"),
            locks: key("locks"),
            line: key("line"),
            places: key("places"),
            presence: key("presence"),
            guests: key("guests"),
            connections: key("connections"),
            channel: key("presence:"),
            all: key("all"),
        }
    }

    /// The channel on which a node hears what is said to it alone.
    pub(super) fn channel_of(&self, node: NodeId) -> String {
        format!("{}{node}", self.channel)
    }
}

/// The slot of a hash tag: CRC16 (XMODEM) of it.
fn slot(tag: &[u8]) -> u16 {
    const POLYNOMIAL: u16 = 0x1021;
    let crc = tag.iter().fold(0u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| match crc & 0x8000 {
            0 => crc << 1,
            _ => (crc << 1) ^ POLYNOMIAL,
        })
    });
    crc % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_cluster_specification() {
        assert_eq!(slot(b"123456789"), 0x31C3);
        assert_eq!(slot(b"foo"), 12182);
    }

    #[test]
    fn every_key_of_a_queue_has_its_tag() {
        let keys = QueueKeys::new("app", "mail");
        assert_eq!(keys.job, "app:queue:{mail}:job");
        assert!(keys.channel_of(NodeId::from_bytes([0; 16])).starts_with("app:queue:{mail}:wake:0000"));
    }
}
