#!lua flags=allow-oom
-- unlock: releases a lock of ActionHero and stops the wait of its owner, or only that; and notifies the next waiter of duly.
-- keys: locks lock_waiters waiter_index presence lock_key
-- args: now name owner only_wait
--   only_wait: 1 if a lock that the owner holds stays|''
-- Returns { now, 1 if it held the lock, 1 if dead nodes were in the way: send it again }
-- include read_time, find_alive, list_waiters, notify_waiter, read_foreign_lock
local name, owner, key = $name, $owner, @lock_key
local lock = read_foreign_lock(key, name)
local all = $only_wait == ''
local held = all and lock.own and lock.holder == owner
if held then
  redis.call('DEL', key)
end
if all and lock.hold and lock.hold:sub(85, 120) == owner then
  redis.call('HDEL', @locks, lock.field)
end
local member = redis.call('HGET', @waiter_index, owner .. name)
remove_waiters({ member or nil })
local waiters = list_waiters(name, WAITERS_SCAN_MAX)
remove_waiters(waiters.dead)
-- Also if a waiter left while ActionHero holds the lock: the first waiter is the one that looks.
if held or member or not lock.holder then
  notify_next(name, waiters.living, 0)
end
return { now, held and 1 or 0, waiters.more and #waiters.living == 0 and 1 or 0 }
