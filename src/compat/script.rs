//! The scripts on keys of other systems, assembled like those of the Redis store.

use std::sync::LazyLock;

use crate::compat::actionhero::LockKeys;
use crate::compat::redis_in_action::{DelayedKeys, ItemKeys};
use crate::compat::schedule::ScheduleKeys;
use crate::store::redis::{Script, parts, scripts};

/// Parts in addition to those of the Redis store.
const PARTS: &[(&str, &str)] =
    parts!["check_item_list", "item_leases", "pad_ttl", "read_foreign_lock", "shorten_item_leases"];

scripts! { PARTS;
    LockKeys<'static> {
        ACTIONHERO_LOCK "actionhero/lock"
        ACTIONHERO_CONFIRM_LOCK "actionhero/confirm_lock"
        ACTIONHERO_EXTEND_LOCKS "actionhero/extend_locks"
        ACTIONHERO_UNLOCK "actionhero/unlock"
        ACTIONHERO_BREAK_LOCK "actionhero/break_lock"
        ACTIONHERO_ANNOUNCE "actionhero/announce"
        ACTIONHERO_LOCKS "actionhero/locks"
    }
    ItemKeys<'static> {
        RIA_PUSH "redis_in_action/push"
        RIA_PEEK_ITEMS "redis_in_action/peek_items"
        RIA_TAKE_ITEMS "redis_in_action/take_items"
        RIA_BURY_MALFORMED "redis_in_action/bury_malformed"
        RIA_RESCHEDULE "redis_in_action/reschedule"
    }
    DelayedKeys<'static> {
        RIA_MOVE_DUE "redis_in_action/move_due"
        RIA_HAS_WORK "redis_in_action/has_work"
    }
    ScheduleKeys {
        SCHEDULE_ENQUEUE "schedule/enqueue"
        SCHEDULE_REMOVE "schedule/remove"
        SCHEDULE_TAKE_DUE "schedule/take_due"
        SCHEDULE_SETTLE "schedule/settle"
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
