#!lua flags=allow-oom
-- redis_in_action_take: takes items out of a list into duly's own keys, where they are ready, each only if it is still there.
-- So an item is in the list or in duly's keys, never between.
-- KEYS 1 list 2 job 3 ready 4 conf
-- ARGV 1 now|'' 2... item, id, record, another id if that one is taken, record under that one
-- Returns { now, how many were taken }
-- include now, closed, add, read
local taken = 0
if closed(KEYS[4]) then
  return { now, taken }
end
for n = 2, #ARGV, 5 do
  if redis.call('LREM', KEYS[1], 1, ARGV[n]) == 1 then
    local at = redis.call('HEXISTS', KEYS[2], ARGV[n + 1]) == 0 and n + 1 or n + 3
    local id, record = ARGV[at], ARGV[at + 1]
    redis.call('HSET', KEYS[2], id, record)
    redis.call('RPUSH', KEYS[3], id)
    add(KEYS[4], 'bytes', bytes_of(record))
    taken = taken + 1
  end
end
return { now, taken }
