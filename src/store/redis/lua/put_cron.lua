#!lua
-- put_cron: keeps a rule in one queue, if the one of its name has the revision that it should have.
-- KEYS 1 conf 2 idle 3 cron 4 ticks
-- ARGV 1 now|'' 2 channel 3 name 4 revision as it should be|'' 5 the rule 6 when to look at it|''
-- Returns { now, 'yes' | 'stale' | 'moving' }
-- include now, text, wake, tick
if redis.call('HEXISTS', KEYS[1], 'moving') == 1 then
  return { now, 'moving' }
end
local found = redis.call('HGET', KEYS[3], ARGV[3])
if (found and found:sub(2, 17) or '') ~= ARGV[4] then
  return { now, 'stale' }
end
redis.call('HSET', KEYS[3], ARGV[3], ARGV[5])
if ARGV[6] == '' then
  redis.call('ZREM', KEYS[4], ARGV[3])
else
  redis.call('ZADD', KEYS[4], ARGV[6], ARGV[3])
end
set_tick(KEYS[1], KEYS[4])
wake(KEYS[2], ARGV[2])
return { now, 'yes' }
