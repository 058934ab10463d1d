#!lua
-- put_cron: stores a cron rule in one queue, if the rule of this name has the expected revision.
-- keys: conf idle cron ticks
-- args: now channel name revision rule check_at
--   revision: '' if there should be no rule; check_at: when to check the rule|''
-- Returns { now, 'yes' | 'stale' | 'moving' }
-- include read_time, check_format, to_digits, parse_int, wake_node, set_next_tick
if redis.call('HEXISTS', @conf, 'transfer_mark') == 1 then
  return { now, 'moving' }
end
local found = redis.call('HGET', @cron, $name)
if (found and found:sub(2, 17) or '') ~= $revision then
  return { now, 'stale' }
end
redis.call('HSET', @cron, $name, $rule)
if $check_at == '' then
  redis.call('ZREM', @ticks, $name)
else
  redis.call('ZADD', @ticks, $check_at, $name)
end
set_next_tick()
wake_node(@idle, $channel)
return { now, 'yes' }
