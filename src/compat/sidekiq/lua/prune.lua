#!lua flags=allow-oom
-- prune: deletes done jobs past their time or beyond a number, and trims the dead ones as their set is documented.
-- KEYS 1 job 2 done 3 dead 4 conf 5,6 gone
-- ARGV 1 now|'' 2 most done jobs 3 most to delete 4 age of remembered ids
-- Returns { now, how many }
-- include now, gone, chunks, sound
sound(3)
local MOST, SECONDS = 10000, 180 * 86400
local most = tonumber(ARGV[3])
gone(KEYS[4], { KEYS[5], KEYS[6] }, tonumber(ARGV[4]))
local over = redis.call('ZRANGE', KEYS[2], '-inf', now, 'BYSCORE', 'LIMIT', 0, most)
if #over == 0 then
  local too_many = redis.call('ZCARD', KEYS[2]) - tonumber(ARGV[2])
  over = too_many > 0 and redis.call('ZRANGE', KEYS[2], 0, math.min(too_many, most) - 1) or {}
end
chunks('ZREM', KEYS[2], over)
chunks('HDEL', KEYS[1], over)
local dead = redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', string.format('(%.6f', now / 1000000 - SECONDS))
dead = dead + redis.call('ZREMRANGEBYRANK', KEYS[3], 0, -(MOST + 1))
return { now, math.min(#over + dead, most) }
