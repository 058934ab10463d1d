//! The scripts: one per step of the contract, put together from their parts, known to the server by their digest.

use std::sync::LazyLock;

/// A script and the digest under which a server keeps it.
#[derive(Debug)]
pub(crate) struct Script {
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
    ("words", include_str!("lua/part/words.lua")),
    ("find", include_str!("lua/part/find.lua")),
    ("unseat", include_str!("lua/part/unseat.lua")),
    ("unbury", include_str!("lua/part/unbury.lua")),
    ("put_off", include_str!("lua/part/put_off.lua")),
    ("hints", include_str!("lua/part/hints.lua")),
    ("pick_up", include_str!("lua/part/pick_up.lua")),
    ("promote", include_str!("lua/part/promote.lua")),
    ("kept", include_str!("lua/part/kept.lua")),
    ("mark", include_str!("lua/part/mark.lua")),
    ("filled", include_str!("lua/part/filled.lua")),
    ("spread", include_str!("lua/part/spread.lua")),
    ("batch", include_str!("lua/part/batch.lua")),
    ("known", include_str!("lua/part/known.lua")),
    ("put", include_str!("lua/part/put.lua")),
    ("put_later", include_str!("lua/part/put_later.lua")),
    ("take", include_str!("lua/part/take.lua")),
    ("taker", include_str!("lua/part/taker.lua")),
    ("bodies", include_str!("lua/part/bodies.lua")),
    ("held_so", include_str!("lua/part/held_so.lua")),
    ("hold", include_str!("lua/part/hold.lua")),
    ("ended", include_str!("lua/part/ended.lua")),
    ("whole", include_str!("lua/part/whole.lua")),
    ("holds", include_str!("lua/part/holds.lua")),
    ("add", include_str!("lua/part/add.lua")),
    ("tally", include_str!("lua/part/tally.lua")),
    ("counted", include_str!("lua/part/counted.lua")),
    ("notes", include_str!("lua/part/notes.lua")),
    ("group", include_str!("lua/part/group.lua")),
    ("keep_meta", include_str!("lua/part/keep_meta.lua")),
    ("limit", include_str!("lua/part/limit.lua")),
    ("roll", include_str!("lua/part/roll.lua")),
    ("oldest", include_str!("lua/part/oldest.lua")),
    ("past", include_str!("lua/part/past.lua")),
    ("replace", include_str!("lua/part/replace.lua")),
    ("other", include_str!("lua/part/other.lua")),
    ("crash", include_str!("lua/part/crash.lua")),
    ("dismiss", include_str!("lua/part/dismiss.lua")),
    ("arrive", include_str!("lua/part/arrive.lua")),
    ("sweep", include_str!("lua/part/sweep.lua")),
    ("alive", include_str!("lua/part/alive.lua")),
    ("line", include_str!("lua/part/line.lua")),
    ("stand", include_str!("lua/part/stand.lua")),
    ("tell", include_str!("lua/part/tell.lua")),
    ("tick", include_str!("lua/part/tick.lua")),
    ("tick_job", include_str!("lua/part/tick_job.lua")),
    ("contend", include_str!("lua/part/contend.lua")),
];

/// Scripts of the directory `lua` beside whoever names them, put together from parts of theirs and from ours.
macro_rules! scripts {
    ($parts:expr; $($constant:ident $name:literal)*) => {
        $(pub(super) static $constant: LazyLock<Script> =
            LazyLock::new(|| Script::assemble($name, include_str!(concat!("lua/", $name, ".lua")), $parts));)*

        /// All of them.
        #[cfg(test)]
        pub(super) static ALL: &[&LazyLock<Script>] = &[$(&$constant),*];
    };
}
#[cfg(feature = "compat")]
pub(crate) use scripts;

