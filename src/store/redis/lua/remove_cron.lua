#!lua flags=allow-oom
-- remove_cron: deletes a rule of one queue, whatever its revision or only this one.
-- KEYS 1 conf 2 cron 3 ticks
-- ARGV 1 now|'' 2 name 3 revision|''
-- Returns { now, whether there was one }
-- include now, text, tick
local found = redis.call('HGET', KEYS[2], ARGV[2])
if ARGV[3] ~= '' and (not found or found:sub(2, 17) ~= ARGV[3]) then
  return { now, 0 }
end
local gone = redis.call('HDEL', KEYS[2], ARGV[2])
redis.call('ZREM', KEYS[3], ARGV[2])
set_tick(KEYS[1], KEYS[3])
return { now, gone }
