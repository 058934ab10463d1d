#!lua flags=no-writes
-- redis_in_action_look: what is due among the delayed, and what is at the head of a list.
-- KEYS 1 delayed 2 list 3 Sidekiq's queues 4 conf 5-8 ready
-- ARGV 1 now|'' 2 queue 3 most of the delayed 4 most of the list 5 how many of the delayed to pass over
-- Returns { now, why not|'', { delayed item that is due }, { item of the list }, when the next one is due|'', 1: that is all of the list | 0 }
-- include now, closed, mixed
local due = redis.call('ZRANGE', KEYS[1], '-inf', string.format('%.6f', now / 1000000), 'BYSCORE', 'LIMIT', ARGV[5], ARGV[3])
local later = redis.call('ZRANGE', KEYS[1], string.format('(%.6f', now / 1000000), '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')[2]
later = later and string.format('%.0f', math.min(later * 1000000, 9e15)) or ''
local why = mixed(KEYS[2], KEYS[3], ARGV[2])
local ready = 0
for list = 5, 8 do
  ready = ready + redis.call('LLEN', KEYS[list])
end
local most = ARGV[4] - ready
if why or most <= 0 or closed(KEYS[4]) then
  return { now, why or '', due, {}, later, 0 }
end
return { now, '', due, redis.call('LRANGE', KEYS[2], 0, most - 1), later, redis.call('LLEN', KEYS[2]) <= most and 1 or 0 }
