//! The scripts on keys of others, put together from their parts as duly's own are.

use std::sync::LazyLock;

use crate::store::redis::{Script, scripts};

/// Parts beside those of duly's own scripts.
const PARTS: &[(&str, &str)] = &[
    ("standing", include_str!("lua/part/standing.lua")),
    ("watched", include_str!("lua/part/watched.lua")),
    ("schedule", include_str!("lua/part/schedule.lua")),
    ("mixed", include_str!("lua/part/mixed.lua")),
];

scripts! { PARTS;
    ACTIONHERO_LOCK "actionhero_lock"
    ACTIONHERO_CONFIRM "actionhero_confirm"
    ACTIONHERO_EXTEND "actionhero_extend"
    ACTIONHERO_UNLOCK "actionhero_unlock"
    ACTIONHERO_BREAK "actionhero_break"
    ACTIONHERO_TURNS "actionhero_turns"
    ACTIONHERO_LOCKS "actionhero_locks"
    RIA_PUSH "redis_in_action_push"
    RIA_LOOK "redis_in_action_look"
    RIA_MOVE "redis_in_action_move"
    RIA_TAKE "redis_in_action_take"
    RIA_BURY "redis_in_action_bury"
    RIA_RESCHEDULE "redis_in_action_reschedule"
    RIA_ANY "redis_in_action_any"
    SCHEDULE_PUT "schedule_put"
    SCHEDULE_REMOVE "schedule_remove"
    SCHEDULE_TAKE "schedule_take"
    SCHEDULE_SETTLE "schedule_settle"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_is_whole() {
        ALL.iter().for_each(|script| script.check_whole());
    }
}
