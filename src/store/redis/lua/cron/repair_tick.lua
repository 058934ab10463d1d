#!lua flags=allow-oom
-- repair_tick: sets when a cron rule is looked at, if the rule is as it was read; and updates the next tick of the queue.
-- keys: conf cron ticks
-- args: now name rule next_look
--   rule: as it was read|''; next_look: when to look at the rule|''
-- Returns { now, 'yes' | 'changed' }
-- include read_time, check_format, to_digits, set_next_tick
if (redis.call('HGET', @cron, $name) or '') ~= $rule then
  return { now, 'changed' }
end
if $next_look == '' then
  redis.call('ZREM', @ticks, $name)
else
  redis.call('ZADD', @ticks, $next_look, $name)
end
set_next_tick()
return { now, 'yes' }
