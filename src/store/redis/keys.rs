//! Every key, and who it belongs to.
//!
//! All keys of a queue carry its name as their hash tag: on a Cluster they live together, and a script can reach them all.
//! Nothing but this file spells a key.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64};

use crate::node::NodeId;

/// How many slots a Cluster has.
pub(crate) const SLOTS: u16 = 16_384;

/// The keys of one queue.
#[derive(Debug)]
pub(crate) struct QueueKeys {
    pub(crate) queue: Arc<str>,
    /// Where a Cluster keeps them.
    pub(crate) slot: u16,
    /// Hash: `paused`; `moving` (who moves it, who began, where to); the `note:` of each move into it; the last `fence`;
    /// which `half` of the gone ids is younger, and `since` when; whether any ticket is `stale`; the next `tick` of a cron rule; `sealed`, which a
    /// push writes that waits for replicas; how long done jobs are `kept`, at least and at most; how many `bytes` of args are
    /// unfinished, `limit_jobs` and `limit_bytes`; up to which minute the history is `rolled` into its totals, and `swept`;
    /// until when ends are `waited` for; a mark that grows when anything is put off (`put_offs`); and how many jobs each node holds.
    pub(crate) conf: String,
    /// Hash: id to record, written once.
    pub(crate) job: String,
    /// Hash: id to what has changed, for jobs in trouble only.
    pub(crate) meta: String,
    /// Hash: id and number to one failure.
    pub(crate) errors: String,
    /// Sorted set: tickets of scheduled jobs by due moment.
    pub(crate) due: String,
    /// Lists: tickets of ready jobs, most urgent priority first.
    pub(crate) ready: [String; 4],
    /// Set: tickets in the ready lists whose job has gone elsewhere.
    pub(crate) stale: String,
    /// Hash: id to node and fence, for running jobs.
    pub(crate) held: String,
    /// Sorted sets: ids of ended jobs by the moment until which they are kept.
    pub(crate) done: String,
    pub(crate) dead: String,
    /// Hash: unique key to the id of the unfinished job that has it.
    pub(crate) unique: String,
    /// Sets: ids of jobs that are gone; the two take turns.
    pub(crate) gone: [String; 2],
    /// Hash: name of a cron rule to the rule, with its ticks.
    pub(crate) cron: String,
    /// Sorted set: names of cron rules by the moment at which to look at them. The first of these is also in `conf`, as `tick`.
    pub(crate) ticks: String,
    /// Sorted set: nodes by the moment at which their lease ends.
    pub(crate) lease: String,
    /// Sorted set: nodes by the moment since which they have been in unbroken contact.
    pub(crate) since: String,
    /// Hash: node to what it says about itself.
    pub(crate) nodes: String,
    /// Sorted set: nodes with nothing to do, by their last look.
    pub(crate) idle: String,
    /// Hash: minute, or `total`, and place in a tally to how often.
    pub(crate) history: String,
    /// Where this process counts what happens: there, or at a key that ends in `-`, at which scripts write nothing.
    pub(crate) counted: String,
    /// Hash: id and a letter to what its attempts have said, and what it gave.
    pub(crate) notes: String,
    /// Hash: group to how many dead jobs are in it, since when, and what it is.
    pub(crate) groups: String,
    /// Sorted set, all scores 0: words by which scheduled and dead jobs are found, each with a moment and an id.
    pub(crate) find: String,
    /// Sorted set, all scores 0: hints at scheduled jobs that a node has put off because it does not know their kind.
    pub(crate) put_off: String,
    /// Channels: wakes, one per node, and `ended`.
    pub(crate) channel: String,
    /// Channels, one per node and kind that it accepts: jobs that a push puts into its hands.
    pub(crate) jobs: String,
    /// When a script last said that the queue has no limit, on the clock that never steps. Not a key either.
    pub(crate) unlimited: AtomicI64,
    /// The mark of the last put-off, as a script last said. Not a key either.
    pub(crate) put_offs: AtomicI64,
    /// Whether the last push of this process has found an idle node. Not a key, but known by queue as they are.
    pub(crate) idlers: AtomicBool,
}

impl QueueKeys {
    pub(crate) fn new(prefix: &str, queue: &str, history: bool) -> Self {
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
            cron: key("cron"),
            ticks: key("ticks"),
            lease: key("lease"),
            since: key("since"),
            nodes: key("nodes"),
            idle: key("idle"),
            history: key("history"),
            counted: key(if history { "history" } else { "history-" }),
            notes: key("notes"),
            groups: key("groups"),
            find: key("find"),
            put_off: key("put_off"),
            channel: key("wake:"),
            jobs: key("job:"),
            unlimited: AtomicI64::new(i64::MIN),
            put_offs: AtomicI64::new(0),
            idlers: AtomicBool::new(false),
        }
    }

    /// The channel on which jobs that have ended are told of, while somebody waits for any.
    pub(crate) fn ended(&self) -> String {
        format!("{}ended", self.channel)
    }

    /// The channel on which a node is woken.
    pub(crate) fn channel_of(&self, node: NodeId) -> String {
        format!("{}{node}", self.channel)
    }

    /// The channel on which a node is given jobs of any kind; with a kind behind it, that of this kind alone.
    pub(crate) fn jobs_of(&self, node: NodeId) -> String {
        format!("{}{node}:", self.jobs)
    }
}

/// The keys that belong to no queue.
#[derive(Debug)]
pub(crate) struct HallKeys {
    pub(crate) slot: u16,
    /// Set: the names of all queues.
    pub(crate) queues: String,
    /// String: the format of everything under this prefix.
    pub(crate) format: String,
    /// Hash: the last fence; how many slots a lock has; each hold.
    pub(crate) locks: String,
    /// Sorted set: the places in the lines before all locks, in their order.
    pub(crate) line: String,
    /// Hash: owner and lock to its place in the line.
    pub(crate) places: String,
    /// Sorted set: nodes by the moment until which they count as there.
    pub(crate) presence: String,
    /// Hash: node to what it says about itself.
    pub(crate) guests: String,
    /// Hash: connection to the node that holds it.
    pub(crate) connections: String,
    /// Channels, one per node, named after the key of presences: turns and messages.
    pub(crate) channel: String,
    /// The channel of all nodes.
    pub(crate) all: String,
    /// Hash: name of a token to what is known of it.
    pub(crate) tokens: String,
    /// List: who has changed what, the newest first.
    pub(crate) audit: String,
    /// Hash: hour and kind to what attempts came to; hour to how many kinds it has.
    pub(crate) kinds: String,
}

impl HallKeys {
    pub(crate) fn new(prefix: &str) -> Self {
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
            tokens: key("tokens"),
            audit: key("audit"),
            kinds: key("kinds"),
        }
    }

    /// The channel on which a node hears what is said to it alone.
    pub(crate) fn channel_of(&self, node: NodeId) -> String {
        format!("{}{node}", self.channel)
    }
}

/// The slot of a key: that of its hash tag, if it has one.
pub(crate) fn slot_of(key: &str) -> u16 {
    slot(tag_of(key).as_bytes())
}

/// What of a key says where a Cluster keeps it: what stands between its first brace and the next, if anything does.
pub(crate) fn tag_of(key: &str) -> &str {
    let inner = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    inner.filter(|tag| !tag.is_empty()).unwrap_or(key)
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
        let keys = QueueKeys::new("app", "mail", true);
        assert_eq!(keys.job, "app:queue:{mail}:job");
        assert!(keys.channel_of(NodeId::from_bytes([0; 16])).starts_with("app:queue:{mail}:wake:0000"));
    }
}
