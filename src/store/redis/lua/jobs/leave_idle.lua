#!lua flags=allow-oom
-- leave_idle: removes a node without free slots from the idle list. If there is work, wakes another idle node.
-- keys: conf scheduled idle ready[4]
-- args: now channel node
-- Returns { now, 1 if there is work }
-- include read_time, check_format, wake_node, is_closed
redis.call('ZREM', @idle, $node)
local next_due = tonumber(redis.call('ZRANGE', @scheduled, 0, 0, 'WITHSCORES')[2])
local has_work = (next_due and next_due <= now) or redis.call('EXISTS', @ready) > 0
if has_work and not is_closed(@conf) then
  wake_node(@idle, $channel)
  return { now, 1 }
end
return { now, 0 }
