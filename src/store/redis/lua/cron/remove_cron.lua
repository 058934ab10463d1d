#!lua flags=allow-oom
-- remove_cron: deletes a cron rule of one queue, whatever its revision or only with this one.
-- keys: conf cron ticks
-- args: now name revision
--   revision: '' is any
-- Returns { now, 1 if there was one }
-- include read_time, check_format, to_digits, parse_int, set_next_tick
local found = redis.call('HGET', @cron, $name)
if $revision ~= '' and (not found or found:sub(2, 17) ~= $revision) then
  return { now, 0 }
end
local removed = redis.call('HDEL', @cron, $name)
redis.call('ZREM', @ticks, $name)
set_next_tick()
return { now, removed }
