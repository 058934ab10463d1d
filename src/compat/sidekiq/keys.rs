//! Every key of Sidekiq's that we touch, and what we keep beside them under keys of our own.

use crate::clock::{Micros, from_micros};
use crate::node::{self, NodeId};
use crate::store::redis::QueueKeys;

/// Sidekiq's keys. With a namespace, as the gem `redis-namespace` gave to Sidekiq 6 and older, each begins with it.
pub(super) struct Keys {
    before: String,
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

impl Keys {
    pub(super) fn new(namespace: &str) -> Self {
        let before = if namespace.is_empty() { String::new() } else { format!("{namespace}:") };
        let key = |name: &str| format!("{before}{name}");
        Keys {
            queues: key("queues"),
            schedule: key("schedule"),
            retry: key("retry"),
            dead: key("dead"),
            processes: key("processes"),
            processed: key("stat:processed"),
            failed: key("stat:failed"),
            before,
        }
    }

    /// List: entries that are ready, the oldest at its tail.
    pub(super) fn queue(&self, name: &str) -> String {
        format!("{}queue:{name}", self.before)
    }

    /// Counters: of all time and of the day in UTC, first of what was processed, then of what failed.
    pub(super) fn counters(&self, now: Micros) -> [String; 4] {
        let day = jiff::Timestamp::try_from(from_micros(now)).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
        let day = day.strftime("%Y-%m-%d");
        let (processed, failed) = (&self.processed, &self.failed);
        [processed.clone(), format!("{processed}:{day}"), failed.clone(), format!("{failed}:{day}")]
    }

    /// The rules for a user of the server: duly's own, with Sidekiq's keys and the commands that only they need.
    pub(super) fn rules(&self, own: &str) -> String {
        let host = node::host();
        let keys = ["queues", "queue:*", "schedule", "retry", "dead", "stat:*", "processes", &format!("{host}:*")]
            .map(|key| format!("~{}{key}", self.before));
        let commands = "+lindex +zscan +zremrangebyrank +incrby +expire +rpop +smembers +type";
        format!("{own} {} {commands}", keys.join(" "))
    }

    /// The record of a process, what it runs under both names that Sidekiq has had for it, and what it is told.
    pub(super) fn process(&self, identity: &str) -> [String; 4] {
        ["", ":work", ":workers", "-signals"].map(|what| format!("{}{identity}{what}", self.before))
    }
}

/// Ours. Hash: fence and number to the entry as it was in its queue, for all that a node holds.
pub(super) fn held(keys: &QueueKeys, node: NodeId) -> String {
    held_by(keys, &node.to_string())
}

pub(super) fn held_by(keys: &QueueKeys, node: &str) -> String {
    format!("{}:{node}", keys.held)
}

/// Ours. Hash: digest of an entry to how often a node died while it held it, when last, and which.
pub(super) fn crashes(keys: &QueueKeys) -> &String {
    &keys.meta
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compat::sidekiq::scripts;
    use crate::store::redis::acl_rules;

    #[test]
    fn every_command_of_a_script_is_allowed() {
        let rules = Keys::new("").rules(&acl_rules("duly"));
        let allowed: Vec<&str> = rules.split(' ').filter_map(|rule| rule.strip_prefix('+')).collect();
        for command in scripts::ALL.iter().flat_map(|script| script.commands()) {
            let known = |known: &&str| known.split('|').next() == Some(command.as_str());
            assert!(allowed.iter().any(known), "{command} is used and not allowed");
        }
    }

    #[test]
    fn counters_go_by_the_day() {
        let [all, day, ..] = Keys::new("app").counters(1_893_456_000_000_000);
        assert_eq!((all.as_str(), day.as_str()), ("app:stat:processed", "app:stat:processed:2030-01-01"));
    }
}
