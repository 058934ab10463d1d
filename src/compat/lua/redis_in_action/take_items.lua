#!lua flags=allow-oom
-- take_items: moves items of a list into duly's own keys, where they are ready, each only if it is still there. So an item is in
-- the list or in duly's keys, never between.
-- keys: list job ready[4] conf
-- args: now items...
--   items: for each item: item, id, record, another id in case the first is taken, the record with that one
-- Returns { now, how many were taken }
-- include read_time, check_format, is_closed, increment_field, record_fields
local taken = 0
if is_closed(@conf) then
  return { now, taken }
end
for n = &items, #ARGV, 5 do
  if redis.call('LREM', @list, 1, ARGV[n]) == 1 then
    local at = redis.call('HEXISTS', @job, ARGV[n + 1]) == 0 and n + 1 or n + 3
    local id, record = ARGV[at], ARGV[at + 1]
    redis.call('HSET', @job, id, record)
    redis.call('RPUSH', @ready[read_priority(record) + 1], id)
    increment_field(@conf, 'bytes', args_bytes(record))
    taken = taken + 1
  end
end
return { now, taken }
