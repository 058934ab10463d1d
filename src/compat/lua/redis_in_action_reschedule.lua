#!lua
-- redis_in_action_reschedule: gives an item that waits another moment, byte for byte, if it is still there.
-- KEYS 1 delayed 2 list 3 Sidekiq's queues
-- ARGV 1 now|'' 2 queue 3 item 4 due: 'n' microseconds, '+n' from now
-- Returns { now, why not|'', 1: done | 0: it is not there any more }
-- include now, mixed
local item, at = ARGV[3], tonumber(ARGV[4])
at = ARGV[4]:byte(1) == 43 and now + at or at
local why = mixed(KEYS[2], KEYS[3], ARGV[2])
if why then
  return { now, why, 0 }
end
-- The same bytes may be in both places: one of them is meant, and the other is another item.
if redis.call('ZREM', KEYS[1], item) == 0 and redis.call('LREM', KEYS[2], 1, item) == 0 then
  return { now, '', 0 }
end
if at <= now then
  redis.call('RPUSH', KEYS[2], item)
else
  redis.call('ZADD', KEYS[1], string.format('%.6f', at / 1000000), item)
end
return { now, '', 1 }
