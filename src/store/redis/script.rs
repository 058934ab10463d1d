//! The scripts of the store: one or a few per method of the contract. A server knows a script by its digest.

use std::sync::LazyLock;

use redis::Cmd;

use super::assemble::assemble;
use super::keys::{PeerKeys, QueueKeys};

/// Keys that scripts can name. [`key_set`] implements it.
pub(crate) trait KeySet {
    /// The names as headers spell them; of a list one for each key, from `ready[1]` on.
    const NAMES: &'static [&'static str];

    /// Calls this with all keys, in the order of their names.
    fn with_keys<R>(&self, call: impl FnOnce(&[&str]) -> R) -> R;
}

/// The names of the keys of a type, and which key each name is.
macro_rules! key_set {
    ($set:ty, $keys:ident: $($name:literal => $key:expr),* $(,)?) => {
        impl $crate::store::redis::KeySet for $set {
            const NAMES: &'static [&'static str] = &[$($name),*];

            fn with_keys<R>(&self, call: impl FnOnce(&[&str]) -> R) -> R {
                let $keys = self;
                call(&[$($key),*])
            }
        }
    };
}
pub(crate) use key_set;

/// A script and the digest under which a server keeps it.
#[derive(Debug)]
pub(crate) struct Script {
    #[cfg(test)]
    name: &'static str,
    pub(super) code: String,
    pub(super) sha: String,
    /// Its keys in their order, each as its position among the names of its set.
    keys: Vec<usize>,
    /// The names of its set.
    set: &'static [&'static str],
    #[cfg(test)]
    problem: Option<String>,
}

/// Parts by name, from the directory `lua/lib` next to the file that lists them.
macro_rules! parts {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("lua/lib/", $name, ".lua")))),*]
    };
}
#[cfg(feature = "compat")]
pub(crate) use parts;

const PARTS: &[(&str, &str)] = parts![
    "acquire_contended",
    "add_run",
    "add_waiter",
    "adopt_deferred",
    "cancelled_limits",
    "check_capacity",
    "check_format",
    "choose_removed",
    "complete_ticket",
    "count_crash",
    "count_event",
    "count_held",
    "count_outcomes",
    "deferred_hints",
    "deliver_to_first_idle",
    "drop_progress",
    "drop_replaced",
    "drop_runs",
    "end_cancelled",
    "ensure_lease",
    "erase_job",
    "find_alive",
    "find_changeable",
    "find_deferred",
    "find_known",
    "find_oldest_ready",
    "fingerprint_queue",
    "forget_node",
    "group_counts",
    "history_minutes",
    "hour_history",
    "increment_field",
    "index_members",
    "index_terms",
    "insert_cancelled",
    "insert_dead",
    "insert_job",
    "insert_later",
    "insert_ready",
    "insert_scheduled",
    "is_closed",
    "keep_ack",
    "kind_intervals",
    "list_cancelled",
    "list_waiters",
    "log_limits",
    "make_tickets",
    "merge_counters",
    "note_cancelled",
    "notify_waiter",
    "parse_int",
    "promote_due",
    "prune_history",
    "publish_completed",
    "push_tick_job",
    "push_tickets",
    "read_cancel_keep",
    "read_lock",
    "read_records",
    "read_state",
    "read_time",
    "record_fields",
    "release_jobs",
    "remove_dead",
    "remove_waiting",
    "repair_meta",
    "return_surplus",
    "rotate_removed",
    "run_limits",
    "set_checkpoint",
    "set_next_tick",
    "settle_cancelled",
    "settle_one",
    "shorten_hold",
    "shorten_leases",
    "split_by_holder",
    "store_result",
    "subtract_held",
    "subtract_lost",
    "sum_history",
    "sweep_stale",
    "take_tickets",
    "to_digits",
    "wake_node",
    "widen_retention",
];

/// Scripts of the directory `lua` next to the file that lists them, by the keys that they name. They include these parts, and
/// those of the Redis store.
macro_rules! scripts {
    ($parts:expr; $($set:ty { $($constant:ident $name:literal)* })*) => {
        $($(pub(super) static $constant: LazyLock<Script> = LazyLock::new(|| {
            let names = <$set as $crate::store::redis::KeySet>::NAMES;
            Script::assemble($name, include_str!(concat!("lua/", $name, ".lua")), $parts, names)
        });)*)*

        /// All of them.
        #[cfg(test)]
        pub(super) static ALL: &[&LazyLock<Script>] = &[$($(&$constant),*),*];
    };
}
#[cfg(feature = "compat")]
pub(crate) use scripts;

