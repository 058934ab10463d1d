#!lua flags=allow-oom
-- unlock: releases the slot of an owner and stops its wait, or only that; and notifies the next waiters.
-- keys: locks lock_waiters waiter_index presence
-- args: now name slots owner only_wait
--   only_wait: 1 if a slot that the owner holds stays|''
-- Returns { now, 1 if it held a slot, 1 if dead nodes were in the way: send it again }
-- include read_time
local name, slots, owner, field = $name, tonumber($slots), $owner, $name .. '\0'
local one = field .. '1'

-- A lock without a mark has one slot, and no owner waits for it.
local values = redis.call('HMGET', @locks, field, one)
if not values[1] and slots == 1 then
  local hold = values[2]
  if not hold or hold:sub(85, 120) ~= owner or (tonumber(hold:sub(1, 16)) or 0) <= now then
    return { now, 0, 0 }
  end
  return { now, $only_wait == '' and redis.call('HDEL', @locks, one) or 0, 0 }
end
-- include to_digits, parse_int, shorten_hold, find_alive, list_waiters, read_lock, notify_waiter
local NEAR = 4
local lock = read_lock(name, slots, owner)
local released = $only_wait == '' and lock.own
local held = lock.held - (released and 1 or 0)
if released then
  redis.call('HDEL', @locks, field .. released)
end
local member = redis.call('HGET', @waiter_index, owner .. name)
remove_waiters({ member or nil })
local waiters = list_waiters(name, NEAR)
if #waiters.dead > 0 or lock.width > 1 then
  waiters = list_waiters(name, WAITERS_SCAN_MAX)
end
remove_waiters(waiters.dead)
notify_next(name, waiters.living, held)
if held == 0 and #waiters.living == 0 and not waiters.more then
  redis.call('HDEL', @locks, field)
end
return { now, released and 1 or 0, waiters.more and #waiters.living == 0 and 1 or 0 }
