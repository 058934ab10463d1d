//! Controls of the fuzz test: it finds seeded mistakes in scripts.

use super::{Fuzz, script};
use test_support::servers::{Binary, Options};

/// Rounds within which a mistake must be found.
const ROUNDS: u64 = 4_000;

/// A script, its text, a wrong text, and a part of the failure that must be found.
const MISTAKES: &[(&str, &str, &str, &str)] = &[
    ("prune", "local removed = ", "error('oh')\nlocal removed = ", "and has written before"),
    ("counts", "local ready, oldest", "error('oh')\nlocal ready, oldest", "replies"),
    ("claim", "'SMISMEMBER', @stale", "'SMISMEMBER', '{q}:stale:2'", "undeclared key {q}:stale:2"),
    ("claim", "held_before + #ids", "held_before + 1", "holds are counted"),
    ("claim", "'-inf', now, 'BYSCORE'", "'-inf', '+inf', 'BYSCORE'", "before it was due"),
    ("claim", "ensure_lease(node, tonumber($lease))", "", "has a lease"),
    ("claim", "redis.call('SREM', @stale, ticket) == 1", "redis.call('SREM', @stale, ticket)", "in one position"),
    ("claim", "math.max(last + 1, now)", "now", "a fence that is not new"),
    ("deliver_to_idle", "held + 1", "held + 2", "holds are counted"),
    ("claim", "due and to_digits(due) == order:sub(-16)", "due", "before it was due"),
    ("claim", "'[' .. kind .. '\\0'", "'-'", "before it was due"),
    ("claim", "    drop_from_index(members)\n    set_due_now", "    set_due_now", "are indexed"),
    ("claim", "redis.call('ZREM', @scheduled, unpack(tickets))", "", "in one position"),
    ("claim", "elseif not before or before.hint ~= one.hint then", "else", "holds are counted"),
    ("deliver_to_idle", "math.max(parse_int(last_fence, 16) + 1, now)", "now", "a fence that is not new"),
    ("deliver_to_idle", "and not transfer_mark then", "then", "under transfer, and was changed"),
    ("deliver_to_idle", "redis.call('EXISTS', @ready) > 0 or", "", "with waiting jobs"),
    ("deliver_to_idle", "and ends > now", "", "without a lease"),
    ("deliver_to_idle", "redis.call('ZREM', @idle, node)", "", "stays idle"),
    ("settle_others", "and redis.call('HGET', @unique, unique_key) == id", "", "which is not finished"),
    (
        "settle_others",
        "    lost[#lost + 1]",
        "    redis.call('HDEL', @running, ARGV[at])\n    lost[#lost + 1]",
        "was taken from",
    ),
    ("settle", "values[n] ~= value then\n      value", "not values[n] then\n      value", "was taken from"),
    ("settle", "and (values[n] or ''):sub(1, 65) ~= value then", "and not values[n] then", "was taken from"),
    ("cancel", "if conf[1] then", "if false then", "under transfer, and was changed"),
    ("cancel", "remove_waiting(id, record, meta)\nincrement_field(", "increment_field(", "in one position"),
    ("settle", "parse_int(held, 15) - fewer", "parse_int(held, 15)", "holds are counted"),
    ("prune", "leave_group(metas[i])", "", "groups are counted"),
    ("prune", "drop_from_index(members)\ndrop_runs(", "drop_runs(", "are indexed"),
    (
        "claim",
        "  drop_from_index(members)\nend\n\nlocal function promote",
        "end\n\nlocal function promote",
        "are indexed",
    ),
    ("claim", "'[' .. head .. tail)", "'(' .. head .. tail)", "are indexed"),
    ("claim", "'[' .. head .. tail)", "'[' .. head .. '\\1')", "are indexed"),
    (
        "claim",
        "'ZREMRANGEBYRANK', @scheduled, 0, #due - 1",
        "'ZREMRANGEBYRANK', @scheduled, 0, #due",
        "in one position",
    ),
    ("settle_others", "kept_until, id)\n  add_to_index(members)", "kept_until, id)", "are indexed"),
    ("settle_others", "due, ticket)\n  add_to_index(members)", "due, ticket)", "are indexed"),
    (
        "push",
        "add_terms(members, 's', ticket_terms(ticket), '\\0' .. digits .. ticket:sub(1, 16))\n",
        "\n",
        "are indexed",
    ),
    ("remove", "drop_from_index(members)\n    leave_group(meta)", "drop_from_index(members)", "groups are counted"),
    ("reschedule", "    add_dead_terms(members, id, meta)\n    drop_from_index(members)\n", "", "are indexed"),
    ("remove", "drop_from_index(members)\n  return true", "return true", "are indexed"),
    ("remove", "drop_progress({ id })", "", "progress of no job"),
    ("remove", "drop_runs({ id }, { meta })", "", "runs belong to a job"),
    ("prune", "fields[#fields + 1] = id\n", "fields[#fields + 1] = id .. 'x'\n", "runs belong to a job"),
    ("take_back", "ends >= now", "ends >= now + 1000000", "was taken from"),
    ("take_back", "redis.call('HDEL', @running, id)", "", "in one position"),
    ("take_back", "or '2'", "", "and has written before"),
    ("settle", " and digits:find('^%-?%d+$') and tonumber(digits) or 0", "", "and has written before"),
    ("claim", "flag >= 48 and flag <= 51 and flag - 48 or priority", "flag - 48", "and has written before"),
    ("claim", "redis.call('LPUSH', @ready[priority + 1], tickets[i])", "", "in one position"),
    ("leave", "> 0 then", "> 9 then", "holds are counted"),
    ("remove", "redis.call('LREM', list, -1, ticket)\n    return", "return", "has a record"),
    ("remove", "redis.call('LREM', list, 1, ticket)", "", "has a record"),
    ("remove", "redis.call('SADD', choose_removed(tonumber($remember)), id)", "", "not remembered"),
    ("push_checked", "if #refused > 0 then", "if #refused > 99 then", ""),
    ("push_checked", " + stale[n]", "", "no longer holds"),
    ("prune", "digits:match('^%d+$') and", "", "has written before"),
    ("prune", "redis.call('HDEL', @meta, id)", "", "runs belong to a job"),
    ("claim", "paused or transfer_mark", "paused", "under transfer, and was changed"),
    (
        "remove",
        "if redis.call('HEXISTS', @conf, 'transfer_mark') == 1 then",
        "if false then",
        "under transfer, and was changed",
    ),
    ("transfer_out", "(conf[1] or ''):sub(1, 36) ~= $mover", "not conf[1]", "without the transfer mark"),
    ("transfer_out", "redis.call('LREM', list, 1, ready_ticket)", "", "has a record"),
    ("transfer_out", "if redis.call('SREM', @stale, ticket) == 0 then", "if false then", ""),
    ("transfer_in", "if found ~= $checkpoint_before then", "if false then", "unknown checkpoint"),
    ("transfer_in", "holder and redis.call('HEXISTS', @job, holder) == 1", "false", "which is not finished"),
    ("transfer_in", "if #taken > 0 then", "if false then", "missing from the transferred batch"),
    ("transfer_in", "insert_job(first, conf[3], times)", "insert_job(first, false, times)", "no longer holds"),
    ("transfer_in", "redis.call('LREM', KEYS[4 + list], 1, ticket)", "", ""),
    ("fire_crons", "tonumber(tick) <= now", "true", "before its tick"),
    ("fire_crons", "rule:sub(50, 50) == '0'", "true", "not active"),
    ("fire_crons", "rule:sub(2, 33) == revision .. tick", "rule:sub(18, 33) == tick", "another revision"),
    ("fire_crons", "and not transfer_mark and", "and", "under transfer"),
    ("fire_crons", "results, set_next_tick()", "results, ''", "know the first tick"),
    ("fire_crons", "find_known({ id })[1] or ", "", "no longer holds"),
    ("put_cron", "\nset_next_tick()", "", "know the first tick"),
    ("remove_cron", "redis.call('ZREM', @ticks, $name)", "", "belongs to a rule"),
    ("lock", "last < now and time or to_digits(last + 1)", "time", "a fence that is not new"),
    ("lock", "if slots == 1 and not values[2] and (", "if slots == 1 and (", ""),
    ("lock", "if ahead < free and not unseen then", "if free > 0 and not unseen then", "others came first"),
    ("lock", "if ends > now then", "if ends > now + 1000000 then", "was changed"),
    ("lock", "or 0) <= now) then", "or 0) <= now + 1000000) then", "was changed"),
    ("lock", "redis.call('HSETNX', @locks, field, slots)", "", "is marked"),
    ("lock", "remove_waiters({ mine })", "", "and waits for it"),
    ("lock", "redis.call('HSET', @waiter_index, owner .. name, member)", "", "unindexed waiter"),
    ("lock", "slots = math.min(slots, SLOTS_MAX)", "slots = 9 * slots", "too many results to unpack"),
    ("unlock", "if hold:sub(85, 120) == owner then", "if true then", "was changed"),
    ("unlock", "hold:sub(85, 120) ~= owner or ", "", "was changed"),
    ("unlock", "local released = $only_wait == '' and lock.own", "local released = lock.own", "was changed"),
    (
        "unlock",
        "$only_wait == '' and redis.call('HDEL', @locks, one) or 0",
        "redis.call('HDEL', @locks, one)",
        "was changed",
    ),
    ("unlock", "and #waiters.living == 0 and not waiters.more", "", "is marked"),
    ("unlock", "redis.call('HDEL', @waiter_index, unpack(fields))", "", "no waiter for"),
    ("extend_locks", "hold:sub(85, 120) == ARGV[n + 1] and ", "", "was changed"),
    ("break_lock", "owner == '' or hold", "hold or hold", "was changed"),
    ("break_lock", "lock.field .. slot", "name .. 'o\\0' .. slot", "was changed"),
    ("announce", "(tonumber(at) or -1) >= now", "(tonumber(at) or -1) >= now + 5000000", "a live node"),
    ("announce", "redis.call('ZADD', @presence, now + $lease, node)", "", "a peer has a lease"),
    ("clear_dead", "#waiters.living + #waiters.dead == 0", "true", "is marked"),
    ("clear_dead", "if not alive[node] then", "if true then", "was taken from"),
    ("withdraw", "if connections[i + 1] == node then", "if true then", "was taken from"),
    ("set_connections", "redis.call('HGET', @connections, ARGV[n]) == node", "true", "was taken from"),
    ("refresh_connections", "not is_alive(holder)", "true", "was taken from"),
];

#[test]
fn every_seeded_mistake_is_found() {
    let (server, scripts) = (Options::new(Binary::Redis).start(), script::all());
    // A random third of them each time, and all of them in a long run.
    let (parts, part) =
        if std::env::var_os("DULY_FUZZ_SECONDS").is_some() { (1, 0) } else { (3, fastrand::usize(..3)) };
    // Every mistake must still apply, even if it is not run.
    let mistaken: Vec<_> = MISTAKES
        .iter()
        .map(|(name, right, wrong, expected)| {
            (scripts[*name].with_mistake(right, wrong), format!("{name} without {right:?}"), expected)
        })
        .collect();
    let missed = mistaken.iter().skip(part).step_by(parts).filter_map(|(script, description, expected)| {
        let mut fuzz = Fuzz::new(&server);
        match (0..ROUNDS).find_map(|seed| fuzz.round(seed, &[script]).err()) {
            None => Some(format!("{description}: not found")),
            Some(found) if found.contains("Error compiling") => Some(format!("{description} does not compile")),
            Some(found) => {
                (!found.contains(*expected)).then(|| format!("{description}: failure without {expected:?}:\n{found}"))
            }
        }
    });
    let missed: Vec<String> = missed.collect();
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}