scripts! { &[];
    REGISTER "register"
    SEAL "seal"
    NOTE "note"
    EDIT "edit"
    LIMIT "limit"
    HISTORY "history"
    TOTALS "totals"
    ADD_KINDS "add_kinds"
    KINDS "kinds"
    GROUPS "groups"
    PUSH "push"
    PUSH_CHECKED "push_checked"
    HAND "hand"
    CLAIM "claim"
    STEP_BACK "step_back"
    TAKE_BACK "take_back"
    HOLDING "holding"
    SETTLE "settle"
    SETTLE_OTHERS "settle_others"
    WATCH_ENDS "watch_ends"
    ENDED "ended"
    GET "get"
    PAGE "page"
    FIND "find"
    COUNTS "counts"
    REMOVE "remove"
    RESCHEDULE "reschedule"
    PAUSE "pause"
    PRUNE "prune"
    SET_MOVING "set_moving"
    MOVE_IN "move_in"
    MOVE_OUT "move_out"
    PUT_CRON "put_cron"
    REMOVE_CRON "remove_cron"
    CRONS "crons"
    DUE_CRONS "due_crons"
    FIRE_CRONS "fire_crons"
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
    KEEP_CONNECTIONS "keep_connections"
    CONNECTION "connection"
    PUT_TOKEN "put_token"
    REMOVE_TOKEN "remove_token"
    TOKENS "tokens"
    PUT_AUDIT "put_audit"
    AUDITS "audits"
    INSPECT "inspect"
    MEND "mend"
    TALLY "tally"
    MEASURE "measure"
    RECOUNT "recount"
    RETICK "retick"
}

impl Script {
    /// Whether it changes nothing.
    pub(super) fn only_reads(&self) -> bool {
        self.code.starts_with("#!lua flags=no-writes")
    }

    /// Puts each part in the place of the line that names it: one of these, or one that the scripts here share.
    pub(crate) fn assemble(_name: &'static str, body: &str, parts: &[(&str, &'static str)]) -> Self {
        let mut code = String::new();
        for line in body.lines() {
            match line.strip_prefix("-- include ") {
                Some(names) => names.split(", ").for_each(|name| code.push_str(part(name, parts))),
                None => {
                    code.push_str(line);
                    code.push('\n');
                }
            }
        }
        let sha = sha1(&code);
        Script {
            #[cfg(test)]
            name: _name,
            code,
            sha,
        }
    }
}

#[cfg(test)]
impl Script {
    pub(crate) fn check_whole(&self) {
        assert!(self.code.starts_with("#!lua"), "{} says how it is to be run", self.name);
        assert!(!self.code.contains("no such part"), "{} finds its parts", self.name);
        assert!(!self.code.contains("-- include"), "{} includes nothing in a part", self.name);
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

/// The digest that servers know a script by, and that scripts can make of any text.
pub(crate) fn sha1(text: &str) -> String {
    redis::Script::new(text).get_hash().to_owned()
}

fn part(name: &str, own: &[(&str, &'static str)]) -> &'static str {
    own.iter().chain(PARTS).find(|(known, _)| *known == name).map_or("error('no such part')\n", |(_, code)| code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_is_whole() {
        ALL.iter().for_each(|script| script.check_whole());
    }

    #[test]
    fn scripts_look_as_far_as_the_contract_says() {
        use crate::store::{GROUPS_MAX, HISTORY_MINUTES_MAX, LOG_LINES_MAX, TALLY};
        use crate::store::{HINTS_LOOK_MAX, HINTS_MAX, LINE_LOOK_MAX, LOCK_SLOTS_MAX};
        assert!(part("notes", &[]).contains(&format!("local LINES = {LOG_LINES_MAX}\n")));
        assert!(part("group", &[]).contains(&format!("local GROUPS = {GROUPS_MAX}\n")));
        assert!(part("past", &[]).contains(&format!("local DAY, PLACES, STEP = {HISTORY_MINUTES_MAX}, {TALLY}, 10\n")));
        assert!(part("roll", &[]).contains(&format!("local AFTER, MINUTES, NUMBERS = 2, 60, {TALLY}\n")));
        assert!(part("put_off", &[]).contains(&format!("local HINTS, WAKES = {HINTS_MAX}, 16\n")));
        assert!(part("hints", &[]).contains(&format!("local LOOK = {HINTS_LOOK_MAX}\n")));
        assert!(part("line", &[]).contains(&format!("local LOOK = {LINE_LOOK_MAX}\n")));
        assert!(part("stand", &[]).contains(&format!("local SLOTS = {LOCK_SLOTS_MAX}\n")));
    }
}
