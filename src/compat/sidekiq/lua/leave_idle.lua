#!lua flags=allow-oom
-- leave_idle: removes a node without free slots from the idle list. If there is work, wakes another idle node.
-- keys: conf idle list schedule retry
-- args: now channel node
-- Returns { now, 1 if there is work }
-- include read_time, check_format, wake_node, is_closed
local has_work = redis.call('EXISTS', @list) == 1
for _, set in ipairs({ @schedule, @retry }) do
  has_work = has_work or redis.call('ZCOUNT', set, '-inf', string.format('%.6f', now / 1000000)) > 0
end
redis.call('ZREM', @idle, $node)
if has_work and not is_closed(@conf) then
  wake_node(@idle, $channel)
  return { now, 1 }
end
return { now, 0 }
