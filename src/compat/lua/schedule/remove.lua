#!lua flags=allow-oom
-- remove: removes an id, also if it runs, and its next occurrence.
-- keys: set leases lease_ends next attempts dead
-- args: now scale channel id
-- Returns { now, 1 if it was there }
-- include read_time, to_digits, item_leases
local id = $id
local removed = redis.call('ZREM', @set, id) + redis.call('HDEL', @next, id) + redis.call('HDEL', @dead, id)
end_lease(id)
redis.call('HDEL', @attempts, id)
return { now, removed > 0 and 1 or 0 }
