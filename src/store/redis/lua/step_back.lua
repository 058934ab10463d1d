#!lua flags=allow-oom
-- step_back: takes a node without room off the idle list, and passes a wake on if there is anything to do.
-- KEYS 1 conf 2 due 3 idle 4-7 ready
-- ARGV 1 now|'' 2 channel 3 node
-- Returns { now, more }
-- include now, wake, closed
redis.call('ZREM', KEYS[3], ARGV[3])
local next_due = tonumber(redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2])
local any = (next_due and next_due <= now) or redis.call('EXISTS', KEYS[4], KEYS[5], KEYS[6], KEYS[7]) > 0
if any and not closed(KEYS[1]) then
  wake(KEYS[3], ARGV[2])
  return { now, 1 }
end
return { now, 0 }
