#!lua flags=allow-oom
-- break_lock: ends all holds of a lock, and notifies their owners and the next waiters.
-- keys: locks lock_waiters waiter_index presence
-- args: now name
-- Returns { now, how many holds there were, 1 if dead nodes were in the way: send it again }
-- include read_time, find_alive, list_waiters, read_lock, notify_waiter
local name = $name
local lock = read_lock(name, 1)
for slot = 1, lock.width do
  local hold = redis.call('HGET', @locks, lock.field .. slot)
  if hold then
    notify_waiter(name, { node = hold:sub(49, 84), owner = hold:sub(85, 120) })
    redis.call('HDEL', @locks, lock.field .. slot)
  end
end
local waiters = list_waiters(name, WAITERS_LOOK_MAX)
remove_waiters(waiters.dead)
notify_next(name, waiters.living, 0)
if #waiters.living == 0 and not waiters.more then
  redis.call('HDEL', @locks, lock.field)
end
return { now, lock.held, waiters.more and #waiters.living == 0 and 1 or 0 }
