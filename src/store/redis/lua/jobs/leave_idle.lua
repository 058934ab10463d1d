#!lua flags=allow-oom
-- leave_idle: removes a node without free slots from the idle list. Wakes another idle node if there is work, or if a job is due
-- before the next heartbeat: perhaps only this node knew of it.
-- keys: conf scheduled idle ready[4]
-- args: now channel node lease
-- Returns { now, 1 if there is work }
-- include read_time, check_format, wake_node, is_closed
redis.call('ZREM', @idle, $node)
local until_due = (tonumber(redis.call('ZRANGE', @scheduled, 0, 0, 'WITHSCORES')[2]) or math.huge) - now
local has_work = until_due <= 0 or redis.call('EXISTS', @ready) > 0
if is_closed(@conf) then
  return { now, 0 }
end
if has_work or until_due < tonumber($lease) / 3 then
  wake_node(@idle, $channel)
end
return { now, has_work and 1 or 0 }
