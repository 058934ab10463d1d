#!lua
-- reschedule: gives a waiting item another time, byte for byte, if it is still there.
-- keys: delayed list sidekiq_queues
-- args: now queue item due
--   due: 'n' microseconds, '+n' from now
-- Returns { now, why not|'', 1 if done, 0 if it is not there any more }
-- include read_time, check_item_list
local at = tonumber($due)
at = $due:byte(1) == 43 and now + at or at
local why = check_item_list(@list, @sidekiq_queues, $queue)
if why then
  return { now, why, 0 }
end
-- The same bytes may be in both places: then they are two items, and one of them is meant.
if redis.call('ZREM', @delayed, $item) == 0 and redis.call('LREM', @list, 1, $item) == 0 then
  return { now, '', 0 }
end
if at <= now then
  redis.call('RPUSH', @list, $item)
else
  redis.call('ZADD', @delayed, string.format('%.6f', at / 1000000), $item)
end
return { now, '', 1 }
