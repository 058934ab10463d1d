#!lua flags=allow-oom
-- set_paused: stops or starts claims from a queue.
-- keys: conf idle
-- args: now channel paused
-- Returns { now, 1 if that changed anything }
-- include read_time, check_format, wake_node
if $paused == '1' then
  return { now, redis.call('HSETNX', @conf, 'paused', '1') }
end
local changed = redis.call('HDEL', @conf, 'paused')
if changed == 1 then
  wake_node(@idle, $channel)
end
return { now, changed }
