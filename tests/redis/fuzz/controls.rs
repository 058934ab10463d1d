//! The fuzz is worth something only if it catches a script with a mistake.

use super::{Fuzz, script};
use test_support::servers::{Binary, Options};

/// Rounds within which a mistake must be found.
const ROUNDS: u64 = 4_000;

/// A script, what it says, what it says by mistake, and what must be said about it.
const MISTAKES: &[(&str, &str, &str, &str)] = &[
    ("prune", "local remembered", "error('oh')\nlocal remembered", "and has written before"),
    ("counts", "local ready, oldest", "error('oh')\nlocal ready, oldest", "answers"),
    ("claim", "'SMISMEMBER', KEYS[9]", "'SMISMEMBER', '{q}:stale:2'", "undeclared key {q}:stale:2"),
    ("claim", "holds + #ids", "holds + 1", "holds are counted"),
    ("claim", "'-inf', now, 'BYSCORE'", "'-inf', '+inf', 'BYSCORE'", "before it was due"),
    ("claim", "hold(node, holds, tonumber(ARGV[6]))", "", "has a lease"),
    ("claim", "redis.call('SREM', KEYS[9], ticket) == 1", "redis.call('SREM', KEYS[9], ticket)", "in one place"),
    ("claim", "math.max(last + 1, now)", "now", "a fence that is not new"),
    ("hand", "holds + 1", "holds + 2", "holds are counted"),
    ("claim", "due and text(due) == place:sub(-16)", "due", "before it was due"),
    ("claim", "'[' .. kind .. '\\0'", "'-'", "before it was due"),
    ("claim", "    drop_words(members)\n    due_now", "    due_now", "by its words"),
    ("claim", "redis.call('ZREM', KEYS[5], unpack(tickets))", "", "in one place"),
    ("claim", "elseif not before or before.hint ~= one.hint then", "else", "holds are counted"),
    ("hand", "math.max(whole(conf[3], 16) + 1, now)", "now", "a fence that is not new"),
    ("hand", "conf[1] or conf[2]", "conf[1]", "did not keep still"),
    ("hand", "or anything_before()", "", "in which others wait"),
    ("hand", "and ends > now", "", "without a lease"),
    ("hand", "redis.call('ZREM', KEYS[5], node)", "", "goes on waiting"),
    ("settle_others", "and redis.call('HGET', KEYS[9], key) == id", "", "which has not ended"),
    ("settle_others", "lose(ARGV[at]", "freed = freed + redis.call('HDEL', KEYS[2], ARGV[at]", "was taken from"),
    ("settle", "values[n] ~= value then\n      return", "not values[n] then\n      return", "was taken from"),
    ("settle", "values[n] ~= value then\n        lose", "not values[n] then\n        lose", "was taken from"),
    ("settle", "whole(told[1], 15) - fewer", "whole(told[1], 15)", "holds are counted"),
    ("prune", "leave_group(KEYS[11], metas[i])", "", "groups are counted"),
    ("prune", "drop_words(members)\nredis.call('HDEL'", "redis.call('HDEL'", "by its words"),
    ("claim", "  drop_words(members)\nend\n\nlocal function promote", "end\n\nlocal function promote", "by its words"),
    ("claim", "'[' .. head .. tail)", "'(' .. head .. tail)", "by its words"),
    ("claim", "'[' .. head .. tail)", "'[' .. head .. '\\1')", "by its words"),
    ("claim", "ZREMRANGEBYRANK', KEYS[5], 0, #due - 1", "ZREMRANGEBYRANK', KEYS[5], 0, #due", "in one place"),
    (
        "settle_others",
        "put_words(members)\nend\n\nlocal function schedule",
        "end\n\nlocal function schedule",
        "by its words",
    ),
    ("settle_others", "ZADD', due, at, ticket)\n  put_words(members)\n", "ZADD', due, at, ticket)\n", "by its words"),
    ("push", "add_words(members, 's', words_in(ticket), '\\0' .. digits .. ticket:sub(1, 16))\n", "\n", "by its words"),
    ("remove", "drop_words(members)\n    leave_group(groups, meta)", "drop_words(members)", "groups are counted"),
    ("reschedule", "    words_dead(members, id, meta)\n    drop_words(members)\n", "", "by its words"),
    ("remove", "drop_words(members)\n  return true", "return true", "by its words"),
    ("remove", "drop_notes(KEYS[17], { id })", "", "notes of no job"),
    ("take_back", "ends >= now", "ends >= now + 1000000", "was taken from"),
    ("take_back", "redis.call('HDEL', KEYS[6], id)", "", "in one place"),
    ("take_back", "or '2'", "", "and has written before"),
    ("settle", " and digits:find('^%-?%d+$') and tonumber(digits) or 0", "", "and has written before"),
    ("claim", "flag >= 48 and flag <= 51 and flag - 48 or at", "flag - 48", "and has written before"),
    ("leave", "> 0 then", "> 9 then", "holds are counted"),
    ("remove", "redis.call('LREM', list, -1, ticket)\n    return", "return", "has a record"),
    ("remove", "redis.call('LREM', list, 1, ticket)", "", "has a record"),
    (
        "remove",
        "redis.call('SADD', gone(KEYS[1], { KEYS[10], KEYS[11] }, tonumber(ARGV[3])), id)",
        "",
        "not remembered",
    ),
    ("push_checked", "if #refused > 0 then", "if #refused > 99 then", ""),
    ("push_checked", " + remembered[15][n]", "", "not any more"),
    ("prune", "digits:match('^%d+$') and", "", "has written before"),
    ("prune", "redis.call('HDEL', KEYS[3], id)", "", "history"),
    ("claim", "conf[1] or conf[2]", "conf[1]", "did not keep still"),
    ("remove", "if conf[1] then", "if false then", "did not keep still"),
    ("move_out", "(conf[1] or ''):sub(1, 36) ~= ARGV[2]", "not conf[1]", "not by its mover"),
    ("move_out", "redis.call('LREM', list, 1, ready_ticket)", "", "has a record"),
    ("move_out", "if redis.call('SREM', KEYS[10], ticket) == 0 then", "if false then", ""),
    ("move_in", "if note ~= ARGV[4] then", "if false then", "a note that is not here"),
    ("move_in", "holder and redis.call('HEXISTS', KEYS[1], holder) == 1", "false", "which has not ended"),
    ("move_in", "if #taken > 0 then", "if false then", "did not move in with the others"),
    ("move_in", "arrive(place, is_stale)", "arrive(place, false)", "not any more"),
    ("move_in", "redis.call('LREM', KEYS[list], 1, ticket)", "", ""),
    ("fire_crons", "tonumber(tick) <= now", "true", "before its tick"),
    ("fire_crons", "rule:sub(50, 50) == '0'", "true", "not active"),
    ("fire_crons", "rule:sub(2, 33) == revision .. tick", "rule:sub(18, 33) == tick", "had read another"),
    ("fire_crons", "and not moving and", "and", "the queue is moving"),
    ("fire_crons", "set_tick(KEYS[8], KEYS[10])", "''", "told of the first tick"),
    ("fire_crons", "known_of({ id })[1] or ", "", "not any more"),
    ("put_cron", "set_tick(KEYS[1], KEYS[4])", "", "told of the first tick"),
    ("remove_cron", "redis.call('ZREM', KEYS[3], ARGV[2])", "", "is a rule"),
    ("lock", "last < now and moment or text(last + 1)", "moment", "a fence that is not new"),
    ("lock", "if slots == 1 and not values[2] and (", "if slots == 1 and (", ""),
    ("lock", "if ahead < free and not unseen then", "if free > 0 and not unseen then", "others came first"),
    ("lock", "if ends > now then", "if ends > now + 1000000 then", "was changed"),
    ("lock", "or 0) <= now) then", "or 0) <= now + 1000000) then", "was changed"),
    ("lock", "redis.call('HSETNX', KEYS[1], field, slots)", "", "is marked"),
    ("lock", "step_out({ mine })", "", "stands in its line"),
    ("lock", "redis.call('HSET', KEYS[3], owner .. name, place)", "", "nobody's place"),
    ("lock", "slots = math.min(slots, SLOTS)", "slots = 9 * slots", "too many results to unpack"),
    ("unlock", "if hold:sub(85, 120) == owner then", "if true then", "was changed"),
    ("unlock", "hold:sub(85, 120) ~= owner or ", "", "was changed"),
    ("unlock", "local released = ARGV[5] == '' and lock.own", "local released = lock.own", "was changed"),
    (
        "unlock",
        "ARGV[5] == '' and redis.call('HDEL', KEYS[1], one) or 0",
        "redis.call('HDEL', KEYS[1], one)",
        "was changed",
    ),
    ("unlock", "and #line.living == 0 and not line.more", "", "is marked"),
    ("unlock", "redis.call('HDEL', KEYS[3], unpack(fields))", "", "no place for"),
    ("extend_locks", "hold:sub(85, 120) == ARGV[n + 1] and ", "", "was changed"),
    ("break_lock", "lock.field .. slot", "name .. 'o\\0' .. slot", "was changed"),
    ("attend", "(tonumber(at) or -1) >= now", "(tonumber(at) or -1) >= now + 5000000", "one that lives"),
    ("attend", "redis.call('ZADD', KEYS[4], now + ARGV[3], node)", "", "a guest has a lease"),
    ("clear", "#line.living + #line.dead == 0", "true", "is marked"),
    ("clear", "if not is[node] then", "if true then", "was taken from"),
    ("depart", "if connections[i + 1] == node then", "if true then", "was taken from"),
    ("set_connections", "redis.call('HGET', KEYS[2], ARGV[n]) == node", "true", "was taken from"),
    ("keep_connections", "not is_there(holder)", "true", "was taken from"),
];

#[test]
fn every_seeded_mistake_is_found() {
    let (server, scripts) = (Options::new(Binary::Redis).start(), script::all());
    // A third of them each time, another one by chance: all of them when there is time.
    let (parts, part) =
        if std::env::var_os("DULY_FUZZ_SECONDS").is_some() { (1, 0) } else { (3, fastrand::usize(..3)) };
    // What is no mistake any more is noticed each time.
    let mistaken: Vec<_> = MISTAKES
        .iter()
        .map(|(name, right, wrong, said)| {
            (scripts[*name].with_mistake(right, wrong), format!("{name} without {right:?}"), said)
        })
        .collect();
    let missed = mistaken.iter().skip(part).step_by(parts).filter_map(|(script, what, said)| {
        let mut fuzz = Fuzz::new(&server);
        match (0..ROUNDS).find_map(|seed| fuzz.round(seed, &[script]).err()) {
            None => Some(format!("{what}: nobody notices")),
            Some(found) if found.contains("Error compiling") => Some(format!("{what} is no script")),
            Some(found) => (!found.contains(*said)).then(|| format!("{what}: {said:?} is not what is said:\n{found}")),
        }
    });
    let missed: Vec<String> = missed.collect();
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}
