//! All of Sidekiq's keys that duly uses, and duly's own keys for them.

use crate::clock::{Micros, from_micros};
use crate::node::{self, NodeId};
use crate::store::redis::{QueueKeys, key_set};

/// Sidekiq's keys. With the gem `redis-namespace` of Sidekiq 6 and older, each starts with the namespace.
pub(super) struct SidekiqKeys {
    namespace_prefix: String,
    /// Set: the names of all queues.
    pub(super) queues: String,
    /// Sorted sets: entries of all queues by due time, in seconds.
    pub(super) schedule: String,
    pub(super) retry: String,
    /// Sorted set: entries of all queues by the time they died, in seconds.
    pub(super) dead: String,
    /// Set: identities of the processes.
    pub(super) processes: String,
    processed: String,
    failed: String,
}

impl SidekiqKeys {
    pub(super) fn new(namespace: &str) -> Self {
        let prefix = if namespace.is_empty() { String::new() } else { format!("{namespace}:") };
        let key = |name: &str| format!("{prefix}{name}");
        SidekiqKeys {
            queues: key("queues"),
            schedule: key("schedule"),
            retry: key("retry"),
            dead: key("dead"),
            processes: key("processes"),
            processed: key("stat:processed"),
            failed: key("stat:failed"),
            namespace_prefix: prefix,
        }
    }

    /// Returns the key of a queue. List: ready entries, the oldest at its tail.
    pub(super) fn queue_key(&self, name: &str) -> String {
        format!("{}queue:{name}", self.namespace_prefix)
    }

    /// Returns the keys of the counters: processed in total and on this UTC day, failed in total and on this day.
    pub(super) fn stat_keys(&self, now: Micros) -> [String; 4] {
        let day = jiff::Timestamp::try_from(from_micros(now)).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
        let day = day.strftime("%Y-%m-%d");
        let (processed, failed) = (&self.processed, &self.failed);
        [processed.clone(), format!("{processed}:{day}"), failed.clone(), format!("{failed}:{day}")]
    }

    /// Returns the ACL rules for a user of the server: duly's `own`, plus Sidekiq's keys and the commands they need.
    pub(super) fn acl_rules(&self, own: &str) -> String {
        let host = node::host_name();
        let keys = ["queues", "queue:*", "schedule", "retry", "dead", "stat:*", "processes", &format!("{host}:*")]
            .map(|key| format!("~{}{key}", self.namespace_prefix));
        let commands = "+lindex +zscan +zremrangebyrank +incrby +expire +rpop +smembers +type";
        format!("{own} {} {commands}", keys.join(" "))
    }

    /// Returns the keys of a process: its record, its work under the new and the old name of the key, and its signals.
    pub(super) fn process_keys(&self, identity: &str) -> [String; 4] {
        ["", ":work", ":workers", "-signals"].map(|suffix| format!("{}{identity}{suffix}", self.namespace_prefix))
    }
}

/// Takes the place of the node in the key of the entries that a transfer has reserved.
const TRANSFER_HOLDER: &str = "transfer";

/// The script keys of one queue: Sidekiq's, and duly's own.
pub(super) struct EntryKeys<'k> {
    own: &'k QueueKeys,
    sidekiq: &'k SidekiqKeys,
    list: String,
    /// The hash with the entries that the script's node holds, or that a transfer has reserved.
    running: String,
    /// See [`SidekiqKeys::stat_keys`].
    counters: [String; 4],
    /// The keys that entries are moved from and to.
    source: &'k str,
    target: &'k str,
}

impl<'k> EntryKeys<'k> {
    pub(super) fn new(sidekiq: &'k SidekiqKeys, own: &'k QueueKeys) -> Self {
        let list = sidekiq.queue_key(&own.queue);
        EntryKeys { own, sidekiq, list, running: String::new(), counters: Default::default(), source: "", target: "" }
    }

    pub(super) fn held_by(self, node: NodeId) -> Self {
        EntryKeys { running: running_key(self.own, node), ..self }
    }

