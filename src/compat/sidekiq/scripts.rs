//! The scripts on Sidekiq's keys, put together from the parts of the Redis store and a few of their own.

use std::sync::LazyLock;

use crate::store::redis::{Script, scripts};

const PARTS: &[(&str, &str)] = &[
    ("score", include_str!("lua/part/score.lua")),
    ("mixed", include_str!("lua/part/mixed.lua")),
    ("sound", include_str!("lua/part/sound.lua")),
    ("bury", include_str!("lua/part/bury.lua")),
    ("chunks", include_str!("lua/part/chunks.lua")),
    ("pick", include_str!("lua/part/pick.lua")),
    ("count", include_str!("lua/part/count.lua")),
    ("outcomes", include_str!("lua/part/outcomes.lua")),
];

scripts! { PARTS;
    PUSH "push"
    CLAIM "claim"
    STEP_BACK "step_back"
    TAKE_BACK "take_back"
    PROMOTE "promote"
    DISCARD "discard"
    SETTLE "settle"
    SHIFT "shift"
    MOVE_IN "move_in"
    COUNTS "counts"
    PRUNE "prune"
    PROCESS "process"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_is_whole() {
        ALL.iter().for_each(|script| script.check_whole());
    }
}
