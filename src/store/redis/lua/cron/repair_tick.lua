#!lua flags=allow-oom
-- repair_tick: sets when a cron rule is checked, if the rule is as it was read; and updates the next tick of the queue.
-- keys: conf cron ticks
-- args: now name rule check_at
--   rule: as it was read|''; check_at: when to check the rule|''
-- Returns { now, 'yes' | 'changed' }
-- include read_time, check_format, to_digits, parse_int, set_next_tick
if (redis.call('HGET', @cron, $name) or '') ~= $rule then
  return { now, 'changed' }
end
if $check_at == '' then
  redis.call('ZREM', @ticks, $name)
else
  redis.call('ZADD', @ticks, $check_at, $name)
end
set_next_tick()
return { now, 'yes' }