scripts! { &[];
    QueueKeys {
        CLAIM "jobs/claim"
        COUNTS "jobs/counts"
        DELIVER_TO_IDLE "jobs/deliver_to_idle"
        EDIT "jobs/edit"
        GET "jobs/get"
        LEAVE_IDLE "jobs/leave_idle"
        LIST "jobs/list"
        LIST_BY_INDEX "jobs/list_by_index"
        LIST_HELD "jobs/list_held"
        MARK_WRITE "jobs/mark_write"
        PRUNE "jobs/prune"
        PUSH "jobs/push"
        PUSH_CHECKED "jobs/push_checked"
        RECORD_PROGRESS "jobs/record_progress"
        REMOVE "jobs/remove"
        CANCEL "jobs/cancel"
        REMOVE_QUEUE "jobs/remove_queue"
        RESCHEDULE "jobs/reschedule"
        SET_ALONE "jobs/set_alone"
        SET_CAPACITY "jobs/set_capacity"
        SET_PAUSED "jobs/set_paused"
        SETTLE "jobs/settle"
        SETTLE_OTHERS "jobs/settle_others"
        TAKE_BACK "jobs/take_back"
        HEARTBEAT "nodes/heartbeat"
        LEAVE "nodes/leave"
        NODES "nodes/nodes"
        CRONS "cron/crons"
        CONFIRM_TICKS "cron/confirm_ticks"
        DUE_CRONS "cron/due_crons"
        FIRE_CRONS "cron/fire_crons"
        PUT_CRON "cron/put_cron"
        REMOVE_CRON "cron/remove_cron"
        REPAIR_TICK "cron/repair_tick"
        SET_TRANSFER_MARK "transfer/set_transfer_mark"
        TRANSFER_IN "transfer/transfer_in"
        TRANSFER_OUT "transfer/transfer_out"
        DEAD_GROUPS "jobs/dead_groups"
        HISTORY "stats/history"
        HISTORY_HOURS "stats/history_hours"
        QUEUE_TOTALS "stats/queue_totals"
        INSPECT_JOB "maintenance/inspect_job"
        MEASURE_COUNTS "maintenance/measure_counts"
        REPAIR_COUNTS "maintenance/repair_counts"
        REPAIR_JOB "maintenance/repair_job"
        VERIFY_HELD "maintenance/verify_held"
        COMPLETED_AMONG "jobs/completed_among"
        WATCH_COMPLETIONS "peers/watch_completions"
    }
    PeerKeys {
        REGISTER_QUEUES "jobs/register_queues"
        ADD_KIND_STATS "stats/add_kind_stats"
        KIND_STATS "stats/kind_stats"
        ANNOUNCE "peers/announce"
        CLEAR_DEAD "peers/clear_dead"
        CONNECTION_HOLDER "peers/connection_holder"
        FIND_PEERS "peers/find_peers"
        REFRESH_CONNECTIONS "peers/refresh_connections"
        SET_CONNECTIONS "peers/set_connections"
        WITHDRAW "peers/withdraw"
        BREAK_LOCK "locks/break_lock"
        COUNT_WAITERS "locks/count_waiters"
        EXTEND_LOCKS "locks/extend_locks"
        LOCK "locks/lock"
        LOCKS "locks/locks"
        UNLOCK "locks/unlock"
        ADD_AUDIT_ENTRY "access/add_audit_entry"
        ADD_TOKEN "access/add_token"
        AUDIT_ENTRIES "access/audit_entries"
        REMOVE_TOKEN "access/remove_token"
        TOKENS "access/tokens"
    }
}

impl Script {
    /// Whether it changes nothing.
    pub(super) fn only_reads(&self) -> bool {
        self.code.starts_with("#!lua flags=no-writes")
    }

