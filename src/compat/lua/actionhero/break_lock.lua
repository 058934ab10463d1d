#!lua flags=allow-oom
-- break_lock: ends a lock of ActionHero, and notifies an owner of duly and the next waiter.
-- keys: locks lock_waiters waiter_index presence lock_key
-- args: now name only holder
--   only: 1 if it ends only if its value is the holder|''
-- Returns { now, 1 if it ended, 1 if dead nodes were in the way: send it again }
-- include read_time, find_alive, list_waiters, notify_waiter, read_foreign_lock
local name = $name
local lock = read_foreign_lock(@lock_key, name)
if $only == '1' and lock.holder and lock.holder ~= $holder then
  return { now, 0, 0 }
end
if lock.own then
  notify_waiter(name, { node = lock.hold:sub(49, 84), owner = lock.hold:sub(85, 120) })
end
redis.call('DEL', @lock_key)
redis.call('HDEL', @locks, lock.field)
local waiters = list_waiters(name, WAITERS_SCAN_MAX)
remove_waiters(waiters.dead)
notify_next(name, waiters.living, 0)
return { now, lock.holder and 1 or 0, waiters.more and #waiters.living == 0 and 1 or 0 }
