#!lua
-- enqueue: adds an id with a due time. While the id runs, that is its next occurrence, which is added when this one is done.
-- keys: set leases lease_ends next attempts dead
-- args: now scale channel id due
--   scale: microseconds per unit of a score; due: 'n' microseconds, '+n' from now
-- Returns { now, 1: it was added | 2: it will be when the running one is done }
-- include read_time, to_digits, item_leases
local id, due = $id, tonumber($due)
if $due:byte(1) == 43 then
  due = now + due
end
local lease = read_lease(id)
if lease and is_untouched(id, lease) then
  redis.call('HSET', @next, id, to_score(due))
  return { now, 2 }
end
end_lease(id)
redis.call('HDEL', @attempts, id)
redis.call('HDEL', @dead, id)
insert_item(id, to_score(due))
return { now, 1 }