    /// Assembles a script of these parts and of those that all scripts share; it finds its keys among these names.
    pub(crate) fn assemble(
        _name: &'static str,
        body: &str,
        parts: &[(&str, &'static str)],
        set: &'static [&'static str],
    ) -> Self {
        let part = |name: &str| parts.iter().chain(PARTS).find(|(known, _)| *known == name).map(|(_, text)| *text);
        let assembled = assemble(body, part).and_then(|script| {
            let position = |key: &String| {
                set.iter().position(|name| name == key).ok_or_else(|| format!("its key set has no key {key}"))
            };
            Ok((script.keys.iter().map(position).collect::<Result<Vec<_>, _>>()?, script.code))
        });
        // A unit test fails on such a script; a server replies with the problem.
        let refuse = |why: &String| (Vec::new(), format!("#!lua\nreturn redis.error_reply([[ERR {why}]])\n"));
        let (keys, code) = assembled.as_ref().map_or_else(refuse, Clone::clone);
        let sha = sha1(&code);
        Script {
            #[cfg(test)]
            name: _name,
            code,
            sha,
            keys,
            set,
            #[cfg(test)]
            problem: assembled.err(),
        }
    }

    /// The command that runs it on these keys; arguments follow.
    pub(crate) fn call<K: KeySet>(&self, keys: &K) -> Cmd {
        self.call_with(keys, &[])
    }

    /// The same for a script whose last name stands for all other keys.
    pub(crate) fn call_with<K: KeySet>(&self, keys: &K, others: &[String]) -> Cmd {
        debug_assert_eq!(self.set, K::NAMES, "the script names keys of another set");
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(&self.sha).arg(self.keys.len() + others.len());
        keys.with_keys(|all| self.keys.iter().for_each(|at| _ = cmd.arg(all[*at])));
        cmd.arg(others);
        cmd
    }
}

#[cfg(test)]
impl Script {
    pub(crate) fn check_whole(&self) {
        assert_eq!(self.problem, None, "{}", self.name);
        assert!(self.code.starts_with("#!lua"), "{} has no flags", self.name);
        let is_of_queue = self.keys.iter().any(|at| self.set[*at] == "conf") && self.set.contains(&"removed[1]");
        assert!(!is_of_queue || self.code.contains("'FORMAT '"), "{} accepts a queue of any format", self.name);
    }

    /// The commands that it names where it calls one.
    pub(crate) fn commands(&self) -> std::collections::BTreeSet<String> {
        let mut used = std::collections::BTreeSet::new();
        for call in ["redis.call('", "redis.pcall('"] {
            let named = self.code.split(call).skip(1).filter_map(|part| part.split('\'').next());
            used.extend(named.map(str::to_lowercase));
        }
        // Chosen by a condition.
        for part in self.code.split("redis.call(reverse and '").skip(1) {
            used.extend(part.split('\'').step_by(2).take(2).map(str::to_lowercase));
        }
        used
    }
}

/// The digest by which servers know a script, and that scripts can make of any text.
pub(crate) fn sha1(text: &str) -> String {
    redis::Script::new(text).get_hash().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_is_whole() {
        ALL.iter().for_each(|script| script.check_whole());
    }

    #[test]
    fn every_script_of_a_queue_checks_its_format() {
        let of_queues = ALL.iter().filter(|script| script.set == QueueKeys::NAMES);
        let unchecked: Vec<_> = of_queues.filter(|script| !script.code.contains("'FORMAT '")).map(|s| s.name).collect();
        assert!(unchecked.is_empty(), "{unchecked:?}");
    }

    #[test]
    fn scripts_look_as_far_as_the_contract_says() {
        use crate::store::{CANCELLED_JOBS_MAX, DEAD_GROUPS_MAX, LOG_LINES_MAX, STAT_NUMBERS};
        use crate::store::{
            DEFERRED_HINTS_MAX, DEFERRED_HINTS_PER_CLAIM_MAX, LOCK_SLOTS_MAX, LOCK_WAITERS_CHECKED_MAX,
        };
        use crate::store::{HISTORY_HOURS_MAX, HISTORY_MINUTES_MAX};
        let has = |name: &str, line: String| {
            let part = PARTS.iter().find(|(known, _)| *known == name).map_or("", |(_, text)| text);
            assert!(part.contains(&line), "{name} has no line {line:?}");
        };
        has("cancelled_limits", format!("local CANCELLED_MAX = {CANCELLED_JOBS_MAX}\n"));
        has("log_limits", format!("local LOG_LINES_MAX = {LOG_LINES_MAX}\n"));
        has("group_counts", format!("local GROUPS_MAX = {DEAD_GROUPS_MAX}\n"));
        has("prune_history", format!("local DAY, COUNTERS, STEP = {HISTORY_MINUTES_MAX}, {STAT_NUMBERS}, 10\n"));
        has("sum_history", format!("local AFTER, MINUTES, COUNTERS = 2, 60, {STAT_NUMBERS}\n"));
        has("hour_history", format!("local HOURS = {HISTORY_HOURS_MAX}\n"));
        assert!(
            HISTORY.code.contains(&format!("for counter = 0, {} do", STAT_NUMBERS - 1)),
            "history reads all counters"
        );
        has("deferred_hints", format!("local HINTS_MAX, WAKES_MAX = {DEFERRED_HINTS_MAX}, 16\n"));
        has("find_deferred", format!("local SCAN_MAX = {DEFERRED_HINTS_PER_CLAIM_MAX}\n"));
        has("list_waiters", format!("local WAITERS_SCAN_MAX = {LOCK_WAITERS_CHECKED_MAX}\n"));
        has("read_lock", format!("local SLOTS_MAX = {LOCK_SLOTS_MAX}\n"));
    }
}
