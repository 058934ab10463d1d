#!lua flags=allow-oom
-- promote: moves due entries of one queue from a sorted set to the queue, each only if nobody else has taken it out.
-- KEYS 1 set 2 queues 3 queue 4 idle
-- ARGV 1 now|'' 2 channel 3 queue 4... each entry as it is in the set, and as it will be in the queue
-- Returns { now, why not|'', how many }
-- include now, wake, mixed
local why = mixed(KEYS[3])
if why then
  return { now, why, 0 }
end
redis.call('SCARD', KEYS[2])
local moved = 0
for i = 4, #ARGV, 2 do
  if redis.call('ZREM', KEYS[1], ARGV[i]) == 1 then
    redis.call('LPUSH', KEYS[3], ARGV[i + 1])
    moved = moved + 1
  end
end
if moved > 0 then
  redis.call('SADD', KEYS[2], ARGV[3])
  wake(KEYS[4], ARGV[2])
end
return { now, '', moved }
