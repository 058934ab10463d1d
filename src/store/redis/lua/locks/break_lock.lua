#!lua flags=allow-oom
-- break_lock: ends the hold of an owner or all holds of a lock, and notifies their owners and the next waiters.
-- keys: locks lock_waiters waiter_index presence
-- args: now name owner
--   owner: whose hold ends|'' for all
-- Returns { now, how many holds it ended, 1 if dead nodes were in the way: send it again }
-- include read_time, to_digits, parse_int, shorten_hold, find_alive, list_waiters, read_lock, notify_waiter
local name, owner = $name, $owner
local lock = read_lock(name, 1, owner ~= '' and owner or nil)
for slot = 1, lock.width do
  local hold = redis.call('HGET', @locks, lock.field .. slot)
  if hold and (owner == '' or hold:sub(85, 120) == owner) then
    notify_waiter(name, { node = hold:sub(49, 84), owner = hold:sub(85, 120) })
    redis.call('HDEL', @locks, lock.field .. slot)
  end
end
local ended = owner == '' and lock.held or lock.own and 1 or 0
local held = lock.held - ended
local waiters = list_waiters(name, WAITERS_SCAN_MAX)
remove_waiters(waiters.dead)
notify_next(name, waiters.living, held)
if held == 0 and #waiters.living == 0 and not waiters.more then
  redis.call('HDEL', @locks, lock.field)
end
return { now, ended, waiters.more and #waiters.living == 0 and 1 or 0 }
