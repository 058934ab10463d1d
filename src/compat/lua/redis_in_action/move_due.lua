#!lua flags=allow-oom
-- move_due: moves due delayed items to their lists, byte for byte, each only if it is still there.
-- An item that a poller has locked is left to the poller. A lock without an end that has not changed for very long belongs to a
-- dead poller.
-- keys: delayed seen_locks sidekiq_queues locks_and_lists...
-- args: now lock_limit items...
--   lock_limit: how long a lock without an end is respected; items: for each item: item, queue
-- Returns { now, how many were moved, how many were left }
-- include read_time, to_digits, check_item_list
local moved, left = 0, 0

-- Returns whether a poller is about to move the item.
local function is_locked(lock)
  local holder = redis.pcall('GET', lock)
  if not holder then
    return false
  end
  holder = type(holder) == 'table' and '' or holder
  if redis.call('PTTL', lock) >= 0 then
    return true
  end
  local seen = redis.call('HGET', @seen_locks, lock)
  if not seen or seen:sub(17) ~= holder then
    redis.call('HSET', @seen_locks, lock, to_digits(now) .. holder)
    return true
  end
  local since = tonumber(seen:sub(1, 16)) or 0
  if since > now then
    -- The clock was ahead.
    redis.call('HSET', @seen_locks, lock, to_digits(now) .. holder)
  end
  if now - since < tonumber($lock_limit) then
    return true
  end
  redis.call('DEL', lock)
  return false
end

for n = 1, #$items, 2 do
  local lock, list, item = @locks_and_lists[n], @locks_and_lists[n + 1], $items[n]
  if is_locked(lock) or check_item_list(list, @sidekiq_queues, $items[n + 1]) then
    left = left + 1
  else
    redis.call('HDEL', @seen_locks, lock)
    if redis.call('ZREM', @delayed, item) == 1 then
      redis.call('RPUSH', list, item)
      moved = moved + 1
    end
  end
end
return { now, moved, left }
