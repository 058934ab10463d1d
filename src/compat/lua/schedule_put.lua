#!lua
-- schedule_put: puts an id there for a moment. While it runs that is its next occurrence, which begins when this one is done.
-- KEYS as in part/schedule
-- ARGV 1 now|'' 2 scale 3 channel 4 id 5 due: 'n' microseconds, '+n' from now
-- Returns { now, 1: it is there | 2: it will be when the one that runs is done }
-- include now, text, schedule
local id, due = ARGV[4], tonumber(ARGV[5])
if ARGV[5]:byte(1) == 43 then
  due = now + due
end
local lease = lease_of(id)
if lease and untouched(id, lease) then
  redis.call('HSET', KEYS[4], id, score_of(due))
  return { now, 2 }
end
end_lease(id)
redis.call('HDEL', KEYS[5], id)
redis.call('HDEL', KEYS[6], id)
put(id, score_of(due))
return { now, 1 }
