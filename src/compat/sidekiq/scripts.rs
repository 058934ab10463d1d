//! The scripts on Sidekiq's keys, assembled like those of the Redis store.

use std::sync::LazyLock;

use super::keys::{EntryKeys, ProcessKeys, SetKeys};
use crate::store::redis::{Script, parts, scripts};

/// Parts in addition to those of the Redis store.
const PARTS: &[(&str, &str)] = parts![
    "apply_outcome",
    "bury_entry",
    "call_in_chunks",
    "check_entry_list",
    "count_processed",
    "match_kind",
    "pick_score",
    "require_sorted_set",
    "take_entries",
];

scripts! { PARTS;
    EntryKeys<'static> {
        PUSH "push"
        CLAIM "claim"
        LEAVE_IDLE "leave_idle"
        TAKE_BACK "take_back"
        SET_ALONE "set_alone"
        PROMOTE "promote"
        SETTLE "settle"
        MOVE_ENTRIES "move_entries"
        TRANSFER_IN "transfer_in"
        TRANSFER_RESERVE "transfer_reserve"
        TRANSFER_OUT "transfer_out"
        COUNTS "counts"
        PRUNE "prune"
    }
    SetKeys<'static> {
        BURY_UNREADABLE "bury_unreadable"
    }
    ProcessKeys<'static> {
        ANNOUNCE_PROCESS "announce_process"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_is_whole() {
        ALL.iter().for_each(|script| script.check_whole());
    }
}
