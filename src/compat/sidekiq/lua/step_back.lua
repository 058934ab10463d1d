#!lua flags=allow-oom
-- step_back: takes a node without room off the idle list, and passes a wake on if there is anything to do.
-- KEYS 1 conf 2 idle 3 queue 4 schedule 5 retry
-- ARGV 1 now|'' 2 channel 3 node
-- Returns { now, more }
-- include now, wake, closed
local any = redis.call('EXISTS', KEYS[3]) == 1
for set = 4, 5 do
  any = any or redis.call('ZCOUNT', KEYS[set], '-inf', string.format('%.6f', now / 1000000)) > 0
end
redis.call('ZREM', KEYS[2], ARGV[3])
if any and not closed(KEYS[1]) then
  wake(KEYS[2], ARGV[2])
  return { now, 1 }
end
return { now, 0 }
