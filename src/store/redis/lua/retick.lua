#!lua flags=allow-oom
-- retick: a cron rule is looked at when it should be, if it is as it was seen; and claims are told of the first of all.
-- KEYS 1 conf 2 cron 3 ticks
-- ARGV 1 now|'' 2 name 3 the rule as it was seen|'' 4 when to look at it|''
-- Returns { now, 'yes' | 'changed' }
-- include now, text, tick
if (redis.call('HGET', KEYS[2], ARGV[2]) or '') ~= ARGV[3] then
  return { now, 'changed' }
end
if ARGV[4] == '' then
  redis.call('ZREM', KEYS[3], ARGV[2])
else
  redis.call('ZADD', KEYS[3], ARGV[4], ARGV[2])
end
set_tick(KEYS[1], KEYS[3])
return { now, 'yes' }
