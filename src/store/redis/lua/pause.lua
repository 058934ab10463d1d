#!lua flags=allow-oom
-- pause: stops or starts claiming from a queue.
-- KEYS 1 conf 2 idle
-- ARGV 1 now|'' 2 channel 3 1: pause, 0: resume
-- Returns { now, whether that changed anything }
-- include now, wake
if ARGV[3] == '1' then
  return { now, redis.call('HSETNX', KEYS[1], 'paused', '1') }
end
local changed = redis.call('HDEL', KEYS[1], 'paused')
if changed == 1 then
  wake(KEYS[2], ARGV[2])
end
return { now, changed }
