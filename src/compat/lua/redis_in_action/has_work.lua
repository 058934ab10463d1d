#!lua flags=no-writes
-- has_work: returns whether any delayed item is due, and which lists have items.
-- keys: delayed lists...
-- args: now
-- Returns { now, 1 if one is due, { 1 if the list has items } }
-- include read_time
local first = tonumber(redis.call('ZRANGE', @delayed, 0, 0, 'WITHSCORES')[2])
local has_items = {}
for n = 1, #@lists do
  has_items[n] = redis.call('EXISTS', @lists[n])
end
return { now, first and first * 1000000 <= now and 1 or 0, has_items }
