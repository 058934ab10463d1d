#!lua
-- redis_in_action_reschedule: gives an item that waits another moment, byte for byte, if it is still there.
-- KEYS 1 delayed 2 list
-- ARGV 1 now|'' 2 item 3 due: 'n' microseconds, '+n' from now
-- Returns { now, 1: done | 0: it is not there any more }
-- include now
local at = tonumber(ARGV[3])
at = ARGV[3]:byte(1) == 43 and now + at or at
if redis.call('ZREM', KEYS[1], ARGV[2]) + redis.call('LREM', KEYS[2], 1, ARGV[2]) == 0 then
  return { now, 0 }
end
if at <= now then
  redis.call('RPUSH', KEYS[2], ARGV[2])
else
  redis.call('ZADD', KEYS[1], string.format('%.6f', at / 1000000), ARGV[2])
end
return { now, 1 }
