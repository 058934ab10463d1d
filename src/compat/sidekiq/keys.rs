//! Every key of Sidekiq's that we touch, and what we keep beside them under keys of our own.

use crate::clock::{Micros, from_micros};
use crate::node::{self, NodeId};
use crate::store::redis::{QueueKeys, key_set};

/// Sidekiq's keys. With a namespace, as the gem `redis-namespace` gave to Sidekiq 6 and older, each begins with it.
pub(super) struct SidekiqKeys {
    namespace_prefix: String,
    /// Set: the names of all queues.
    pub(super) queues: String,
    /// Sorted sets: entries of all queues by their due moment, in seconds.
    pub(super) schedule: String,
    pub(super) retry: String,
    /// Sorted set: entries of all queues by the moment they were given up, in seconds.
    pub(super) dead: String,
    /// Set: who works.
    pub(super) processes: String,
    processed: String,
    failed: String,
}

impl SidekiqKeys {
    pub(super) fn new(namespace: &str) -> Self {
        let before = if namespace.is_empty() { String::new() } else { format!("{namespace}:") };
        let key = |name: &str| format!("{before}{name}");
        SidekiqKeys {
            queues: key("queues"),
            schedule: key("schedule"),
            retry: key("retry"),
            dead: key("dead"),
            processes: key("processes"),
            processed: key("stat:processed"),
            failed: key("stat:failed"),
            namespace_prefix: before,
        }
    }

    /// List: entries that are ready, the oldest at its tail.
    pub(super) fn queue_key(&self, name: &str) -> String {
        format!("{}queue:{name}", self.namespace_prefix)
    }

    /// Counters: of all time and of the day in UTC, first of what was processed, then of what failed.
    pub(super) fn stat_keys(&self, now: Micros) -> [String; 4] {
        let day = jiff::Timestamp::try_from(from_micros(now)).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
        let day = day.strftime("%Y-%m-%d");
        let (processed, failed) = (&self.processed, &self.failed);
        [processed.clone(), format!("{processed}:{day}"), failed.clone(), format!("{failed}:{day}")]
    }

    /// The rules for a user of the server: duly's own, with Sidekiq's keys and the commands that only they need.
    pub(super) fn acl_rules(&self, own: &str) -> String {
        let host = node::host_name();
        let keys = ["queues", "queue:*", "schedule", "retry", "dead", "stat:*", "processes", &format!("{host}:*")]
            .map(|key| format!("~{}{key}", self.namespace_prefix));
        let commands = "+lindex +zscan +zremrangebyrank +incrby +expire +rpop +smembers +type";
        format!("{own} {} {commands}", keys.join(" "))
    }

    /// The record of a process, what it runs under both names that Sidekiq has had for it, and what it is told.
    pub(super) fn process_keys(&self, identity: &str) -> [String; 4] {
        ["", ":work", ":workers", "-signals"].map(|what| format!("{}{identity}{what}", self.namespace_prefix))
    }
}

/// The keys of one queue that scripts name: Sidekiq's, and duly's next to them.
pub(super) struct EntryKeys<'k> {
    own: &'k QueueKeys,
    sidekiq: &'k SidekiqKeys,
    list: String,
    /// The hash of the node that the script is about.
    held: String,
    /// See [`Keys::counters`].
    counters: [String; 4],
    /// Where entries are taken from, and where they go.
    source: &'k str,
    target: &'k str,
}

impl<'k> EntryKeys<'k> {
    pub(super) fn new(sidekiq: &'k SidekiqKeys, own: &'k QueueKeys) -> Self {
        let list = sidekiq.queue_key(&own.queue);
        EntryKeys { own, sidekiq, list, held: String::new(), counters: Default::default(), source: "", target: "" }
    }

    pub(super) fn held_by(self, node: NodeId) -> Self {
        EntryKeys { held: held_key(self.own, node), ..self }
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
    "gone[1]" => &keys.own.gone[0],
    "gone[2]" => &keys.own.gone[1],
    "job" => &keys.own.job,
    "done" => &keys.own.done,
    "crashes" => crashes_key(keys.own),
    "held" => &keys.held,
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

/// A sorted set of Sidekiq's from which entries go to the dead.
pub(super) struct SetKeys<'k> {
    pub(super) source: &'k str,
    pub(super) dead: &'k str,
}

key_set! { SetKeys<'_>, keys: "source" => keys.source, "dead" => keys.dead }

/// The keys of one process in Sidekiq's list of them; the last four are those of [`Keys::process`].
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

/// Ours. Hash: fence and number to the entry as it was in its queue, for all that a node holds.
pub(super) fn held_key(keys: &QueueKeys, node: NodeId) -> String {
    held_key_of(keys, &node.to_string())
}

pub(super) fn held_key_of(keys: &QueueKeys, node: &str) -> String {
    format!("{}:{node}", keys.held)
}

/// Ours. Hash: digest of an entry to how often a node died while it held it, when last, and which.
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
            let known = |known: &&str| known.split('|').next() == Some(command.as_str());
            assert!(allowed.iter().any(known), "{command} is used and not allowed");
        }
    }

    #[test]
    fn stat_keys_contain_the_day() {
        let [all, day, ..] = SidekiqKeys::new("app").stat_keys(1_893_456_000_000_000);
        assert_eq!((all.as_str(), day.as_str()), ("app:stat:processed", "app:stat:processed:2030-01-01"));
    }
}