    /// Selects the entries that a transfer has reserved.
    pub(super) fn reserved(self) -> Self {
        EntryKeys { running: reserved_key(self.own), ..self }
    }

    pub(super) fn counted_at(self, now: Micros) -> Self {
        EntryKeys { counters: self.sidekiq.stat_keys(now), ..self }
    }

    pub(super) fn between(self, source: &'k str, target: &'k str) -> Self {
        EntryKeys { source, target, ..self }
    }
}

key_set! { EntryKeys<'_>, keys:
    "conf" => &keys.own.conf,
    "lease" => &keys.own.lease,
    "since" => &keys.own.since,
    "nodes" => &keys.own.nodes,
    "idle" => &keys.own.idle,
    "removed[1]" => &keys.own.removed[0],
    "removed[2]" => &keys.own.removed[1],
    "job" => &keys.own.job,
    "done" => &keys.own.done,
    "crashes" => crashes_key(keys.own),
    "running" => &keys.running,
    "reserved" => &keys.running,
    "queues" => &keys.sidekiq.queues,
    "list" => &keys.list,
    "schedule" => &keys.sidekiq.schedule,
    "retry" => &keys.sidekiq.retry,
    "dead" => &keys.sidekiq.dead,
    "processed" => &keys.counters[0],
    "processed_today" => &keys.counters[1],
    "failed" => &keys.counters[2],
    "failed_today" => &keys.counters[3],
    "source" => keys.source,
    "target" => keys.target,
}

/// The script keys for moving entries of a sorted set to the dead set.
pub(super) struct SetKeys<'k> {
    pub(super) source: &'k str,
    pub(super) dead: &'k str,
}

key_set! { SetKeys<'_>, keys: "source" => keys.source, "dead" => keys.dead }

/// The script keys of one process; `process` is from [`SidekiqKeys::process_keys`].
pub(super) struct ProcessKeys<'k> {
    pub(super) processes: &'k str,
    pub(super) process: [String; 4],
}

key_set! { ProcessKeys<'_>, keys:
    "processes" => keys.processes,
    "record" => &keys.process[0],
    "work" => &keys.process[1],
    "workers" => &keys.process[2],
    "signals" => &keys.process[3],
}

/// Returns duly's key for the entries that a node holds. Hash: fence and locator to the unchanged entry.
pub(super) fn running_key(keys: &QueueKeys, node: NodeId) -> String {
    running_key_of(keys, &node.to_string())
}

pub(super) fn running_key_of(keys: &QueueKeys, node: &str) -> String {
    format!("{}:{node}", keys.running)
}

/// Returns duly's key for the entries that a transfer has reserved. Hash: id and push time to the position, the score, the
/// number and the entry.
pub(super) fn reserved_key(keys: &QueueKeys) -> String {
    running_key_of(keys, TRANSFER_HOLDER)
}

/// Returns duly's key for crashes. Hash: digest of an entry to its [`CrashRecord`](super::entry::CrashRecord).
pub(super) fn crashes_key(keys: &QueueKeys) -> &String {
    &keys.meta
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compat::sidekiq::scripts;
    use crate::store::redis::acl_rules;

    #[test]
    fn acl_allows_every_script_command() {
        let rules = SidekiqKeys::new("").acl_rules(&acl_rules("duly"));
        let allowed: Vec<&str> = rules.split(' ').filter_map(|rule| rule.strip_prefix('+')).collect();
        for command in scripts::ALL.iter().flat_map(|script| script.commands()) {
            let is_command = |rule: &&str| rule.split('|').next() == Some(command.as_str());
            assert!(allowed.iter().any(is_command), "{command} is used but not allowed");
        }
    }

    #[test]
    fn stat_keys_contain_the_day() {
        let [total, day, ..] = SidekiqKeys::new("app").stat_keys(1_893_456_000_000_000);
        assert_eq!((total.as_str(), day.as_str()), ("app:stat:processed", "app:stat:processed:2030-01-01"));
    }
}
