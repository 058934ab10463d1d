//! The scripts: one per step of the contract, put together from their parts, known to the server by their digest.

use std::sync::LazyLock;

/// A script and the digest under which a server keeps it.
#[derive(Debug)]
pub(super) struct Script {
    #[cfg(test)]
    name: &'static str,
    pub(super) code: String,
    pub(super) sha: String,
}

/// A part that several scripts include.
const PARTS: &[(&str, &str)] = &[
    ("now", include_str!("lua/part/now.lua")),
    ("text", include_str!("lua/part/text.lua")),
    ("wake", include_str!("lua/part/wake.lua")),
    ("closed", include_str!("lua/part/closed.lua")),
    ("gone", include_str!("lua/part/gone.lua")),
    ("read", include_str!("lua/part/read.lua")),
    ("ticket", include_str!("lua/part/ticket.lua")),
    ("history", include_str!("lua/part/history.lua")),
    ("erase", include_str!("lua/part/erase.lua")),
    ("spread", include_str!("lua/part/spread.lua")),
    ("batch", include_str!("lua/part/batch.lua")),
    ("known", include_str!("lua/part/known.lua")),
    ("put", include_str!("lua/part/put.lua")),
    ("take", include_str!("lua/part/take.lua")),
    ("hold", include_str!("lua/part/hold.lua")),
    ("holds", include_str!("lua/part/holds.lua")),
    ("others", include_str!("lua/part/others.lua")),
    ("crash", include_str!("lua/part/crash.lua")),
    ("dismiss", include_str!("lua/part/dismiss.lua")),
    ("arrive", include_str!("lua/part/arrive.lua")),
    ("sweep", include_str!("lua/part/sweep.lua")),
    ("alive", include_str!("lua/part/alive.lua")),
    ("line", include_str!("lua/part/line.lua")),
    ("stand", include_str!("lua/part/stand.lua")),
    ("tell", include_str!("lua/part/tell.lua")),
    ("contend", include_str!("lua/part/contend.lua")),
];

macro_rules! scripts {
    ($($constant:ident $name:literal)*) => {
        $(pub(super) static $constant: LazyLock<Script> =
            LazyLock::new(|| Script::assemble($name, include_str!(concat!("lua/", $name, ".lua"))));)*

        /// All of them.
        #[cfg(test)]
        pub(super) static ALL: &[&LazyLock<Script>] = &[$(&$constant),*];
    };
}

scripts! {
    REGISTER "register"
    PUSH "push"
    PUSH_CHECKED "push_checked"
    HAND "hand"
    CLAIM "claim"
    STEP_BACK "step_back"
    TAKE_BACK "take_back"
    HOLDING "holding"
    SETTLE "settle"
    GET "get"
    PAGE "page"
    COUNTS "counts"
    REMOVE "remove"
    RESCHEDULE "reschedule"
    PAUSE "pause"
    PRUNE "prune"
    SET_MOVING "set_moving"
    MOVE_IN "move_in"
    MOVE_OUT "move_out"
    BEAT "beat"
    LEAVE "leave"
    NODES "nodes"
    LOCK "lock"
    EXTEND_LOCKS "extend_locks"
    UNLOCK "unlock"
    LOCKS "locks"
    WAITING "waiting"
    BREAK_LOCK "break_lock"
    ATTEND "attend"
    DEPART "depart"
    CLEAR "clear"
    GUESTS "guests"
    SET_CONNECTIONS "set_connections"
    CONNECTION "connection"
}

impl Script {
    /// Whether it changes nothing.
    pub(super) fn only_reads(&self) -> bool {
        self.code.starts_with("#!lua flags=no-writes")
    }

    /// Puts each part in the place of the line that names it.
    fn assemble(_name: &'static str, body: &str) -> Self {
        let mut code = String::new();
        for line in body.lines() {
            match line.strip_prefix("-- include ") {
                Some(names) => names.split(", ").for_each(|name| code.push_str(part(name))),
                None => {
                    code.push_str(line);
                    code.push('\n');
                }
            }
        }
        let sha = redis::Script::new(&code).get_hash().to_owned();
        Script {
            #[cfg(test)]
            name: _name,
            code,
            sha,
        }
    }
}

fn part(name: &str) -> &'static str {
    PARTS.iter().find(|(known, _)| *known == name).map_or("error('no such part')\n", |(_, code)| code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_is_whole() {
        for script in ALL {
            assert!(script.code.starts_with("#!lua"), "{} says how it is to be run", script.name);
            assert!(!script.code.contains("no such part"), "{} finds its parts", script.name);
            assert!(!script.code.contains("-- include"), "{} includes nothing in a part", script.name);
        }
    }

    #[test]
    fn scripts_look_as_far_as_the_contract_says() {
        use crate::store::{LINE_LOOK_MAX, LOCK_SLOTS_MAX};
        assert!(part("line").contains(&format!("local LOOK = {LINE_LOOK_MAX}\n")));
        assert!(part("stand").contains(&format!("local SLOTS = {LOCK_SLOTS_MAX}\n")));
    }
}
