#!lua flags=no-writes
-- redis_in_action_any: whether any delayed item is due, and which lists have something.
-- KEYS 1 delayed 2... lists
-- ARGV 1 now|''
-- Returns { now, 1: due | 0, { 1: has something | 0 } }
-- include now
local first = tonumber(redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2])
local any = {}
for n = 2, #KEYS do
  any[n - 1] = redis.call('EXISTS', KEYS[n])
end
return { now, first and first * 1000000 <= now and 1 or 0, any }
