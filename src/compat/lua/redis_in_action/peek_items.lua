#!lua flags=no-writes
-- peek_items: returns due delayed items, and items at the head of a list.
-- keys: delayed list sidekiq_queues conf ready[4]
-- args: now queue max_delayed max_items skipped
--   skipped: how many of the delayed items to skip
-- Returns { now, why not|'', { due delayed item }, { item of the list }, when the next one is due|'', 1 if the list has no more }
-- include read_time, check_format, is_closed, check_item_list
local seconds = string.format('%.6f', now / 1000000)
local due = redis.call('ZRANGE', @delayed, '-inf', seconds, 'BYSCORE', 'LIMIT', $skipped, $max_delayed)
local later = redis.call('ZRANGE', @delayed, '(' .. seconds, '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')[2]
later = later and string.format('%.0f', math.min(later * 1000000, 9e15)) or ''
local why = check_item_list(@list, @sidekiq_queues, $queue)
local ready = 0
for list = 1, 4 do
  ready = ready + redis.call('LLEN', @ready[list])
end
local max = $max_items - ready
if why or max <= 0 or is_closed(@conf) then
  return { now, why or '', due, {}, later, 0 }
end
return { now, '', due, redis.call('LRANGE', @list, 0, max - 1), later, redis.call('LLEN', @list) <= max and 1 or 0 }
