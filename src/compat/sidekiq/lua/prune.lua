#!lua flags=allow-oom
-- prune: deletes done jobs past their time or beyond a number. The dead are not ours to trim: how many of them are kept Ruby's
-- settings say, and each burial trims them.
-- KEYS 1 job 2 done 3 conf 4,5 gone
-- ARGV 1 now|'' 2 most done jobs 3 most to delete 4 age of remembered ids
-- Returns { now, how many }
-- include now, gone, chunks
local most = tonumber(ARGV[3])
gone(KEYS[3], { KEYS[4], KEYS[5] }, tonumber(ARGV[4]))
local over = redis.call('ZRANGE', KEYS[2], '-inf', now, 'BYSCORE', 'LIMIT', 0, most)
if #over == 0 then
  local too_many = redis.call('ZCARD', KEYS[2]) - tonumber(ARGV[2])
  over = too_many > 0 and redis.call('ZRANGE', KEYS[2], 0, math.min(too_many, most) - 1) or {}
end
chunks('ZREM', KEYS[2], over)
chunks('HDEL', KEYS[1], over)
return { now, #over }
